"""The cases of the suite `kernels`: each kernel, the same work in torch, and arguments at shapes that models have."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanformer.methods.evit.kernels.choose import choose_by_counting
from leanformer.methods.evit.kernels.class_attention import attention_with_class_row
from leanformer.methods.evit.kernels.reorganise import reorganise_in_one_pass
from leanformer.methods.sit.kernels.slim import slim_in_one_pass
from leanformer.methods.tome.kernels.match import match_keys
from leanformer.methods.tome.kernels.merge import merge_in_one_pass
from leanformer.speed.kernels.fp8 import fp8_linear, fp8_linear_reference, quantise_rows
from leanformer.speed.kernels.pool import pool_in_one_pass
from leanformer.speed.kernels.thin_conv import thin_conv, weight_of_product

Build = Callable[[torch.device, torch.dtype], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """One kernel at one shape: the function in its two forms, its arguments, and what it must move and multiply."""

    label: str
    kernel: Callable[..., Any]
    reference: Callable[..., Any]
    arguments: Build
    moved: int
    """Numbers that must be read or written."""
    flops: int = 0
    compiled: bool = False
    """Whether the kernel's form is compiled as well: where it is more than one call."""
    also: dict[str, Callable[..., Any]] = field(default_factory=dict)


DEIT = {"DeiT-Ti": 3, "DeiT-S": 6, "DeiT-B": 12}
STAGES = {"PoolFormer-S12": (64, 128, 320, 512), "PoolFormer-M36": (96, 192, 384, 768)}
STEMS = {"LV-ViT+": (3, 2, 1, 48), "PoolFormer-S12": (7, 4, 2, 64)}
LINEARS = {"DeiT-S qkv": (384, 1152), "DeiT-B fc1": (768, 3072), "ViT-L fc1": (1024, 4096)}


def cases(batches: tuple[int, ...] = (256, 1)) -> Iterator[Case]:
    """All cases; poolings, stems and fp8 products at the first batch size only."""
    for batch in batches:
        for model, heads in DEIT.items():
            yield attention_case(model, heads, batch, tokens=197)
            yield reorganisation_case(model, 64 * heads, batch, patches=196, keep=138)
            yield matching_case(model, heads, batch, patches=196)
            yield merging_case(model, 64 * heads, batch, patches=196, merged=58)
            yield merging_case(model, 64 * heads, batch, patches=196, merged=13)
        yield ranking_case(batch, patches=196, keep=138)
        yield slimming_case("SiT-S", 384, batch, patches=196, mixtures=98)
    yield attention_case("DeiT-S", 6, batches[0], tokens=140)
    yield reorganisation_case("DeiT-S", 384, batches[0], patches=139, keep=98)
    for model, widths in STAGES.items():
        for side, channels in zip((56, 28, 14, 7), widths, strict=True):
            yield pooling_case(model, batches[0], side, channels)
    for name, (kernel, stride, padding, outward) in STEMS.items():
        yield stem_case(name, batches[0], kernel, stride, padding, outward)
    for name, (inward, outward) in LINEARS.items():
        yield fp8_case(name, 197 * batches[0], inward, outward)


def attention_case(model: str, heads: int, batch: int, tokens: int) -> Case:
    shape = (batch, tokens, 3, heads, 64)
    numbers = batch * tokens * heads * 64
    return Case(
        f"attention with class row, {model}, {tokens} tokens, batch {batch}.",
        attention_with_class_row, attention_with_class_row.plain, functools.partial(_heads, shape),
        moved=4 * numbers, flops=4 * numbers * tokens, also={"attention alone": _attention_alone},
    )  # fmt: skip


def reorganisation_case(model: str, channels: int, batch: int, patches: int, keep: int) -> Case:
    return Case(
        f"tokens reorganised, {model}, {patches} to {keep} patches, batch {batch}.",
        reorganise_in_one_pass, reorganise_in_one_pass.plain,
        functools.partial(_tokens, batch, patches, keep, channels),
        moved=2 * batch * channels * (1 + patches + keep + 2),
    )  # fmt: skip


def matching_case(model: str, heads: int, batch: int, patches: int) -> Case:
    sources = (patches + 1) // 2
    return Case(
        f"pairs found, {model}, {patches} patches, batch {batch}.",
        match_keys, match_keys.plain, functools.partial(_keys, (batch, 1 + patches, 3, heads, 64)),
        moved=batch * (patches * heads * 64 + 8 * sources), flops=2 * batch * sources * (patches - sources) * 64,
    )  # fmt: skip


def merging_case(model: str, channels: int, batch: int, patches: int, merged: int) -> Case:
    return Case(
        f"tokens merged, {model}, {merged} of {patches} patches, batch {batch}.",
        merge_in_one_pass, merge_in_one_pass.plain,
        functools.partial(_to_merge, batch, patches, merged, channels),
        moved=2 * batch * channels * (2 * (1 + patches) - merged),
    )  # fmt: skip


def ranking_case(batch: int, patches: int, keep: int) -> Case:
    return Case(
        f"tokens ranked, {keep} of {patches}, batch {batch}.",
        choose_by_counting, choose_by_counting.plain, functools.partial(_scores, batch, patches, keep),
        moved=batch * (2 * patches + 4 * keep),
    )  # fmt: skip


