"""Every method, and RePa with EViT, in every format that is installed; every family of backbones in the slow tests.

Export compares each file with its model by itself and raises when they differ, so that a file is the proof.
"""

import importlib.util
from pathlib import Path

import pytest
from families import BACKBONES, backbone, images
from helpers import randomise

import leanformer as lf
from leanformer.core import METHODS, Method

PAIR = "repa + evit"
SLOW = ("aoti", "executorch")
"""Formats that take many seconds for each model, because they compile."""
PLACES = ("vit", "poolformer", "lvvit")
"""The backbones to look for one that a method serves."""


def methods_of(name: str) -> tuple[Method, ...]:
    return (lf.RePa(), lf.EViT()) if name == PAIR else (METHODS[name](),)


def lean(name: str):
    """The methods on the first of the tiny backbones that they serve, weights away from their start."""
    for family in PLACES:
        try:
            return randomise(lf.apply(backbone(family), *methods_of(name))).eval()
        except ValueError:
            continue
    raise AssertionError(f"no tiny backbone for {name}")


def export(model, format: str, folder: Path) -> None:
    target = lf.export.TARGETS[format]
    missing = [package for package in target.packages if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed: pip install 'leanformer[{target.extra}]'")
    done = lf.export.FORMATS[format](model, folder / f"lean{target.suffix}", images=images(model, 6))
    assert done.path.is_file()
    assert done.parity.error < 1e-4
    assert done.parity.random_images >= 5
    assert done.size > 10_000


def cases(names, formats, quick=lambda name, format: True) -> list:
    marks = lambda name, format: [] if quick(name, format) and format not in SLOW else [pytest.mark.slow]  # noqa: E731
    return [pytest.param(name, format, marks=marks(name, format)) for name in names for format in formats]


@pytest.mark.parametrize(
    ("name", "format"),
    cases([*METHODS, PAIR], lf.export.FORMATS, lambda name, format: format != "openvino" or name == PAIR),
)
def test_method_goes_through(name: str, format: str, tmp_path: Path) -> None:
    export(lean(name), format, tmp_path)


@pytest.mark.parametrize(
    ("family", "format"),
    cases(BACKBONES, lf.export.FORMATS, lambda family, format: (family, format) == ("gfnet", "openvino")),
)
def test_backbone_goes_through(family: str, format: str, tmp_path: Path) -> None:
    export(backbone(family), format, tmp_path)
