"""The blocks of code on the site and in the README, and how each is run: as it stands, but smaller.

    <!-- block: slow -->            before a block: only with the exhaustive tests
    <!-- block: skip, why -->       before a block: never, and why

What stands on a page is meant for a real model and hours; `SMALLER` says, word by word, what a test puts in its place.
"""

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leanformer.cli import main

ROOT = Path(__file__).parents[2]
RUN = ("bash", "python")
OTHER = ("text", "math", "pycon", "json", "yaml", "html")
FENCE = re.compile(
    r"(?:<!-- block: (?P<marker>.*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
SMALLER = (
    (r"\bvit_tiny_patch16_224\b|\bdeit_small_patch16_224\b", "docs_vit"),
    (r"\bvit\.safetensors\b|\bdeit_small\.pth\b", "vit.pth"),
    (r"\bimagenet/", "photos/"),
    (r"--(speedup) [\d.]+", r"--\1 1.01"),
    (r"--latency \w+", "--latency 100s"),
    (r"--minutes \d+", "--epochs 1"),
    (r"minutes=\d+", "epochs=1"),
    (r"speedup=[\d.]+", 'speedup=1.01, runtime="macs", methods=("evit",), sizes=False, evaluations=4, choosing=32'),
    (r"finetune:epochs=\d+", "finetune:epochs=1,batch_size=16"),
    (r"finetune\(epochs=30\b(, batch_size=\d+)?", "finetune(epochs=1, batch_size=16"),
    (r"batch=256", 'batch=2, device="cpu", search=False'),
    (r"repa:idle_ratio=", "repa:refine_steps=2,idle_ratio="),
    (r"RePa\(idle_ratio=0.5\)", "RePa(idle_ratio=0.5, refine_steps=2)"),
)
"""What stands on a page → what a test runs."""
ADDED = {
    "lean": "--runtime macs --methods evit --no-sizes --plans 4 --images 32 --epochs 1 --device cpu",
    "train": "--workers 0 --device cpu",
    "predict": "--workers 0 --device cpu",
}
"""Verb → options that make it small; of an option given twice the last counts."""


@dataclass(frozen=True)
class Block:
    """One block of code on a page."""

    page: str
    line: int
    language: str
    text: str
    marker: str

    @property
    def skipped(self) -> bool:
        return self.marker.startswith("skip")

    @property
    def slow(self) -> bool:
        return self.marker.startswith("slow")

    @property
    def included(self) -> bool:
        """Whether the block shows a file, which the block before it runs."""
        return self.text.startswith("--8<--")

    @property
    def example(self) -> bool:
        """Whether the block runs a file of examples/, which takes a process of its own."""
        return self.language == "bash" and self.text.startswith("python examples/")

    def small(self) -> str:
        """The text as a test runs it."""
        text = self.text
        for pattern, instead in SMALLER:
            text = re.sub(pattern, instead, text)
        return text


def pages() -> list[str]:
    """The pages written by hand, as paths from the root."""
    made = {"docs/results.md", "docs/papers.md"}
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [name for path in found if (name := path.relative_to(ROOT).as_posix()) not in made]


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found["language"], found["text"], found["marker"] or "")
        for found in FENCE.finditer(text)
    ]


def run_block(block: Block, names: dict[str, Any]) -> None:
    """Run a block in the folder we stand in; Python blocks of a page share their names."""
    if block.included:
        return
    if block.language == "python":
        exec(compile(block.small(), f"{block.page}:{block.line}", "exec"), names)
        return
    for line in block.small().replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            run_command(words)


def run_command(words: list[str]) -> None:
    """Run one command: ours in this process, an example in one of its own."""
    if words[0] == "leanformer":
        given = words[1:]
        given += [] if "--resume" in given else shlex.split(ADDED.get(given[0], ""))
        given += ["--runtime", "eager"] if "--latency" in given else []  # nothing is timed by counting
        code = main(_without_epochs(given) if "--no-train" in given else given)
        missed = given[0] == "lean" and code == 1 and _output(given).joinpath("lean.safetensors").exists()
        assert code == 0 or missed, f"{shlex.join(given)} ended with {code}"
    elif words[0] == "python" and words[1].startswith("examples/"):
        subprocess.run([sys.executable, str(ROOT / words[1])], check=True, capture_output=True, timeout=240)
    else:
        raise AssertionError(f"no test can run '{shlex.join(words)}'; mark its block")


def _output(given: list[str]) -> Path:
    return Path(given[given.index("--output") + 1])


def _without_epochs(given: list[str]) -> list[str]:
    at = given.index("--epochs")
    return given[:at] + given[at + 2 :]
