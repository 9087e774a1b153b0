"""Kernels of blocks that drop tokens and of blocks that pool: under Triton's interpreter, compiled, and on a GPU."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers import randomise
from timm.layers import GroupNorm1, LayerScale2d
from torch import nn

from leanformer.core import Branch
from leanformer.layers.mixers import Pooling
from leanformer.methods.evit.kernels.choose import choose_by_counting
from leanformer.methods.evit.kernels.class_attention import (
    attention_with_class_row,
)
from leanformer.methods.evit.kernels.reorganise import reorganise_in_one_pass
from leanformer.methods.sit.kernels.slim import slim_in_one_pass
from leanformer.methods.tome.kernels.match import HEAD_DIMS, match_keys, takes
from leanformer.methods.tome.kernels.merge import merge_in_one_pass
from leanformer.methods.tome.kernels.sized_attention import sized_attention
from leanformer.speed.kernels.pool import pool_in_one_pass
from leanformer.speed.kernels.thin_conv import thin_conv, weight_of_product
from leanformer.speed.modules import PooledBranch

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def off(found: torch.Tensor, truth: torch.Tensor) -> float:
    """The error of a result as a share of the truth."""
    assert found.shape == truth.shape
    return ((found.cpu().double() - truth.cpu()).norm() / truth.norm().cpu()).item()


def heads(batch: int = 2, count: int = 2, tokens: int = 10, dim: int = 16) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, tokens, 3, count, dim).permute(2, 0, 3, 1, 4).unbind(0)


def tokens(prefix: int, patches: int, keep: int, channels: int) -> tuple:
    x, y = torch.randn(2, 3, prefix + patches, channels)
    score = torch.rand(3, patches)
    return x, y, score, score.topk(keep, dim=1).indices, True, torch.randn(channels), torch.randn(channels), 1e-6


def merged_tokens(prefix: int, patches: int, merged: int, channels: int, sized: bool) -> tuple:
    x, y = torch.randn(2, 3, prefix + patches, channels)
    size = torch.randint(1, 5, (3, prefix + patches)).float() if sized else None
    decided = match_keys(torch.randn(3, 2, patches, 16))
    return x, y, size, decided, merged, prefix, torch.randn(channels), torch.randn(channels), 1e-6


def pooled_branch(dim: int) -> Branch:
    branch = Branch(GroupNorm1(dim), Pooling(3, layout="NCHW"), LayerScale2d(dim, 0.5))
    return randomise(branch, scale=0.3).double().eval()


@pytest.mark.slow
def test_the_kernels_agree_with_float64_under_the_interpreter():
    pytest.importorskip("triton")
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interpreted.py"))],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    if "only 0-dimensional arrays can be converted" in run.stderr:
        pytest.skip("this Triton's interpreter takes no loop bound that is known only at run time from this numpy")
    assert run.stdout.strip() == "equal", run.stderr[-2000:]


def test_mean_and_shift_of_the_norm_cancel_behind_a_pooling_that_subtracts_its_input():
    branch = pooled_branch(16)
    x = torch.randn(2, 16, 5, 7, dtype=torch.float64) * 2 + 0.5
    torch.testing.assert_close(PooledBranch(branch)(x), branch(x))


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        (choose_by_counting, (torch.rand(3, 20), 7)),
        (attention_with_class_row, heads()),
        (sized_attention, (*heads(), torch.randint(1, 5, (2, 10)).float())),
        (match_keys, (torch.randn(3, 2, 11, 16),)),
        (merge_in_one_pass, merged_tokens(1, 10, 4, 8, sized=True)),
        (merge_in_one_pass, (*merged_tokens(2, 9, 4, 8, sized=False)[:6], None, None, 0.0)),
        (reorganise_in_one_pass, tokens(1, 10, 4, 8)),
        (reorganise_in_one_pass, (*tokens(2, 10, 4, 8)[:4], False, None, None, 0.0)),
        (slim_in_one_pass, (torch.randn(2, 11, 8), torch.randn(2, 9, 5), torch.randn(5, 9), 2)),
        (slim_in_one_pass, (torch.randn(2, 9, 8), torch.randn(2, 9, 5), None, 0)),
        (thin_conv, (torch.randn(2, 3, 9, 9), weight_of_product(torch.randn(8, 3, 3, 3)), None, 3, 2, 1, True)),
        (pool_in_one_pass, (torch.randn(2, 4, 5, 8), torch.randn(8), 1e-5)),
    ],
)
def test_every_op_keeps_its_contract_and_compiles_whole(op, arguments):
    torch.compiler.reset()  # every op runs through one function of torch's, which is compiled eight times at most
    torch.library.opcheck(op, arguments, test_utils=("test_schema", "test_faketensor"))
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*arguments), op(*arguments))


@on_gpu
@pytest.mark.parametrize(("scores", "keep"), [(196, 138), (139, 98), (1024, 10), (5, 5)])
def test_counting_chooses_what_sorting_does_on_the_gpu(scores, keep):
    score = torch.rand(64, 1 + scores).cuda()[:, 1:]
    assert torch.equal(choose_by_counting(score, keep), score.topk(keep, dim=1).indices)
    assert torch.equal(choose_by_counting(torch.ones_like(score), keep)[0].cpu(), torch.arange(keep))


@on_gpu
@pytest.mark.parametrize(("kernel", "stride", "padding", "outputs"), [(3, 2, 1, 48), (7, 4, 2, 64), (7, 2, 3, 128)])
def test_thin_convolutions_agree_with_float64_on_the_gpu(kernel, stride, padding, outputs):
    x, weight = torch.randn(3, 3, 63, 65), torch.randn(outputs, 3, kernel, kernel) / kernel
    x, weight, bias = x.bfloat16(), weight.bfloat16(), torch.randn(outputs).bfloat16()
    truth = F.gelu(F.conv2d(x.double(), weight.double(), bias.double(), stride, padding)).permute(0, 2, 3, 1)
    flat = weight_of_product(weight).cuda()
    assert off(thin_conv(x.cuda(), flat, bias.cuda(), kernel, stride, padding, True), truth) < 1e-2


@on_gpu
@pytest.mark.parametrize(("tokens_", "dim"), [(197, 64), (140, 64), (100, 32), (577, 128), (1024, 64)])
def test_attention_with_class_row_agrees_with_float64_on_the_gpu(tokens_, dim):
    q, k, v = heads(4, 6, tokens_, dim)
    truth = attention_with_class_row.plain(q.double(), k.double(), v.double())
    y, row = attention_with_class_row(*(t.to("cuda", torch.bfloat16) for t in (q, k, v)))
    assert off(y, truth[0]) < 1e-2
    assert off(row, truth[1]) < 1e-2


@on_gpu
@pytest.mark.parametrize(("tokens_", "dim"), [(197, 64), (140, 64), (100, 32), (577, 128)])
def test_attention_by_size_agrees_with_float64_on_the_gpu(tokens_, dim):
    q, k, v = heads(4, 6, tokens_, dim)
    size = torch.randint(1, 20, (4, tokens_)).float()
    truth = sized_attention.plain(q.double(), k.double(), v.double(), size.double())
    half = [t.to("cuda", torch.bfloat16) for t in (q, k, v)]
    assert off(sized_attention(*half, size.cuda()), truth) < 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_the_most_patches_that_are_matched_fit_into_the_memory_of_a_program_of_an_h200(dim):
    triton = pytest.importorskip("triton")
    kernel = importlib.import_module("leanformer.methods.tome.kernels.match_triton")._match_kernel
    wide = next(each for each in (128, 64, 32, 16) if takes(torch.empty(1, 2, 2 * each, dim, device="meta")))
    constants = {"HEADS": 2, "D": dim, "WIDE": wide}
    types = {"keys_ptr": "*bf16", "decided_ptr": "*i64"}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    source = triton.compiler.ASTSource(
        kernel, signature, {(kernel.arg_names.index(k),): v for k, v in constants.items()}
    )
    chip = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    compiled = triton.compile(source, target=chip, options={"num_warps": 8})
    assert compiled.metadata.shared <= 227 * 1024


@pytest.mark.parametrize("patches", [3, 9, 196])
def test_programs_that_merge_few_tokens_are_as_wide_as_every_compiler_can_take(monkeypatch, patches):
    pytest.importorskip("triton")
    kernel = importlib.import_module("leanformer.methods.tome.kernels.merge_triton")
    constants: dict = {}

    class Asked:
        def __getitem__(self, grid):
            return lambda *args, **given: constants.update(given)

    monkeypatch.setattr(kernel, "_merge_kernel", Asked())
    x, y, size, decided, *rest = merged_tokens(1, patches, 1, 64, True)
    kernel.launch(x, y, size, decided, *rest)
    assert constants["MOST"] >= max(8, constants["SOURCES"])  # Triton 3.6 fails along four and fewer


@on_gpu
@pytest.mark.parametrize(
    ("count", "patches", "dim"), [(3, 196, 64), (12, 183, 64), (6, 256, 32), (2, 9, 128), (2, 128, 128)]
)
def test_patches_are_matched_on_the_gpu_as_in_float64(count, patches, dim):
    keys = torch.randn(64, 1 + patches, 3, count, dim)[:, 1:, 1].transpose(1, 2).bfloat16()  # a strided view
    found, truth = match_keys(keys.cuda()).cpu(), match_keys.plain(keys.double())
    assert (found == truth).float().mean() > 0.999  # two cosines may differ by less than float32 tells
    odd = torch.ones(4, count, patches, dim).cuda()
    odd[1], odd[2, :, ::3], odd[3, :, 1] = float("nan"), 0.0, float("inf")
    rank, partner = match_keys(odd).cpu().unbind(1)
    assert torch.equal(rank.sort(dim=1).values, torch.arange(rank.shape[1]).expand(4, -1))
    assert ((partner >= 0) & (partner < patches // 2)).all()


@on_gpu
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize(("patches", "merged", "channels"), [(196, 98, 192), (183, 13, 384), (50, 20, 768), (3, 1, 64)])
def test_merging_in_one_pass_agrees_with_float64_on_the_gpu(patches, merged, channels, sized, kind):
    x, y, size, decided, *rest = merged_tokens(1, patches, merged, channels, sized)
    numbers, (weight, bias, eps) = rest[:2], rest[2:]
    wide = [None if t is None else t.double() for t in (x, y, size, weight, bias)]
    truth = merge_in_one_pass.plain(*wide[:3], decided, *numbers, *wide[3:], eps)
    given = [None if t is None else t.to("cuda", kind) for t in (x, y, weight, bias)]
    sizes = None if size is None else size.cuda()
    found = merge_in_one_pass(*given[:2], sizes, decided.cuda(), *numbers, *given[2:], eps)
    allowed = 1e-2 if kind == torch.bfloat16 else 1e-5
    assert off(found[0], truth[0]) < allowed
    assert off(found[1], truth[1]) < allowed
    assert torch.equal(found[2].cpu().double(), truth[2])


@on_gpu
@pytest.mark.parametrize(("patches", "keep", "channels"), [(196, 138, 384), (139, 98, 768), (49, 25, 192)])
def test_reorganisation_in_one_pass_agrees_with_float64_on_the_gpu(patches, keep, channels):
    x, y, score, chosen, fuse, weight, bias, eps = tokens(1, patches, keep, channels)
    wide = (x.double(), y.double(), score.double(), chosen, fuse, weight.double(), bias.double(), eps)
    truth = reorganise_in_one_pass.plain(*wide)
    half = [t.to("cuda", torch.bfloat16) for t in (x, y, weight, bias)]
    u, z = reorganise_in_one_pass(*half[:2], score.cuda(), chosen.cuda(), fuse, *half[2:], eps)
    assert off(u, truth[0]) < 1e-2
    assert off(z, truth[1]) < 1e-2


@on_gpu
@pytest.mark.parametrize("batch", [1, 3, 256])
@pytest.mark.parametrize(
    ("prefix", "patches", "mixtures", "channels"),
    [(1, 196, 98, 384), (1, 98, 49, 384), (1, 49, 24, 384), (0, 77, 13, 50), (2, 576, 288, 192)],
)
def test_slimming_in_one_pass_agrees_with_float64_on_the_gpu(batch, prefix, patches, mixtures, channels):
    x, logits = torch.randn(batch, prefix + patches, channels), 2 * torch.randn(batch, patches, mixtures)
    half = [t.to("cuda", torch.bfloat16) for t in (x, logits)]
    for prior in (None, torch.randn(mixtures, patches, device="cuda", dtype=torch.bfloat16)):
        truth = slim_in_one_pass.plain(*(t if t is None else t.double() for t in (*half, prior)), prefix)
        found = slim_in_one_pass(*half, prior, prefix)
        assert off(found, truth) < 1e-2
        assert torch.equal(found[:, :prefix], half[0][:, :prefix])
        turned = None if prior is None else prior.mT.contiguous().mT
        assert off(slim_in_one_pass(*half, turned, prefix), truth) < 1e-2
    exact = slim_in_one_pass(x.cuda(), logits.cuda(), None, prefix)
    assert off(exact, slim_in_one_pass.plain(x.double(), logits.double(), None, prefix)) < 1e-5


@on_gpu
@pytest.mark.parametrize(("side", "channels"), [(56, 64), (28, 96), (14, 320), (7, 768)])
def test_pooling_in_one_pass_agrees_with_float64_on_the_gpu(side, channels):
    branch: nn.Module = pooled_branch(channels)
    x = torch.randn(2, channels, side, side, dtype=torch.float64)
    module = PooledBranch(branch).to("cuda", torch.bfloat16)
    found = module(x.to("cuda", torch.bfloat16, memory_format=torch.channels_last))
    assert off(found, branch(x)) < 1e-2
