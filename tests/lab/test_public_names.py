"""The laboratory uses what every user can: names that rooms export, and no variable that is not documented."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from leanformer.core import VARIABLES

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "lab").rglob("*.py"))
MODULES = {
    "leanformer.backbones.census", "leanformer.methods.evit", "leanformer.methods.sit", "leanformer.papers.evit.tables",
    "leanformer.papers.lvvit", "leanformer.papers.published", "leanformer.papers.repa.dense", "leanformer.papers.table",
    "leanformer.papers.tables", "leanformer.tasks.pyramid",
    "leanformer.speed.asked", "leanformer.speed.fp8",
    "leanformer.data.batches", "leanformer.data.draws", "leanformer.data.kinds", "leanformer.data.reading",
    "leanformer.tasks.detection",
    "leanformer.tasks.detection_metrics", "leanformer.tasks.detector_targets", "leanformer.train.evaluation",
}  # fmt: skip
"""Public modules below a room whose names the room does not repeat; the last eight are what a task needs that brings
its own batches and judges its own answers. A bench of kernels needs the kernels as well, and a study of the search its
parts."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_laboratory_imports_public_names_alone(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("leanformer") and not node.level:
            names = [alias.name for alias in node.names]
            assert not any(part.startswith("_") for part in (*node.module.split("."), *names))
            assert not node.module.startswith("leanformer.cli")
            if node.module in MODULES or ".kernels." in node.module or node.module.startswith("leanformer.search."):
                continue
            assert node.module.count(".") <= 1, f"{node.module} is inside a room"
            assert set(names) <= set(importlib.import_module(node.module).__all__)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") != "self":
            assert not re.match(r"_(?!_)", node.attr), f"{path}:{node.lineno} reaches for {node.attr}"


def test_every_environment_variable_is_documented_in_one_place():
    files = [path for room in ("src", "lab", "tests") for path in (ROOT / room).rglob("*.py")]
    found = {name for path in files for name in re.findall(r"LEANFORMER_[A-Z_]+\b", path.read_text())}
    assert found - {"LEANFORMER_"} == set(VARIABLES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short(path):
    assert len(path.read_text().splitlines()) <= 300
