"""What a chip bounds: how many programs lie along an axis, how much memory each has, how large its blocks are."""

import importlib
import sys
import types
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from leanformer.layers.kernels import _by_kernel
from leanformer.methods.evit.kernels.choose import choose_by_counting
from leanformer.methods.evit.kernels.class_attention import attention_with_class_row
from leanformer.methods.evit.kernels.reorganise import reorganise_in_one_pass
from leanformer.methods.riformer.kernels.mixer_free import block_by_products, channel_sums, path_block_by_products
from leanformer.methods.sit.kernels.slim import slim_in_one_pass
from leanformer.methods.tome.kernels.match import match_keys
from leanformer.methods.tome.kernels.merge import merge_in_one_pass
from leanformer.methods.tome.kernels.sized_attention import sized_attention
from leanformer.speed.kernels.pool import pool_in_one_pass
from leanformer.speed.kernels.thin_conv import thin_conv, weight_of_product

triton = pytest.importorskip("triton")
MOST_IN_A_ROW = 65535
"""Programs along the second and third axis of a launch; along the first there may be two thousand million."""
LARGEST_BLOCK = 2**20
"""Numbers in one block of a program, which Triton takes."""


class Asked:
    """Stands for a kernel: keeps what it is launched with."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []
        self.constants: dict[str, Any] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self.grids.append(grid)
        return lambda *arguments, **constants: self.constants.update(constants)


class Full:
    """Stands for a kernel whose programs need more memory than the chip has."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        raise triton.OutOfResources(131072, 101376, "shared memory")


def tokens(batch: int, patches: int = 4, channels: int = 2) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, patches, channels), torch.rand(batch, patches)


def heads(batch: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(3, batch, 1, 4, 16))


def calls(batch: int) -> dict[str, tuple[Any, str, tuple[Any, ...]]]:
    """Kernel → its operator, its module, and small arguments of so many images."""
    x, score = tokens(batch)
    decided = match_keys.plain(torch.randn(batch, 1, 4, 16))
    evit, tome = "leanformer.methods.evit.kernels", "leanformer.methods.tome.kernels"
    weight = weight_of_product(torch.randn(4, 3, 2, 2))
    return {
        "_choose_kernel": (choose_by_counting, f"{evit}.choose_triton", (score, 2)),
        "_attention_kernel": (attention_with_class_row, f"{evit}.class_attention_triton", heads(batch)),
        "_reorganise_kernel": (
            reorganise_in_one_pass, f"{evit}.reorganise_triton",
            (x, x, score, score.topk(2, dim=1).indices, True, None, None, 1e-6),
        ),
        "_slim_kernel": (
            slim_in_one_pass, "leanformer.methods.sit.kernels.slim_triton", (x, torch.randn(batch, 4, 2), None, 0)
        ),
        "_match_kernel": (match_keys, f"{tome}.match_triton", (torch.randn(batch, 1, 4, 16),)),
        "_merge_kernel": (merge_in_one_pass, f"{tome}.merge_triton", (x, x, None, decided, 1, 0, None, None, 1e-6)),
        "_sized_attention_kernel": (
            sized_attention, f"{tome}.sized_attention_triton", (*heads(batch), torch.ones(batch, 4))
        ),
        "_pool_kernel": (
            pool_in_one_pass, "leanformer.speed.kernels.pool_triton",
            (torch.randn(batch, 2, 1, 2), torch.randn(2), 1e-5),
        ),
        "_thin_conv_kernel": (
            thin_conv, "leanformer.speed.kernels.thin_conv_triton",
            (torch.randn(batch, 3, 4, 4), weight, None, 2, 1, 0, True),
        ),
    }  # fmt: skip