def slimming_case(model: str, channels: int, batch: int, patches: int, mixtures: int) -> Case:
    return Case(
        f"tokens slimmed, {model}, {patches} to {mixtures} patches, batch {batch}.",
        slim_in_one_pass, slim_in_one_pass.plain,
        functools.partial(_slimmed, batch, patches, mixtures, channels),
        moved=batch * (channels * (patches + mixtures + 2) + patches * mixtures) + mixtures * patches,
        flops=2 * batch * mixtures * patches * channels,
    )  # fmt: skip


def pooling_case(model: str, batch: int, side: int, channels: int) -> Case:
    return Case(
        f"pooling with its norm, {model}, {side} x {side} x {channels}, batch {batch}.",
        pool_in_one_pass, pool_in_one_pass.plain, functools.partial(_map, batch, side, channels),
        moved=3 * batch * side * side * channels,  # the statistics need the whole map before the first output
    )  # fmt: skip


def stem_case(name: str, batch: int, kernel: int, stride: int, padding: int, outward: int) -> Case:
    side = 224 // stride
    options = {"kernel": kernel, "stride": stride, "padding": padding}
    return Case(
        f"first convolution with GELU, {name}, {kernel} x {kernel} / {stride}, 3 to {outward}, batch {batch}.",
        functools.partial(_by_product, **options), functools.partial(_convolution, **options),
        functools.partial(_pictures, batch, kernel, outward),
        moved=batch * (3 * 224**2 + outward * side**2), flops=2 * batch * side**2 * kernel**2 * 3 * outward,
    )  # fmt: skip


def fp8_case(name: str, rows: int, inward: int, outward: int) -> Case:
    return Case(
        f"fp8 product, {name}, {rows} x {inward} to {outward}.",
        _fp8, _linear, functools.partial(_rows, rows, inward, outward),
        moved=rows * (inward + outward), flops=2 * rows * inward * outward, compiled=True,
    )  # fmt: skip


def _heads(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return torch.randn(shape, device=device).to(dtype).permute(2, 0, 3, 1, 4).unbind(0)  # strided, as in a model


def _keys(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (_heads(shape, device, dtype)[1][:, :, 1:],)


def _to_merge(batch: int, patches: int, merged: int, channels: int, device: torch.device, dtype: torch.dtype) -> tuple:
    x, y = torch.randn(2, batch, 1 + patches, channels, device=device).to(dtype)
    size = torch.randint(1, 5, (batch, 1 + patches), device=device).float()
    decided = match_keys.plain(torch.randn(batch, 2, patches, 16, device=device))
    weight, bias = torch.randn(2, channels, device=device).to(dtype)
    return x, y, size, decided, merged, 1, weight, bias, 1e-6


def _tokens(batch: int, patches: int, keep: int, channels: int, device: torch.device, dtype: torch.dtype) -> tuple:
    x, y = torch.randn(2, batch, 1 + patches, channels, device=device).to(dtype)
    score = torch.rand(batch, 1 + patches, device=device).softmax(1)[:, 1:]  # (B, P)
    weight, bias = torch.randn(2, channels, device=device).to(dtype)
    return x, y, score, score.topk(keep, dim=1).indices, True, weight, bias, 1e-6


def _scores(batch: int, patches: int, keep: int, device: torch.device, dtype: torch.dtype) -> tuple:
    return torch.rand(batch, patches, device=device), keep


def _slimmed(batch: int, patches: int, mixtures: int, channels: int, device: torch.device, dtype: torch.dtype) -> tuple:
    x = torch.randn(batch, 1 + patches, channels, device=device).to(dtype)
    logits = torch.randn(batch, patches, mixtures, device=device).to(dtype)
    prior = torch.randn(patches, mixtures, device=device).to(dtype).mT  # in memory as the logits are, as in a model
    return x, logits, prior, 1


def _map(batch: int, side: int, channels: int, device: torch.device, dtype: torch.dtype) -> tuple:
    x = torch.randn(batch, side, side, channels, device=device).to(dtype)
    return x, torch.rand(channels, device=device).to(dtype), 1e-5


def _rows(rows: int, inward: int, outward: int, device: torch.device, dtype: torch.dtype) -> tuple:
    weight = torch.randn(outward, inward, device=device) / inward**0.5
    x = torch.randn(rows, inward, device=device)
    return x.to(dtype), weight.to(dtype), *quantise_rows(weight), torch.zeros(outward, device=device).to(dtype)


def _pictures(batch: int, kernel: int, outward: int, device: torch.device, dtype: torch.dtype) -> tuple:
    x = torch.randn(batch, 3, 224, 224, device=device).to(dtype).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(outward, 3, kernel, kernel, device=device).to(dtype) / kernel
    weight = weight.contiguous(memory_format=torch.channels_last)
    return x, weight, weight_of_product(weight), torch.zeros(outward, device=device).to(dtype)


def _by_product(x: Tensor, weight: Tensor, flat: Tensor, bias: Tensor, **options: int) -> Tensor:
    return thin_conv(x, flat, bias, **options, gelu=True)


def _convolution(x: Tensor, weight: Tensor, flat: Tensor, bias: Tensor, kernel: int, stride: int, padding: int) -> Any:
    return F.gelu(F.conv2d(x, weight, bias, stride, padding)).permute(0, 2, 3, 1)


def _attention_alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _fp8(x: Tensor, weight: Tensor, rounded: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return (fp8_linear if x.is_cuda else fp8_linear_reference)(x, rounded, scale, bias)


def _linear(x: Tensor, weight: Tensor, rounded: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight, bias)
