"""A method's name stands in its own folder and its paper's; the rest of the library finds methods by what they do."""

import re
from pathlib import Path

import pytest

import leanformer as lf

ROOMS = Path(lf.__file__).parent
ALLOWED = ("papers/", "methods/__init__.py", "methods/examples.json")
"""Where every method may be named: what papers published, what makes methods known, and what help texts show."""
ORDINARY = ("token_mixer",)
"""Names of methods that are words for a part of every model."""
METHODS = [m for name, m in lf.METHODS.items() if m.__module__.startswith("leanformer.") and name not in ORDINARY]


def files() -> dict[str, str]:
    """Path below the package → text."""
    kinds = (".py", ".html", ".js", ".css", ".md", ".toml", ".json")
    found = sorted(path for path in ROOMS.rglob("*") if path.suffix in kinds)
    return {path.relative_to(ROOMS).as_posix(): path.read_text() for path in found}


def named_in(text: str, method: type) -> list[str]:
    """The lines that hold the method's class or name as a word, or as a part of an identifier."""
    word = rf"(?<![A-Za-z]){method.name}(?![A-Za-z])|{method.__name__}(?![a-z])"
    return [line.strip() for line in text.splitlines() if re.search(word, line)]


@pytest.mark.quick
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_only_its_own_folder_and_its_paper_name_a_method(method):
    own = method.__module__.removeprefix("leanformer.").replace(".", "/").removesuffix("/method")
    allowed = (*ALLOWED, f"{own}/", f"{own}.py")
    elsewhere = {path: named_in(text, method) for path, text in files().items() if not path.startswith(allowed)}
    assert not {path: lines for path, lines in elsewhere.items() if lines}


@pytest.mark.quick
def test_a_name_is_found_as_a_word_and_inside_an_identifier_but_not_inside_a_word():
    method = type("RePa", (), {"name": "repa"})
    assert named_in("x = RePaFFN()\nrepa_ffn = 1\nlf.RePa()\nrepair\nprepare\nRePaint", method) == [
        "x = RePaFFN()",
        "repa_ffn = 1",
        "lf.RePa()",
    ]
