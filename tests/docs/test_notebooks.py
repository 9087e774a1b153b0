"""The notebooks run from the first cell to the last, and are kept without what they print."""

import json
from importlib.util import find_spec

import pytest
from blocks import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def test_there_are_notebooks():
    assert {path.stem for path in NOTEBOOKS} == {"make_it_lean", "look_inside", "a_detector", "add_a_method"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_its_outputs_and_can_be_parsed(path):
    cells = json.loads(path.read_text())["cells"]
    assert cells[0]["cell_type"] == "markdown"
    for cell in cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            assert cell["execution_count"] is None
            compile("".join(cell["source"]), path.name, "exec")


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_less_than_a_minute(path, tmp_path, monkeypatch):
    needs = json.loads(path.read_text())["metadata"].get("needs", "leanformer")
    if find_spec(needs) is None:
        pytest.skip(f"there is no {needs}")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    book = nbformat.read(path, as_version=4)
    book.cells.append(nbformat.v4.new_code_cell("import time; print(time.process_time())"))
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert float(book.cells[-1]["outputs"][0]["text"]) < 60
