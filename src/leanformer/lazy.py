"""What lets `import leanformer` and `leanformer --help` answer at once: heavy modules come when first asked for.

A package keeps its public names in its module `_public`. Its `__init__` gets a `__getattr__` from here, which imports a
submodule of that name, or else `_public` (PEP 562). Nothing but the standard library is imported in this file.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, MutableMapping
from importlib.util import find_spec
from typing import Any, TypeVar

T = TypeVar("T")
PUBLIC = "_public"


def lazy_attributes(package: str, **elsewhere: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package whose public names stand in its module `_public`.

    Args:
        package: The package's `__name__`.
        **elsewhere: Public names that stand at another place than `_public`: a module, or module:name.

    >>> find, names = lazy_attributes("leanformer.visualise")
    >>> find("Figure").__name__, "Figure" in names()
    ('Figure', True)
    """

    def find(name: str) -> Any:
        if name.startswith("_") and name != "__all__":
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        place, _, attribute = elsewhere.get(name, name).partition(":")
        if not name.startswith("_") and find_spec(f"{package}.{place}") is not None:
            found = importlib.import_module(f"{package}.{place}")
            found = getattr(found, attribute) if attribute else found
        else:
            has_public = find_spec(f"{package}.{PUBLIC}") is not None
            public = importlib.import_module(f"{package}.{PUBLIC}") if has_public else None
            if not hasattr(public, name):
                raise AttributeError(f"module '{package}' has no attribute '{name}'")
            found = getattr(public, name)
        setattr(sys.modules[package], name, found)  # the next time it is there
        return found

    return find, lambda: sorted(find("__all__"))


class Register(MutableMapping[str, T]):
    """A table that modules fill as they are imported; those in `sources` are imported when it is first read.

    >>> table = Register()
    >>> table["one"] = 1
    >>> dict(table)
    {'one': 1}
    """

    def __init__(self) -> None:
        self.sources: list[str] = []
        self._entries: dict[str, T] = {}

    def _read(self) -> dict[str, T]:
        for source in self.sources:  # a lookup once it is imported; waits where another thread is at it
            importlib.import_module(source)
        return self._entries

    def __getitem__(self, name: str) -> T:
        return self._read()[name]

    def __setitem__(self, name: str, entry: T) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


METHODS: Register[Any] = Register()
"""Name → method class. `leanformer/__init__.py`, which stands above all rooms, says which modules bring methods."""
AROUND: Register[Any] = Register()
"""Name → a function that builds a model around a backbone, such as a detector; the modules are named there too."""
MODELS: Register[Any] = Register()
"""Name → a function that builds one of leanformer's own architectures; some names are those of a paper's models."""
READERS: Register[Any] = Register()
"""Name of a model → how weights under the keys of its authors become ours, for the model that they are read into; the
modules that know such keys are named there too."""
