"""Every kernel against plain torch: Triton's through its interpreter on the CPU, in a process of its own."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from helpers import randomise
from timm.layers import GroupNorm1, LayerScale2d, Mlp

from leanformer.core import Block, Branch
from leanformer.layers.products import linear_gelu, linear_gelu_reference, three_products, three_products_reference
from leanformer.methods.riformer.affine import NormResidual
from leanformer.methods.riformer.fast import MixerFreeBlock
from leanformer.methods.riformer.kernels.mixer_free import (
    block_by_products,
    channel_sums,
    in_one_pass,
    one_pass_takes,
    path_block_by_products,
)

INTERPRETED = """
import torch
from leanformer.methods.riformer.kernels.mixer_free import block_by_products, channel_sums
from leanformer.methods.riformer.kernels.mixer_free import path_block_by_products
from leanformer.methods.riformer.kernels.mixer_free_triton import block_in_one_pass, path_block_in_one_pass
torch.manual_seed(0)
for channels, pixels, hidden in ((32, 50, 128), (48, 130, 192), (64, 49, 256), (32, 50, 96), (64, 20, 16)):
    x = torch.randn(2, pixels, channels) * 2 + 0.3
    norms = [[torch.randn(channels) * 0.3 + g, torch.randn(channels) * 0.3] for g in (0, 1)]
    fc1 = [torch.randn(hidden, channels) * 0.2, torch.randn(hidden) * 0.1]
    fc2 = [torch.randn(channels, hidden) * 0.1, torch.randn(channels) * 0.1]
    y, sums = block_in_one_pass(x, channel_sums(x), *norms, fc1, fc2, 1e-5)
    truth, true_sums = block_by_products(x, channel_sums(x), *norms, fc1, fc2, 1e-5)
    assert (y - truth).norm() < 1e-3 * truth.norm(), (channels, pixels, hidden, (y - truth).abs().max())
    assert (sums - true_sums).norm() < 1e-3 * true_sums.norm(), (channels, pixels, hidden)
    for hidden in (channels, 2 * channels):
        w, b = torch.randn(channels, channels) * 0.2, torch.randn(channels) * 0.1
        into = [torch.randn(hidden, channels) * 0.2, torch.randn(hidden) * 0.1]
        weights = [w, b, *into, torch.randn(channels, hidden) * 0.1]
        y, sums = path_block_in_one_pass(x, channel_sums(x), norms[0], weights, 1e-5)
        truth, true_sums = path_block_by_products(x, channel_sums(x), norms[0], weights, 1e-5)
        assert (y - truth).norm() < 1e-3 * truth.norm(), (channels, pixels, hidden)
        assert (sums - true_sums).norm() < 1e-3 * true_sums.norm(), (channels, pixels, hidden)
    far = torch.full((2, pixels, channels), 100.0)  # rounding may make its variance less than nothing
    y, _ = block_in_one_pass(far, channel_sums(far), *norms, fc1, fc2, 1e-6)
    assert y.isfinite().all(), (channels, pixels)
    turned = x.mT.contiguous().mT
    y, _ = block_in_one_pass(turned, channel_sums(x), *norms, fc1, fc2, 1e-5)
    truth, _ = block_by_products(x, channel_sums(x), *norms, fc1, fc2, 1e-5)
    assert (y - truth).norm() < 1e-3 * truth.norm(), (channels, pixels)
