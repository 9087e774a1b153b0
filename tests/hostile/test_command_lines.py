"""Whatever is written behind `leanformer`: an exit code that is documented, one line on stderr, and no files left."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from command_lines import as_seen, command_line, make_world
from time_limit import Hang, at_most

from leanformer.cli import main

SECONDS = 60
HANG = "bad: Hang"
PARTS = 2
"""For as many processes."""
OWN_NO = ("tables", "bench")
"""Verbs that end with 1 when they have found what they look for."""


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working folder of a case, with a folder and a file in it; nothing listens."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "held").write_text("held")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("uvicorn.run", lambda *arguments, **options: None)
    monkeypatch.setattr("leanformer.measure.bench.matrix_peak", lambda *_: 1e9)
    return tmp_path


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def outcome(code: int, said: str, verb: str, new: set[str]) -> str:
    """The class of an ended command; those that must not be begin with 'bad'."""
    lines = said.splitlines()
    if "Traceback" in said or "fault of leanformer" in said:
        return "bad: fault"
    if any(Path(name).name.startswith(".") for name in new):
        return "bad: hidden files left"
    if code == 2:
        if new:
            return "bad: files left by a refusal"
        return "refused" if len(lines) == 1 and said.startswith("leanformer: ") else "bad: not one line"
    if code == 1:
        return "own no" if verb in OWN_NO else "bad: exit code 1"
    return "done" if code == 0 else f"bad: exit code {code}"


@pytest.mark.parametrize("part", range(PARTS))
def test_command_lines(part, cases, seed, tally: Counter[str], world, folder, capsys):
    wrong = []
    before = listing(folder)
    for number in range(part, cases, PARTS):
        arguments = command_line(number, seed, world)
        found, said = ended(arguments, folder, before, capsys)
        if found == HANG:  # a machine under load is slow once, what hangs hangs again
            found, said = ended(arguments, folder, before, capsys)
        tally[found] += 1
        if found.startswith("bad"):
            wrong.append(f"{number} {found}: {as_seen(arguments)}\n      {said.strip()[:400]}")
    assert not wrong, "\n".join([f"{len(wrong)} of {cases}:", *wrong[:40]])


def ended(arguments: list[str], folder: Path, before: set[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """The class of what a command line came to, and what it said; what it wrote is taken away again."""
    try:
        with at_most(SECONDS):
            code = main(arguments)
    except (Hang, SystemExit) as stop:
        return (HANG if isinstance(stop, Hang) else "bad: SystemExit"), capsys.readouterr().err
    else:
        said = capsys.readouterr().err
        return outcome(code, said, arguments[0], listing(folder) - before), said
    finally:
        clean(folder, before)


def clean(folder: Path, before: set[str]) -> None:
    """Take away what a command has written."""
    for name in sorted(listing(folder) - before, reverse=True):
        path = folder / name
        path.rmdir() if path.is_dir() else path.unlink()
    (folder / "held").write_text("held")


@pytest.mark.parametrize("arguments", [["describe", "zz"], ["eval", "vit", "--data", "x", "--batch-size", "0"], ["zz"]])
def test_a_process_of_its_own_ends_as_documented(arguments, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "leanformer.cli", *arguments], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert list(tmp_path.iterdir()) == []
