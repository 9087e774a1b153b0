"""What a user asks for first is known in a process that has imported nothing but leanformer."""

import subprocess
import sys

import pytest
import torch

import leanformer as lf
from leanformer.backbones import MODELS
from leanformer.core import METHODS
from leanformer.lazy import AROUND, READERS


def alone(code: str) -> str:
    """What a new process prints for these lines behind `import leanformer as lf`."""
    done = subprocess.run([sys.executable, "-c", f"import leanformer as lf\n{code}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.quick
def test_a_new_process_knows_all_models_methods_and_files_of_authors():
    import leanformer.papers.recipes
    import leanformer.papers.tables  # noqa: F401  (all that a suite of tests has imported sooner or later)

    tables = {"MODELS": MODELS, "METHODS": METHODS, "AROUND": AROUND, "READERS": READERS}
    found = alone(f"import leanformer.lazy as lazy\nfor name in {list(tables)}: print(*sorted(getattr(lazy, name)))")
    assert [line.split(" ") for line in found.splitlines()] == [sorted(table) for table in tables.values()]


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
