"""The public names: what `import leanformer as lf` offers, that each has one meaning, and what the wheel carries."""

import importlib
import pkgutil
import re
import subprocess
import sys
import types
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import lab
import leanformer as lf
from leanformer.cli import main
from leanformer.core import versions

ROOT = Path(__file__).parents[2]
PACKAGES = [
    "leanformer",
    *(
        found.name
        for root in (lf, lab)
        for found in pkgutil.walk_packages(root.__path__, f"{root.__name__}.")
        if found.ispkg
    ),
]


@pytest.mark.parametrize("name", ["Method", "Block", "Branch", "__version__"])
def test_what_a_new_method_is_written_with_is_public(name):
    assert name in dir(lf)
    assert getattr(lf, name) is not None


@pytest.mark.quick
@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_both_a_module_and_something_else(package):
    room = importlib.import_module(package)
    for found in pkgutil.iter_modules(room.__path__):
        if found.name.startswith("_"):
            continue
        importlib.import_module(f"{package}.{found.name}")
        assert isinstance(getattr(room, found.name), types.ModuleType), f"{package}.{found.name} is a module too"


def test_the_version_is_said_in_one_place(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.split() == ["leanformer", lf.__version__]
    assert versions()["leanformer"] == lf.__version__
    assert f'"{lf.__version__}"' not in (ROOT / "pyproject.toml").read_text()
    assert f"## [{lf.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.exhaustive
def test_the_wheel_carries_the_types_and_not_the_laboratory(tmp_path):
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    names = zipfile.ZipFile(next(tmp_path.glob(f"leanformer-{lf.__version__}-*.whl"))).namelist()
    assert "leanformer/py.typed" in names
    assert not [name for name in names if name.startswith(("lab/", "tests/"))]


def test_what_the_changelog_says_of_modules_is_true():
    """The old places are gone, or are public names of another kind; the new ones can be imported."""
    rows = re.findall(r"^  \| `(leanformer\.[\w.]+)`.*\| (.*) \|$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert len(rows) > 15
    for old, new in rows:
        for name in re.findall(r"`(leanformer\.[\w.]+|lab\.[\w.]+)`", new):
            assert importlib.import_module(name)
        if old not in new and "packages of these names" not in new:
            assert find_spec(old.rpartition(".")[0]) is None or find_spec(old) is None, f"{old} is still a module"