print("equal")
"""


def mixer_free_block(dim: int) -> Block:
    mix = NormResidual(GroupNorm1(dim))
    ffn = Branch(GroupNorm1(dim), Mlp(dim, 4 * dim, use_conv=True), LayerScale2d(dim, 0.5))
    return randomise(Block(mix=mix, ffn=ffn, dim=dim, layout="NCHW"), scale=0.3).eval()


def test_the_one_pass_kernel_agrees_with_plain_torch_under_the_interpreter():
    pytest.importorskip("triton")
    run = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert run.stdout.strip() == "equal", run.stderr[-2000:]


def test_a_block_runs_as_one_kernel_only_in_shapes_that_the_kernel_takes():
    taken = {16: 64, 32: 96, 48: 192, 64: 256, 96: 16, 128: 512, 160: 640, 192: 768}
    refused = {8: 32, 12: 64, 24: 96, 56: 224, 72: 288, 112: 448, 320: 1280, 64: 40, 96: 8}
    assert all(one_pass_takes(*shape) for shape in taken.items())
    assert not any(one_pass_takes(*shape) for shape in refused.items())
    assert [MixerFreeBlock(mixer_free_block(dim)).one_pass for dim in (24, 32)] == [False, True]


def test_a_mixer_free_block_from_channel_sums_is_the_block_in_float64():
    block = mixer_free_block(16).double()
    x = torch.randn(2, 16, 5, 7, dtype=torch.float64) * 2 + 0.5
    rows = x.permute(0, 2, 3, 1).flatten(1, 2)
    y, sums = MixerFreeBlock(block)(rows, channel_sums(rows))
    truth = block(x).permute(0, 2, 3, 1).flatten(1, 2)
    torch.testing.assert_close(y, truth, atol=1e-5, rtol=1e-5)  # the statistics are float32
    torch.testing.assert_close(sums, channel_sums(truth), rtol=1e-4, atol=1e-3)


def test_block_by_products_needs_no_second_look_at_the_statistics():
    x = torch.randn(3, 10, 8)
    zero = torch.zeros(8)
    y, sums = block_by_products(
        x,
        channel_sums(x),
        (zero, zero),
        (zero, zero),
        (torch.zeros(16, 8), torch.zeros(16)),
        (torch.zeros(8, 16), zero),
        1e-5,
    )
    assert torch.equal(y, x)
    torch.testing.assert_close(sums, channel_sums(x))


def test_products_with_epilogues_agree_with_plain_torch_and_compile():
    x, w, b = torch.randn(2, 5, 8), torch.randn(12, 8), torch.randn(12)
    torch.testing.assert_close(linear_gelu(x, w, b), linear_gelu_reference(x, w, b), atol=1e-5, rtol=1e-5)
    square = [torch.randn(8, 8), torch.randn(8), torch.randn(6, 8), torch.randn(6), torch.randn(8, 6)]
    torch.testing.assert_close(three_products(x, *square), three_products_reference(x, *square), atol=1e-5, rtol=1e-5)
    compiled = torch.compile(
        lambda t: three_products(linear_gelu(t, w, b)[..., :8].contiguous(), *square), backend="aot_eager"
    )
    torch.testing.assert_close(compiled(x), three_products(linear_gelu(x, w, b)[..., :8].contiguous(), *square))


def test_in_float32_the_activation_is_exact_whatever_the_epilogue_of_a_device_gives(monkeypatch):
    def tanh_form(bias, rows, weight, use_gelu):
        return F.gelu(torch.addmm(bias, rows, weight), approximate="tanh")

    monkeypatch.setattr(torch, "_addmm_activation", tanh_form)
    x, w, b = 3 * torch.randn(64, 8), torch.randn(12, 8), torch.randn(12)
    torch.testing.assert_close(linear_gelu(x, w, b), linear_gelu_reference(x, w, b), atol=1e-6, rtol=1e-5)
    square = [torch.randn(8, 8), torch.randn(8), torch.randn(6, 8), torch.randn(6), torch.randn(8, 6)]
    torch.testing.assert_close(three_products(x, *square), three_products_reference(x, *square), atol=1e-5, rtol=1e-5)


def test_blocks_are_one_kernel_in_half_precision_on_a_gpu_alone():
    def on(device, dtype):
        return SimpleNamespace(is_cuda=device == "cuda", dtype=dtype)

    assert in_one_pass(on("cuda", torch.bfloat16), takes=True)
    assert in_one_pass(on("cuda", torch.float16), takes=True)
    assert not in_one_pass(on("cuda", torch.float32), takes=True)  # its programs outgrow a chip's memory
    assert not in_one_pass(on("cpu", torch.bfloat16), takes=True)
    assert not in_one_pass(on("cuda", torch.bfloat16), takes=False)


def test_an_image_that_is_nearly_its_mean_has_a_norm_all_the_same():
    x = torch.full((2, 4000, 16), 100.0)
    x[1] += 1e-4 * torch.randn(4000, 16)
    one, zero = torch.ones(16), torch.zeros(16)
    fc1, fc2 = (torch.randn(32, 16), torch.zeros(32)), (torch.randn(16, 32), zero)
    for scale in (0.1, 1.0, 7.7):
        y, _ = block_by_products(scale * x, channel_sums(scale * x), (one, zero), (one, zero), fc1, fc2, 1e-6)
        assert y.isfinite().all(), scale


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("channels", "pixels"), [(64, 3136), (96, 200), (128, 784), (192, 49)])
def test_the_one_pass_kernel_agrees_with_float64_on_the_gpu(channels, pixels):
    block = mixer_free_block(channels)
    x = torch.randn(4, channels, pixels, 1)
    truth = block.double()(x.double()).flatten(2).transpose(1, 2)
    module = MixerFreeBlock(block).to("cuda", torch.bfloat16)
    rows = x.flatten(2).transpose(1, 2).contiguous().to("cuda", torch.bfloat16)
    y, _ = module(rows, channel_sums(rows))
    error = (y.cpu().double() - truth).norm() / truth.norm()
    assert error < 1e-2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("rows", "channels", "hidden"), [((4, 197), 384, 1536), ((1, 1), 192, 768), ((3, 50), 64, 40)])
def test_products_with_epilogues_agree_with_float64_on_the_gpu(rows, channels, hidden):
    def bf16(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (scale * torch.randn(*shape)).bfloat16()

    x, b = bf16(*rows, channels), bf16(channels)
    w_in, b_in = bf16(hidden, channels, scale=channels**-0.5), bf16(hidden)
    w_out, w = bf16(channels, hidden, scale=hidden**-0.5), bf16(channels, channels, scale=channels**-0.5)
    cases = (
        (linear_gelu, linear_gelu_reference, (w_in, b_in)),
        (three_products, three_products_reference, (w, b, w_in, b_in, w_out)),
    )
    for op, reference, weights in cases:
        truth = reference(x.double(), *(each.double() for each in weights))
        for given in (x.cuda(), x.cuda().mT.contiguous().mT):  # and a turned view
            found = op(given, *(each.cuda() for each in weights)).cpu().double()
            assert found.shape == truth.shape
            assert (found - truth).norm() < 1e-2 * truth.norm(), (op, rows)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("channels", "hidden", "pixels"), [(64, 64, 3136), (96, 96, 200), (128, 256, 784), (192, 48, 49)]
)
def test_the_one_pass_kernel_of_three_products_agrees_with_float64_on_the_gpu(channels, hidden, pixels):
    x = torch.randn(4, pixels, channels).bfloat16()
    norm = [(0.3 * torch.randn(channels)).bfloat16() for _ in range(2)]
    shapes = ((channels, channels), (channels,), (hidden, channels), (hidden,), (channels, hidden))
    weights = [(torch.randn(shape) * shape[-1] ** -0.5).bfloat16() for shape in shapes]
    wide = [t.double() for t in (*norm, *weights)]
    truth, _ = path_block_by_products(x.double(), channel_sums(x), (wide[0], wide[1]), wide[2:], 1e-5)
    place = [t.cuda() for t in (*norm, *weights)]
    from leanformer.methods.riformer.kernels.mixer_free_triton import path_block_in_one_pass

    y, sums = path_block_in_one_pass(x.cuda(), channel_sums(x.cuda()), place[:2], place[2:], 1e-5)
    assert (y.cpu().double() - truth).norm() < 1e-2 * truth.norm()
    torch.testing.assert_close(sums.cpu(), channel_sums(truth), rtol=5e-2, atol=5.0)
