"""A target: a file format, what writes it from a traced program, and the runtime that computes with it.

    model → fuse → rewrite → torch.export → write → open in its own runtime → compare → the file gets its name

Files are written in a folder of their own beside the wanted place and moved there only after the comparison.
"""

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

Run = Callable[[Tensor], Tensor]
"""An opened file: images (B, C, H, W) in, logits (B, classes) out."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One format. `write(program, path, metadata, **options)` makes the file, `open(path)` computes with it."""

    name: str
    suffix: str
    runtime: str
    write: Callable[..., None]
    open: Callable[[Path], Run]
    packages: tuple[str, ...] = ()
    extra: str | None = None
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    max_batch: int | None = None
    """The largest batch that is asked for when the caller does not say; None: any."""

    def check_name(self, path: Path) -> None:
        """Refuse a file whose name has not the ending of this format."""
        if not path.name.endswith(self.suffix) or path.name == self.suffix:
            raise ValueError(f"a file of the format '{self.name}' is called something{self.suffix}, not '{path.name}'")

    def require(self) -> None:
        """Refuse to go on without the packages of this target, with the line that installs them."""
        require(self.packages, self.extra, f"the format '{self.name}'")


def require(packages: tuple[str, ...], extra: str | None, what: str) -> None:
    """Refuse `what` where one of its packages is missing, with the line that installs them.

    >>> require(("torch",), None, "everything")
    """
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise ValueError(f"{what} needs {' and '.join(missing)}; install with: pip install 'leanformer[{extra}]'")


@contextlib.contextmanager
def staged(path: Path) -> Iterator[Path]:
    """A place to write `path` and the files that belong to it; they are moved when all went well, else removed.

    >>> with staged(Path("lean.onnx")) as temporary:  # doctest: +SKIP
    ...     temporary.write_bytes(b"whole")
    """
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            yield Path(folder) / path.name
            _publish(Path(folder), path)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from error


def _publish(folder: Path, path: Path) -> None:
    """Move the files: the main one last, and an old main one away first, so that no reader sees a mixed pair."""
    written = sorted(folder.iterdir(), key=lambda file: file.name == path.name)
    if len(written) > 1:
        path.unlink(missing_ok=True)
    for file in written:
        os.replace(file, path.with_name(file.name))


def file_size(path: Path) -> int:
    """Bytes of an exported file with what belongs to it."""
    weights = path.with_suffix(".bin")
    return path.stat().st_size + (weights.stat().st_size if path.suffix == ".xml" and weights.is_file() else 0)
