"""Run under TRITON_INTERPRET=1 by the tests: the kernels of reducing and pooling blocks against float64."""

import torch
from torch import Tensor

from leanformer.methods.evit.kernels import choose_triton, class_attention_triton, reorganise_triton
from leanformer.methods.evit.kernels.class_attention import attention_with_class_row
from leanformer.methods.evit.kernels.reorganise import reorganise_in_one_pass
from leanformer.methods.sit.kernels import slim_triton
from leanformer.methods.sit.kernels.slim import slim_in_one_pass
from leanformer.methods.tome.kernels import match_triton, merge_triton, sized_attention_triton
from leanformer.methods.tome.kernels.match import match_keys
from leanformer.methods.tome.kernels.merge import merge_in_one_pass
from leanformer.methods.tome.kernels.sized_attention import sized_attention
from leanformer.speed.kernels import pool_triton, thin_conv_triton
from leanformer.speed.kernels.pool import pool_in_one_pass
from leanformer.speed.kernels.thin_conv import thin_conv, weight_of_product


def close(found: Tensor, truth: Tensor, case: object, allowed: float = 1e-5) -> None:
    assert found.shape == truth.shape, (case, found.shape, truth.shape)
    error = (found.double() - truth).norm() / truth.norm()
    assert error < allowed, (case, error)


def attention(batch: int, heads: int, tokens: int, dim: int) -> None:
    q, k, v = (torch.randn(batch, tokens, 3, heads, dim) * 1.5).permute(2, 0, 3, 1, 4).unbind(0)  # strided views
    y, row = class_attention_triton.launch(q, k, v)
    true_y, true_row = attention_with_class_row.plain(q.double(), k.double(), v.double())
    close(y, true_y, (heads, tokens, dim))
    close(row, true_row, (heads, tokens, dim))


def attention_by_size(batch: int, heads: int, tokens: int, dim: int) -> None:
    q, k, v = (torch.randn(batch, tokens, 3, heads, dim) * 1.5).permute(2, 0, 3, 1, 4).unbind(0)  # strided views
    size = torch.randint(1, 30, (batch, tokens)).float()
    truth = sized_attention.plain(q.double(), k.double(), v.double(), size.double())
    close(sized_attention_triton.launch(q, k, v, size), truth, (heads, tokens, dim))


def reorganisation(prefix: int, patches: int, keep: int, channels: int, fuse: bool, norm: str) -> None:
    x, y = torch.randn(2, 2, prefix + patches, channels)
    score = torch.rand(2, prefix + patches)[:, prefix:]  # a strided view, as in a model
    chosen = score.topk(keep, dim=1).indices
    weight = torch.randn(channels) if norm else None
    bias = torch.randn(channels) if norm == "shift" else None
    u, z = reorganise_triton.launch(x, y, score, chosen, fuse, weight, bias, 1e-6)
    wide = [None if t is None else t.double() for t in (x, y, score, weight, bias)]
    truth = reorganise_in_one_pass.plain(*wide[:3], chosen, fuse, *wide[3:], 1e-6)
    close(u, truth[0], (prefix, patches, keep, channels))
    if norm:
        close(z, truth[1], (prefix, patches, keep, channels, norm))
    else:
        assert z.numel() == 0


def matching(heads: int, patches: int, dim: int, prefix: int) -> None:
    keys = torch.randn(3, prefix + patches, 3, heads, dim)[:, :, 1].transpose(1, 2)[:, :, prefix:]  # a strided view
    assert torch.equal(match_triton.launch(keys), match_keys.plain(keys.double())), (heads, patches, dim)


