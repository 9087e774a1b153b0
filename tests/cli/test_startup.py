"""Nothing heavy is imported before it is needed: help comes at once, and the package alone brings no trainer."""

import json
import subprocess
import sys
import time

import pytest

from leanformer.cli import VERBS

HEAVY = ("torch", "timm", "numpy", "matplotlib", "accelerate", "torchvision")


def imported_by(code: str) -> list[str]:
    """The heavy packages that a fresh process has imported after running `code`."""
    told = f"{code}\nimport json, sys\nprint(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_help_of_all_verbs_imports_nothing_heavy():
    lines = ["from leanformer.cli import main", "assert main(['--help']) == 0"]
    lines += [f"assert main(['{verb}', '--help']) == 0" for verb in VERBS]
    assert imported_by("\n".join(lines)) == []


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]])
def test_help_comes_within_two_seconds(arguments):
    def seconds() -> float:
        start = time.perf_counter()
        command = [sys.executable, "-m", "leanformer.cli", *arguments]
        subprocess.run(command, capture_output=True, timeout=120, check=True)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 2


def test_importing_leanformer_imports_nothing_heavy():
    assert imported_by("import leanformer") == []


def test_models_are_made_without_plots_and_trainers():
    assert not {"matplotlib", "accelerate"} & set(imported_by("import leanformer as lf; lf.create, lf.EViT, lf.fuse"))


def test_methods_are_known_however_a_room_is_entered():
    assert "torch" in imported_by("from leanformer.core import parse_method; parse_method('evit:keep_rate=0.7')")


def test_every_public_name_is_there():
    code = "import leanformer as lf; assert len(dir(lf)) > 20; [getattr(lf, name) for name in dir(lf)]"
    code += "; assert callable(lf.train.fit) and callable(lf.visualise.curves) and lf.recipes.finetune()"
    imported_by(code + "\ntry:\n    lf.nothing\nexcept AttributeError:\n    pass\nelse:\n    raise SystemExit(1)")


def test_visualise_is_entered_without_matplotlib():
    assert "matplotlib" not in imported_by("from leanformer.visualise.names import class_name")
