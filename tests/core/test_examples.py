"""The examples in the docstrings of the foundation run as they stand."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import leanformer.backbones
import leanformer.core

SLOW = ("leanformer.backbones.census", "leanformer.core.calibration")
MODULES = [
    pytest.param(module.name, marks=pytest.mark.slow if module.name in SLOW else [])
    for package in (leanformer.core, leanformer.backbones)
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_examples_run(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch})
    assert not failed
