"""The MetaFormer family: PoolFormer's tables and its whole ablation, the hybrid models, and the baselines' README.

PoolFormer's paper counts MACs with fvcore, which adds five operations for each element that enters a GroupNorm and
nothing for a norm written out by hand; its parameters are cut, not rounded, after the first decimal. The baselines
count as we do. Neither counts frozen random matrices as parameters.
"""

from functools import partial
from typing import Any

import torch
from timm.layers import GroupNorm1
from torch import Tensor, nn

from ...backbones import create
from ...core import input_of
from ...measure import Count
from ..table import Row

PER_NORM_ELEMENT = 5


class _NormElements:
    """A forward hook that counts the elements which enter a norm."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.count += inputs[0].numel()


def fvcore(count: Count, model: nn.Module) -> tuple[float, float]:
    """Trainable parameters in M, and MACs in G with the operations of GroupNorm that fvcore adds."""
    elements = _NormElements()
    handles = [m.register_forward_pre_hook(elements) for m in model.modules() if isinstance(m, GroupNorm1)]
    with torch.no_grad():
        model.eval()(torch.empty(1, *input_of(model)["input_size"], device="meta"))
    for handle in handles:
        handle.remove()
    return trainable(count, model)[0], (count.macs + PER_NORM_ELEMENT * elements.count) / 1e9


def trainable(count: Count, model: nn.Module) -> tuple[float, float]:
    """Parameters in M without the frozen ones, and our MACs in G."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad) / 1e6, count.macs / 1e9


def _v1(table: str, label: str, name: str, params: str, macs: str, top1: str) -> Row:
    return Row(table, label, partial(create, name), params, macs, published={"top-1": top1}, counted=fvcore)


POOLFORMER = [
    _v1("PoolFormer", f"PoolFormer-{size}", f"poolformer_{size.lower()}", params, macs, top1)
    for size, params, macs, top1 in (
        ("S12", "11.9", "1.8", "77.2"),
        ("S24", "21.4", "3.4", "80.3"),
        ("S36", "30.8", "5.0", "81.4"),
        ("M36", "56.1", "8.8", "82.1"),
        ("M48", "73.4", "11.6", "82.5"),
    )
]

ABLATION = [
    _v1("ablation of S12", label, name, params, macs, top1)
    for label, name, params, macs, top1 in (
        ("baseline: pooling 3", "poolformer_s12", "11.9", "1.8", "77.2"),
        ("identity mapping", "metaformer_id_s12", "11.9", "1.8", "74.3"),
        ("global random matrix", "poolformer_s12_random", "11.9", "3.3", "75.8"),
        ("depthwise convolution", "poolformer_s12_depthwise", "11.9", "1.8", "78.1"),
        ("pooling 5", "poolformer_s12_pool5", "11.9", "1.8", "77.2"),
        ("pooling 7", "poolformer_s12_pool7", "11.9", "1.8", "77.1"),
        ("pooling 9", "poolformer_s12_pool9", "11.9", "1.8", "76.8"),
        ("LayerNorm", "poolformer_s12_layernorm", "11.9", "1.8", "76.5"),
        ("BatchNorm", "poolformer_s12_batchnorm", "11.9", "1.8", "76.4"),
        ("no norm", "poolformer_s12_nonorm", "11.9", "1.8", "46.1"),
        ("ReLU", "poolformer_s12_relu", "11.9", "1.8", "76.4"),
        ("SiLU", "poolformer_s12_silu", "11.9", "1.8", "77.2"),
        ("StarReLU (not in the paper)", "poolformer_s12_starrelu", "", "", ""),
        ("no residual", "poolformer_s12_noresidual", "11.9", "1.8", "0.1"),
        ("no channel MLP", "poolformer_s12_nomlp", "2.5", "0.2", "5.7"),
        ("pool, pool, pool, attention", "metaformer_pppa_s12_224", "14.0", "1.9", "78.3"),
        ("pool, pool, attention, attention", "metaformer_ppaa_s12_224", "16.5", "2.5", "81.0"),
        ("pool, pool, pool, spatial FC", "metaformer_pppf_s12_224", "11.9", "1.8", "77.5"),
        ("pool, pool, spatial FC, spatial FC", "metaformer_ppff_s12_224", "12.2", "1.9", "77.9"),
    )
]

SIMPLE_PARAMS = ("11.9", "21.3", "30.8", "56.1", "73.3")
SIMPLE = [
    Row(
        "baselines", f"{label}-{size.upper()}", partial(create, f"{label.lower()}_{size}"), params, macs,
        published={"top-1": top1}, counted=trainable,
    )
    for label, all_macs, accuracies in (
        ("IdentityFormer", "1.8 3.4 5.0 8.8 11.5", "74.6 78.2 79.3 80.0 80.4"),
        ("RandFormer", "1.9 3.5 5.2 9.0 11.9", "76.6 78.2 79.5 81.2 81.4"),
        ("PoolFormerV2", "1.8 3.4 5.0 8.8 11.5", "78.0 80.7 81.6 82.2 82.6"),
    )
    for size, params, macs, top1 in zip(
        ("s12", "s24", "s36", "m36", "m48"), SIMPLE_PARAMS, all_macs.split(), accuracies.split(), strict=True
    )
]  # fmt: skip

# label, suffix of the name, parameters, MACs, top-1, and top-1 after training on ImageNet-21k, for S18 S36 M36 B36
CONV: tuple[tuple[str, str, str, str, str, str], ...] = (
    ("CAFormer", "", "26 39 56 99", "4.1 8.0 13.2 23.2", "83.6 84.5 85.2 85.5", "84.1 85.8 86.6 87.4"),
    ("CAFormer", "_384", "26 39 56 99", "13.4 26.0 42.0 72.2", "85.0 85.7 86.2 86.4", "85.4 86.9 87.5 88.1"),
    ("ConvFormer", "", "27 40 57 100", "3.9 7.6 12.8 22.6", "83.0 84.1 84.5 84.8", "83.7 85.4 86.1 87.0"),
    ("ConvFormer", "_384", "27 40 57 100", "11.6 22.4 37.7 66.5", "84.4 85.4 85.6 85.7", "85.0 86.4 86.9 87.6"),
)


def _conv(label: str, suffix: str, *columns: str) -> list[Row]:
    return [
        Row(
            "baselines", f"{label}-{size.upper()}{suffix.replace('_', ' ')}",
            partial(create, f"{label.lower()}_{size}{suffix}"), params, macs,
            published={"top-1": top1, "top-1 (21k)": top1_21k},
        )
        for size, params, macs, top1, top1_21k in zip(
            ("s18", "s36", "m36", "b36"), *(column.split() for column in columns), strict=True
        )
    ]  # fmt: skip


def _activation(label: str, act: str, top1: str) -> Row:
    settings: dict[str, Any] = {"act": act, "mixer_act": act}
    build = partial(create, f"{label.lower()}_s18", **settings)
    return Row("activation of S18", f"{label} with {act}", build, published={"top-1": top1})


ACTIVATION = [
    _activation(label, act, top1)
    for label, accuracies in (("ConvFormer", "83.0 82.1 82.6 82.7"), ("CAFormer", "83.6 82.9 83.4 83.4"))
    for act, top1 in zip(("star_relu", "relu", "squared_relu", "gelu"), accuracies.split(), strict=True)
]

ROWS = [*POOLFORMER, *ABLATION, *SIMPLE, *(row for line in CONV for row in _conv(*line)), *ACTIVATION]
