"""Models that choose tokens in many blocks: exports are compared in spite of ties, and a broken one is refused."""

import copy
import functools
from typing import Any

import pytest
import torch
from helpers import randomise
from torch import nn

import leanformer as lf
from leanformer.cli import main
from leanformer.core import Method
from leanformer.core.reduce import decisions
from leanformer.export import parity
from leanformer.export.parity import TIE, check, decided, random_images

SHAPE = (3, 64, 64)
METHODS: dict[str, Method] = {
    "tome in every block": lf.ToMe(merged=4),
    "evit in nine blocks": lf.EViT(keep_rate=0.8, at=tuple(range(2, 11))),
}


@functools.cache
def lean(name: str, patch_size: int = 8) -> nn.Module:
    """A method on a ViT of 12 blocks and 64 patches, or more of smaller ones."""
    torch.manual_seed(0)
    vit = lf.create("vit", img_size=64, patch_size=patch_size, embed_dim=48, depth=12, num_heads=3, num_classes=10)
    return lf.apply(randomise(vit, scale=0.05), METHODS[name]).eval()


def rounding_otherwise(model: nn.Module) -> nn.Module:
    """The model as another runtime computes it: its decisions see scores that are off by a few roundings."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(1)

    def nudge(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return (given[0] * (1 + 5e-6 * torch.randn(given[0].shape, generator=generator)), *given[1:])

    for decision in decisions(other):
        decision.register_forward_pre_hook(nudge)
    return other


def with_one_weight_changed(model: nn.Module) -> nn.Module:
    broken: Any = copy.deepcopy(model)
    broken.blocks[6].ffn.fn.fc1.weight.data[0, 0] += 1.0
    return broken


def test_every_random_image_of_a_model_that_merges_in_every_block_is_near_a_tie():
    model = lean("tome in every block")
    assert len(decisions(model)) == 12
    assert not decided(model, random_images(model, SHAPE), TIE[torch.float32]).any()


@pytest.mark.parametrize("name", METHODS)
def test_a_changed_weight_is_refused_though_every_image_is_near_a_tie(name):
    model = lean(name)
    with pytest.raises(lf.export.Drift, match="off by"):
        check(model, with_one_weight_changed(model), "broken", SHAPE)


@torch.no_grad()
def test_a_file_that_takes_the_other_side_of_a_tie_agrees():
    model = lean("tome in every block", patch_size=4)
    other, off = rounding_otherwise(model), []

    def run(x: torch.Tensor) -> torch.Tensor:
        answers = other(x)
        off.extend((answers - model(x)).abs().amax(1).tolist())
        return answers

    found = check(model, run, "tipped", SHAPE, images=random_images(model, SHAPE, seed=1))
    assert max(off) > 1e-3
    assert found.error < 1e-4
    assert found.random_images >= 8
    assert found.ties <= 2


def test_a_file_that_is_wrong_at_one_batch_size_alone_is_refused(monkeypatch):
    monkeypatch.setattr(parity, "DRAWS", 16)
    model = lean("tome in every block", patch_size=4)
    broken = with_one_weight_changed(model)
    with pytest.raises(lf.export.Drift, match="batch 1"):
        check(model, lambda x: (broken if len(x) == 1 else model)(x), "broken", SHAPE)


def test_a_file_that_is_wrong_on_every_other_image_is_refused():
    model = lean("tome in every block", patch_size=4)
    broken = with_one_weight_changed(model)
    wrong = lambda x: torch.where(x.sum((1, 2, 3))[:, None] > 0, broken(x), model(x))  # noqa: E731
    with pytest.raises(lf.export.Drift, match=r"off by .* on 3 of \d images"):
        check(model, wrong, "broken", SHAPE)


def test_a_file_that_is_wrong_on_real_images_alone_is_refused():
    model = lean("tome in every block")
    broken, real = with_one_weight_changed(model), torch.zeros(1, *SHAPE)
    with pytest.raises(lf.export.Drift, match="real images"):
        check(model, lambda x: broken(x) if not x.any() else model(x), "broken", SHAPE, images=real)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", METHODS)
def test_a_model_that_chooses_tokens_in_many_blocks_goes_to_onnx(name, tmp_path):
    pytest.importorskip("onnxruntime")
    done = lf.export.onnx(lean(name), tmp_path / "lean.onnx")
    assert done.parity.error < 1e-4
    assert done.parity.random_images >= 8
    assert done.parity.ties <= 2


@pytest.mark.exhaustive
def test_the_command_exports_a_model_that_merges_in_every_block(tmp_path):
    pytest.importorskip("onnxruntime")
    lf.save(lean("tome in every block"), tmp_path / "lean.safetensors")
    verb = ["export", str(tmp_path / "lean.safetensors"), "--format", "onnx", "--repeats", "1"]
    assert main([*verb, "--output", str(tmp_path / "lean.onnx")]) == 0


@pytest.mark.exhaustive
def test_onnx_with_a_changed_weight_leaves_no_file_though_every_image_is_near_a_tie(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("leanformer.export.source.without_fft", with_one_weight_changed)
    with pytest.raises(lf.export.Drift, match="off by"):
        lf.export.onnx(lean("tome in every block"), tmp_path / "lean.onnx")
    assert list(tmp_path.iterdir()) == []
