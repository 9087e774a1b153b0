"""What a user asks for first is known in a process that has imported nothing but leanformer."""

import subprocess
import sys

import pytest
import torch

import leanformer as lf


def alone(code: str) -> str:
    """What a new process prints for these lines behind `import leanformer as lf`."""
    done = subprocess.run([sys.executable, "-c", f"import leanformer as lf\n{code}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


TABLES = """
from leanformer import lazy
for name in ("MODELS", "METHODS", "AROUND", "READERS"):
    print(*getattr(lazy, name))
"""
EVERYTHING = """
import importlib, pkgutil
for module in pkgutil.walk_packages(lf.__path__, "leanformer."):
    if module.name.split(".")[1] in ("backbones", "methods", "papers", "tasks"):
        importlib.import_module(module.name)
"""


@pytest.mark.quick
def test_a_new_process_knows_all_models_methods_and_files_of_authors():
    """As many as a process that has imported every room; this one may have the methods of other tests as well."""
    found, known = ([set(line.split()) for line in alone(code).splitlines()] for code in (TABLES, EVERYTHING + TABLES))
    assert found == known
    assert all(found)


def test_a_new_process_creates_a_papers_model_and_reads_its_authors_file(tmp_path):
    model, images = lf.create("poolformer_s12", depths=(1, 1, 1, 1)).eval(), torch.ones(1, 3, 224, 224)
    official, ours = tmp_path / "official.pth", tmp_path / "ours.safetensors"
    torch.save(lf.to_official(model), official)
    lf.save(lf.create("repavit_tiny", depth=1), ours)
    told = alone(
        "import torch\n"
        f"made = lf.create('poolformer_s12', checkpoint={str(official)!r}, depths=(1, 1, 1, 1)).eval()\n"
        "print(made(torch.ones(1, 3, 224, 224)).double().sum().item())\n"
        f"print(lf.load({str(ours)!r}).num_classes)"
    )
    summed, classes = told.split()
    assert float(summed) == pytest.approx(model(images).double().sum().item())
    assert int(classes) == 1000
