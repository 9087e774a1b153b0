"""SiT on a ViT that was trained for real, and real photographs."""

from pathlib import Path

import pytest
import torch

import leanformer as lf
from leanformer.train.packs import read_pack


@pytest.mark.slow
@torch.no_grad()
def test_the_grid_start_keeps_most_of_a_trained_models_accuracy_and_the_random_start_none(shared: Path):
    pack = read_pack(shared / "data" / "nips17_imagenet_224.npz")
    chosen = range(0, 1000, 21)
    images, labels = pack.decode(chosen) / 127.5 - 1, pack.labels[list(chosen)]
    weights = shared / "data" / "vit_tiny_patch16_224_in1k_fp16.safetensors"
    teacher = lf.create("vit_tiny_patch16_224", checkpoint=weights).eval()

    def accuracy(model: torch.nn.Module) -> float:
        return (model(images).argmax(1) == labels).float().mean().item()

    grid, random = (lf.apply(teacher, lf.SiT(at=(7, 9), start=start)) for start in ("grid", "random"))
    assert accuracy(teacher) > 0.75
    assert accuracy(grid) > 0.6
    assert accuracy(random) < 0.2