def matching_odd_keys(patches: int) -> None:
    """Whatever the keys are, every patch of S has a rank of its own and a partner in T."""
    keys = torch.randn(5, 2, patches, 16)
    keys[0], keys[1, :, ::3], keys[2, :, 1] = 1.0, 0.0, float("nan")
    keys[3, :, 2], keys[4] = float("inf"), float("nan")
    rank, partner = match_triton.launch(keys).unbind(1)
    assert torch.equal(rank.sort(dim=1).values, torch.arange(rank.shape[1]).expand(5, -1)), patches
    assert ((partner >= 0) & (partner < patches // 2)).all(), patches
    assert torch.equal(rank[:3], match_keys.plain(keys)[:3, 0]), patches


def merging(prefix: int, patches: int, merged: int, channels: int, sized: bool, norm: str) -> None:
    x, y = torch.randn(2, 2, prefix + patches, channels)
    size = torch.randint(1, 9, (2, prefix + patches)).float() if sized else None
    decided = match_keys.plain(torch.randn(2, 3, patches, 16))
    weight = torch.randn(channels) if norm else None
    bias = torch.randn(channels) if norm == "shift" else None
    found = merge_triton.launch(x, y, size, decided, merged, prefix, weight, bias, 1e-6)
    wide = [None if t is None else t.double() for t in (x, y, size, weight, bias)]
    truth = merge_in_one_pass.plain(*wide[:3], decided, merged, prefix, *wide[3:], 1e-6)
    close(found[0], truth[0], (prefix, patches, merged, channels))
    close(found[2], truth[2], (prefix, patches, merged, channels))
    if norm:
        close(found[1], truth[1], (prefix, patches, merged, channels, norm))
    else:
        assert found[1].numel() == 0


def merging_keeps_types(kind: torch.dtype) -> None:
    """Sizes are as wide as those of the plain form, which compiled code counts on."""
    x, decided = torch.randn(1, 9, 16).to(kind), match_keys.plain(torch.randn(1, 2, 8, 16))
    given = (x, x, None, decided, 3, 1, None, None, 1e-6)
    pairs = zip(merge_triton.launch(*given), merge_in_one_pass.plain(*given), strict=True)
    assert all(found.dtype == truth.dtype for found, truth in pairs), kind


def slimming(prefix: int, patches: int, mixtures: int, channels: int, kind: torch.dtype = torch.float32) -> None:
    """As for one image and as for many, whose programs take several strips each; tensors whole and as views."""
    x = torch.randn(2, 2 + prefix + patches, channels + 3).to(kind)[:, 1:-1, 3:]
    plain = torch.randn(2, patches, mixtures).to(kind)
    wide = torch.randn(2, patches, mixtures + 5).to(kind)[..., :mixtures] * 3
    turned = torch.randn(2, mixtures, patches).to(kind).mT
    prior = torch.randn(mixtures, patches).to(kind) * 4
    cases = (
        (x, plain, None),
        (x, wide, prior),
        (x, turned, prior.mT.contiguous().mT),
        (x.mT.contiguous().mT, wide, None),
    )
    enough = slim_triton.MANY_PROGRAMS
    for slim_triton.MANY_PROGRAMS in (enough, 1):
        for case in cases:
            truth = slim_in_one_pass.plain(*(t if t is None else t.double() for t in case), prefix)
            found = slim_triton.launch(*case, prefix)
            close(found, truth, (prefix, patches, mixtures, channels), 1e-5 if kind == torch.float32 else 1e-3)
            assert torch.equal(found[:, :prefix], case[0][:, :prefix])
    slim_triton.MANY_PROGRAMS = enough


def pooling(batch: int, height: int, width: int, channels: int) -> None:
    x, gain = torch.randn(batch, height, width, channels) + 3, torch.randn(channels)
    truth = pool_in_one_pass.plain(x.double(), gain.double(), 1e-5)
    close(pool_triton.launch(x, gain, 1e-5), truth, (height, width, channels))


def pooling_an_odd_map(odd: float) -> None:
    """A pixel that is no finite number makes its whole image none, as in the plain form, and leaves the other image."""
    x = torch.randn(2, 6, 20, 16)
    x[0, 1, 1, 0] = odd
    found = pool_triton.launch(x, torch.ones(16), 1e-5)
    assert not found[0].isfinite().any(), odd
    assert found[1].isfinite().all(), odd


def thin_convolution(side: int, kernel: int, stride: int, padding: int, outputs: int, gelu: bool, last: bool) -> None:
    x, weight, bias = torch.randn(2, 3, side, side + 2), torch.randn(outputs, 3, kernel, kernel), torch.randn(outputs)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    shape, flat = (kernel, stride, padding, gelu), weight_of_product(weight)
    truth = thin_conv.plain(x.double(), flat.double(), bias.double(), *shape)
    close(thin_conv_triton.launch(x, flat, bias, *shape), truth, (side, *shape))


def choosing(scores: int, keep: int) -> None:
    score = torch.rand(3, 1 + scores)[:, 1:]  # a strided view, as in a model
    score[0] = 0.5  # equal scores stay in their order
    score[1, scores // 2] = float("nan")  # comes last
    found = choose_triton.launch(score, keep)
    truth = score.nan_to_num(-1.0).sort(dim=1, descending=True, stable=True).indices[:, :keep]
    assert torch.equal(found, truth), (scores, keep)


def choosing_among_odd_scores(scores: int) -> None:
    """Whatever the scores are, every one of them has a place of its own: no index is left unset."""
    nothing, most, least = float("nan"), float("inf"), float("-inf")
    score = torch.rand(6, scores)
    score[0], score[1], score[2] = nothing, 0.25, least
    score[3, ::2] = nothing
    score[4, ::3], score[4, 1::3] = most, least
    score[5, ::3], score[5, 1::3], score[5, 2::3] = nothing, least, 0.0
    found = choose_triton.launch(score, scores)
    assert torch.equal(found.sort(dim=1).values, torch.arange(scores).expand(6, -1)), scores
    few = choose_triton.launch(score, max(1, scores // 2))
    assert torch.equal(few, found[:, : max(1, scores // 2)]), scores


def main() -> None:
    torch.manual_seed(0)
    for case in ((1, 1), (77, 77), (196, 138), (300, 5)):
        choosing(*case)
    for scores in (1, 7, 33, 196):
        choosing_among_odd_scores(scores)
    for case in ((2, 3, 10, 16), (1, 2, 130, 64), (1, 1, 520, 16)):
        attention(*case)
        attention_by_size(*case)
    reorganisation(1, 10, 7, 24, True, "shift")
    reorganisation(2, 38, 20, 48, True, "scale")
    reorganisation(1, 16, 3, 96, True, "")
    reorganisation(1, 16, 16, 32, False, "shift")
    for case in ((2, 10, 16, 1), (3, 196, 64, 1), (1, 77, 32, 0), (2, 3, 16, 5)):
        matching(*case)
    for patches in (3, 9, 70):
        matching_odd_keys(patches)
    merging(1, 40, 7, 24, False, "shift")
    merging(2, 39, 19, 48, True, "scale")
    merging(0, 70, 35, 96, True, "")
    merging(1, 3, 1, 16, True, "shift")
    merging(0, 2, 1, 16, False, "")
    merging(3, 200, 90, 64, True, "scale")
    merging(5, 9, 0, 40, True, "shift")
    for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        merging_keeps_types(kind)
    for case in ((1, 21, 10, 24), (0, 77, 33, 50), (2, 30, 17, 200), (1, 1, 1, 3), (5, 64, 16, 32)):
        slimming(*case)
    slimming(1, 196, 70, 130, torch.float16)
    slimming(2, 300, 20, 140, torch.float16)
    for case in ((2, 5, 7, 16), (1, 17, 9, 64), (1, 1, 3, 96)):
        pooling(*case)
    for odd in (float("nan"), float("inf")):
        pooling_an_odd_map(odd)
    thin_convolution(12, 3, 2, 1, 12, True, True)
    thin_convolution(13, 7, 4, 2, 20, False, False)
    print("equal")


if __name__ == "__main__":
    main()
