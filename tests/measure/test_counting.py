"""Parameters and MACs: the closed forms of known models, and operators that other counters get wrong."""

import copy
from math import prod

import pytest
import torch
from families import BACKBONES, VIT, backbone
from torch import nn

import leanformer as lf
from leanformer.measure import count, count_modules


def on_meta(name: str, **arguments) -> nn.Module:
    with torch.device("meta"):
        return lf.create(name, **arguments)


@pytest.mark.parametrize(
    ("name", "giga"),
    [
        ("deit_tiny_patch16_224", 1.254),
        ("deit_small_patch16_224", 4.599),
        ("deit_base_patch16_224", 17.564),
        ("swin_tiny_patch4_window7_224", 4.491),
        ("swin_small_patch4_window7_224", 8.741),
        ("swin_base_patch4_window7_224", 15.431),
        ("mixer_b16_224", 12.602),
        ("mixer_l16_224", 44.548),
    ],
)
def test_macs_of_known_models(name: str, giga: float) -> None:
    counted = count(on_meta(name))
    assert round(counted.macs / 1e9, 3) == giga
    assert counted.pooling == 0


def _vit_macs(n: int, c: int, depth: int, patch: int, classes: int) -> int:
    """One block: q, k, v and projection, two attention products, and an MLP of four times the width."""
    block = 4 * n * c * c + 2 * n * n * c + 8 * n * c * c
    return (n - 1) * c * 3 * patch**2 + depth * block + c * classes


@pytest.mark.parametrize(("size", "dim", "depth"), [(224, 192, 12), (384, 384, 12), (32, 48, 3)])
def test_vision_transformers_follow_the_closed_form(size: int, dim: int, depth: int) -> None:
    arguments = {"img_size": size, "embed_dim": dim, "depth": depth, "num_heads": 3, "num_classes": 10}
    model = on_meta("vit", patch_size=16, **arguments)
    assert count(model).macs == _vit_macs((size // 16) ** 2 + 1, dim, depth, 16, 10)


def test_swin_tiny_follows_the_closed_form() -> None:
    def stage(side: int, c: int, depth: int) -> int:
        n = side * side
        return depth * (12 * n * c * c + 2 * n * 49 * c)

    merging = sum((side // 2) ** 2 * 4 * c * 2 * c for side, c in ((56, 96), (28, 192), (14, 384)))
    stages = stage(56, 96, 2) + stage(28, 192, 2) + stage(14, 384, 6) + stage(7, 768, 2)
    expected = 56 * 56 * 96 * 3 * 16 + stages + merging + 768 * 1000
    assert count(on_meta("swin_tiny_patch4_window7_224")).macs == expected


def test_mixer_follows_the_closed_form() -> None:
    n, c, depth = 196, 768, 12
    block = 2 * n * (c // 2) * c + 2 * n * c * 4 * c
    assert count(on_meta("mixer_b16_224")).macs == n * c * 3 * 256 + depth * block + c * 1000


def test_a_part_without_weights_multiplies_nothing() -> None:
    assert count(torch.nn.GELU(), (4, 8)).macs == 0


def test_parts_add_up_to_the_whole() -> None:
    parts = count_modules(on_meta("vit", **VIT))
    blocks = [part for path, part in parts.items() if path.startswith("blocks.") and path.count(".") == 1]
    whole, stem, head = parts[""], parts["patch_embed"], parts["head"]
    assert sum(block.macs for block in blocks) + stem.macs + head.macs == whole.macs
    assert parts["blocks.0"].macs == parts["blocks.0.mix"].macs + parts["blocks.0.ffn"].macs


def test_pooling_is_counted_apart() -> None:
    parts = count_modules(backbone("timm_poolformer"))
    first = 16 * 16 * 16 * 9  # channels x height x width x window
    assert parts["stages.0.blocks.0.mix"].pooling == first
    assert parts["stages.0.blocks.0.mix"].macs == 0
    assert parts[""].pooling == 9 * sum(c * s * s for c, s in ((16, 16), (24, 8), (32, 4), (64, 2)))
    assert parts["stages.0.blocks.0.ffn"].macs == 2 * 16 * 16 * 16 * 64


class _Convolutions(nn.Module):
    def __init__(self, conv: nn.Module):
        super().__init__()
        self.conv = conv
        self.img_size, self.in_chans = 12, 8
        self.pretrained_cfg = {"input_size": (8, 12, 12)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


@pytest.mark.parametrize(
    ("conv", "macs"),
    [
        (nn.Conv2d(8, 16, 3, padding=1), 12 * 12 * 16 * 8 * 9),
        (nn.Conv2d(8, 16, 3, padding=1, groups=4), 12 * 12 * 16 * 2 * 9),
        (nn.Conv2d(8, 8, 7, padding=3, groups=8, bias=False), 12 * 12 * 8 * 49),
        (nn.Conv2d(8, 16, 3, stride=2, padding=1), 6 * 6 * 16 * 8 * 9),
        (nn.Conv2d(8, 16, 3, dilation=2), 8 * 8 * 16 * 8 * 9),
    ],
    ids=["dense", "grouped", "depthwise", "strided", "dilated"],
)
def test_convolutions_of_every_kind(conv: nn.Conv2d, macs: int) -> None:
    assert count(_Convolutions(conv)).macs == macs


@pytest.mark.parametrize("family", BACKBONES)
def test_mode_dtype_and_memory_of_the_model_do_not_matter(family: str) -> None:
    model = backbone(family)
    usual = count(model)
    assert usual.parameters == sum(p.numel() for p in model.parameters())
    assert usual.macs > 0
    training = copy.deepcopy(model).train()
    state = {key: value.clone() for key, value in training.state_dict().items()}
    assert count(training) == usual
    assert training.training
    assert all(torch.equal(value, state[key]) for key, value in training.state_dict().items())
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        assert count(copy.deepcopy(model).to(dtype)) == usual


def test_macs_grow_with_the_image() -> None:
    model = backbone("timm_caformer")
    small, large = count(model, (3, 64, 64)), count(model, (3, 128, 128))
    assert large.parameters == small.parameters
    assert large.macs > 4 * small.macs - prod((64, 5))


def test_a_fused_attention_counts_like_a_plain_one() -> None:
    model = backbone("vit")
    plain = copy.deepcopy(model)
    for block in lf.blocks_of(plain).values():
        block.mix.fn.fused_attn = False  # type: ignore[union-attr]
    assert count(plain) == count(model)


def test_merged_tokens_are_not_counted():
    vit = on_meta("vit", **VIT)
    assert count(lf.apply(vit, lf.ToMe(merged=4))).macs < count(vit).macs
