"""A folder as the pages assume one: a small trained model under the usual names, a lean one, and drawn photographs."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import leanformer as lf
from leanformer.backbones import MODELS, register
from leanformer.backbones.generic import vit


def docs_vit(**arguments):
    """Twelve blocks as in the models that the pages name, and small."""
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 12, "num_heads": 3, "num_classes": 10}
    return vit(**{**sizes, **arguments})


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    """The folder that each page gets a copy of."""
    folder = tmp_path_factory.mktemp("prepared")
    if "docs_vit" not in MODELS:
        register(docs_vit)
    torch.manual_seed(0)
    model = lf.create("docs_vit")
    torch.save(_timms(), folder / "vit.pth")
    lf.save(lf.apply(model, lf.EViT(keep_rate=0.7)), folder / "lean.safetensors")
    draw_photos(folder / "photos", 96)
    return folder


@pytest.fixture
def here(prepared, tmp_path, monkeypatch) -> Path:
    """A copy of that folder, which we stand in."""
    shutil.copytree(prepared, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def _timms() -> dict[str, torch.Tensor]:
    """The weights under timm's keys, as timm would save them."""
    import timm

    torch.manual_seed(0)
    return timm.create_model("docs_vit").state_dict()


def draw_photos(folder: Path, count: int) -> None:
    """Draw so many pictures of coloured blots, 40 x 40."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    y, x = np.mgrid[0:40, 0:40]
    for number in range(count):
        picture = np.zeros((40, 40, 3))
        for _ in range(4):
            centre, colour = generator.uniform(0, 40, 2), generator.uniform(0, 255, 3)
            blot = np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / generator.uniform(20, 120))
            picture += blot[..., None] * colour
        Image.fromarray(picture.clip(0, 255).astype("uint8")).save(folder / f"{number + 1:04d}.jpg")
