"""The examples in the docstrings of every room and of the laboratory run as they stand."""

import doctest
import importlib
import pkgutil

import pytest

import lab
import leanformer

MODULES = [
    module.name
    for package in (leanformer, lab)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_examples_run(name: str, tmp_path, monkeypatch) -> None:
    module = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(module)
    assert not failed
    assert not list(tmp_path.iterdir()), "an example leaves files behind"