KERNELS = sorted(calls(1))


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_launched_for_more_images_than_fit_along_the_second_axis(monkeypatch, name):
    _, module, given = calls(70_000)[name]
    kernels = importlib.import_module(module)
    asked = Asked()
    for each in {name, "_sums_kernel"} & set(vars(kernels)):
        monkeypatch.setattr(kernels, each, asked)
    kernels.launch(*given)
    assert asked.grids
    for grid in asked.grids:
        assert all(1 <= programs <= MOST_IN_A_ROW for programs in grid[1:]), grid
        assert 1 <= grid[0] < 2**31


def mixer_free(batch: int, channels: int = 16) -> tuple[Any, ...]:
    x, pair = torch.randn(batch, 3, channels), [torch.randn(channels), torch.randn(channels)]
    square = torch.randn(channels, channels)
    return x, channel_sums(x), pair, [square, pair[0]]


def test_mixer_free_blocks_are_launched_for_as_many(monkeypatch):
    kernels = importlib.import_module("leanformer.methods.riformer.kernels.mixer_free_triton")
    monkeypatch.setattr(kernels, "_block_kernel", asked := Asked())
    x, sums, pair, product = mixer_free(70_000)
    kernels.block_in_one_pass(x, sums, pair, pair, product, product, 1e-5)
    kernels.path_block_in_one_pass(x, sums, pair, [*product, *product, product[0]], 1e-5)
    assert asked.grids == [(70_000,), (70_000,)]


@pytest.mark.parametrize("name", KERNELS)
def test_where_a_chip_has_too_little_memory_for_a_kernel_torch_computes_the_same(monkeypatch, name):
    op, module, given = calls(2)[name]
    kernels = importlib.import_module(module)
    for each in {name, "_sums_kernel"} & set(vars(kernels)):
        monkeypatch.setattr(kernels, each, Full())
    torch.testing.assert_close(_by_kernel(module, op.plain)(*given), op.plain(*given))


def test_mixer_free_blocks_go_by_products_where_a_chip_has_too_little_memory(monkeypatch):
    kernels = importlib.import_module("leanformer.methods.riformer.kernels.mixer_free_triton")
    monkeypatch.setattr(kernels, "_block_kernel", Full())
    x, sums, pair, product = mixer_free(2)
    weights = [*product, *product, product[0]]
    found = kernels.block_in_one_pass(x, sums, pair, pair, product, product, 1e-5)
    norm, layer = (pair[0], pair[1]), (product[0], product[1])
    torch.testing.assert_close(found, block_by_products(x, sums, norm, norm, layer, layer, 1e-5))
    found = kernels.path_block_in_one_pass(x, sums, pair, weights, 1e-5)
    torch.testing.assert_close(found, path_block_by_products(x, sums, norm, weights, 1e-5))


def test_a_kernel_is_launched_on_the_gpu_that_holds_its_input(monkeypatch):
    current = ["cuda:0"]

    @contextmanager
    def device(name):
        current.append(name)
        yield
        current.pop()

    module = types.ModuleType("some_triton")
    module.launch = lambda x: current[-1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_triton", module)
    monkeypatch.setattr(torch.cuda, "device", device)
    run = _by_kernel("some_triton", lambda x: "plain")
    assert run(SimpleNamespace(is_cuda=True, device="cuda:1")) == "cuda:1"
    assert run(torch.zeros(1)) == "cuda:0"


@pytest.mark.parametrize(("channels", "patches"), [(16, 4096), (32, 1369), (384, 4096), (2048, 196)])
def test_narrow_models_with_many_tokens_compare_no_more_than_a_block_holds(monkeypatch, channels, patches):
    kernels = importlib.import_module("leanformer.methods.evit.kernels.reorganise_triton")
    monkeypatch.setattr(kernels, "_reorganise_kernel", asked := Asked())
    x, score = tokens(1, patches, channels)
    kernels.launch(x, x, score, score.topk(patches // 2 + 1, dim=1).indices, True, None, None, 1e-6)
    assert asked.constants["TOKENS"] * asked.constants["KEPT"] <= LARGEST_BLOCK // 8
    assert asked.constants["TOKENS"] * asked.constants["WIDE"] <= LARGEST_BLOCK // 8
