"""Token merging against plain loops, and what it leaves to trace."""

import copy
import math

import pytest
import torch
from families import backbone
from torch import Tensor

import leanformer as lf
from leanformer.core import FUSED, kept_patches, traced
from leanformer.methods.tome import Match, merge


def by_loops(x: Tensor, size: Tensor, metric: Tensor, pairs: int) -> dict[frozenset[int], tuple[Tensor, float]]:
    """One image's merged patches: which old ones each stands for → its features and size."""
    unit = metric / metric.norm(dim=1, keepdim=True)
    tokens = {i: ({i}, x[i] * size[i], float(size[i])) for i in range(len(x))}
    best = {i: max(range(1, len(x), 2), key=lambda j: float(unit[i] @ unit[j])) for i in range(0, len(x), 2)}
    ranked = sorted(best, key=lambda i: -float(unit[i] @ unit[best[i]]))
    for i in ranked[:pairs]:
        members, total, count = tokens[best[i]]
        mine = tokens.pop(i)
        tokens[best[i]] = (members | mine[0], total + mine[1], count + mine[2])
    return {frozenset(members): (total / count, count) for members, total, count in tokens.values()}


@pytest.mark.parametrize(("patches", "pairs"), [(16, 5), (15, 7), (9, 1), (2, 1)])
def test_merging_is_what_loops_over_pairs_give(patches: int, pairs: int):
    torch.manual_seed(patches)
    x, metric = torch.randn(3, patches, 8).double(), torch.randn(3, patches, 6).double()
    size = torch.randint(1, 9, (3, patches)).double()
    decided = Match()(metric)
    found, sizes = merge(x, size, decided, pairs)
    members, counts = merge(
        torch.eye(patches).double().expand(3, -1, -1), torch.ones(3, patches).double(), decided, pairs
    )
    for image in range(3):
        want = by_loops(x[image], size[image], metric[image], pairs)
        assert found.shape[1] == len(want) == patches - pairs
        for row, row_size, who, count in zip(found[image], sizes[image], members[image], counts[image]):
            features, number = want[frozenset((who * count).round().nonzero().flatten().tolist())]
            torch.testing.assert_close(row, features)
            assert math.isclose(row_size, number)


@torch.no_grad()
def test_attention_to_a_merged_token_counts_for_all_its_patches():
    """Two equal patches merged answer as the two unmerged ones do."""
    model = lf.apply(backbone("vit"), lf.ToMe(merged=(1, 0, 0, 0))).double().eval()
    branch, plain = model.blocks[0].mix, copy.deepcopy(backbone("vit")).double().blocks[1]
    x = torch.randn(1, 6, 32).double()
    x[:, 2] = x[:, 1]  # the first patches of S and T are the same
    once = branch.merged_tokens(x, None, torch.stack([x, x], 1), 1)
    joined = torch.cat([once[0], once[1][..., None]], dim=2)
    assert once[1].max() == 2
    merged_in = model.blocks[1](joined)[..., :32]
    unmerged = plain(x)
    torch.testing.assert_close(merged_in[:, 0], unmerged[:, 0])


def test_counts_follow_rates_and_pairs_and_never_fall_below_half():
    model = backbone("vit")  # 16 patches, 4 blocks
    x = torch.zeros(1, 3, 32, 32)
    assert [rows.shape[1] for rows in traced(lf.apply(model, lf.ToMe(merged=3)), x)] == [13, 10, 7, 4]
    assert [rows.shape[1] for rows in traced(lf.apply(model, lf.ToMe(merged=99)), x)] == [8, 4, 2, 1]
    assert [rows.shape[1] for rows in traced(lf.apply(model, lf.ToMe(keep_rate=0.75, at=(1, 3))), x)] == [12, 12, 9]


def test_every_patch_is_in_one_token_and_merged_ones_are_no_single_patch():
    model = lf.apply(backbone("vit"), lf.ToMe(merged=3)).eval()
    x = torch.randn(2, 3, 32, 32)
    for rows, patches in zip(traced(model, x), kept_patches(model, x)):
        assert torch.equal(rows.sum(1), torch.ones(2, 16))
        alone = rows.sum(2) == 1
        assert torch.equal(patches == FUSED, ~alone)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"merged": 3, "keep_rate": 0.7}, "both"),
        ({"merged": -1}, "whole number from 0"),
        ({"merged": 2.5}, "merged must be"),
        ({"keep_rate": 0.3}, "0.5 to 1"),
        ({"keep_rate": float("nan")}, "0.5 to 1"),
        ({"at": (1, 1)}, "different"),
    ],
)
def test_wrong_options_say_what_would_work(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        lf.ToMe(**options)


def test_a_block_whose_tokens_another_method_reduces_is_refused_by_its_name():
    reduced = lf.apply(backbone("vit"), lf.EViT(at=(1,)))
    with pytest.raises(ValueError, match=r"keys of attention, and blocks\.1\.mix of VisionTransformer is Reorganise"):
        lf.apply(reduced, lf.ToMe())
    merged = lf.apply(backbone("vit"), lf.ToMe(at=(1,)))
    with pytest.raises(ValueError, match=r"by attention, and blocks\.1\.mix of VisionTransformer is Merge"):
        lf.apply(merged, lf.EViT(at=(1,)))


def test_slimming_before_merged_tokens_works_and_behind_them_is_refused():
    merging, x = lf.ToMe(at=(1,)), torch.zeros(1, 3, 32, 32)
    assert lf.apply(backbone("vit"), merging, lf.SiT(at=(1,), start="random"))(x).shape == (1, 5)
    for order in ((merging, lf.SiT(at=(3,), start="random")), (lf.SiT(at=(3,), start="random"), merging)):
        with pytest.raises(ValueError, match=r"blocks\.3\.pre \(TokenSlimming\) .* blocks\.2\.mix \(Merge\) hands"):
            lf.apply(backbone("vit"), *order)


def test_settings_for_other_numbers_of_blocks_are_refused():
    with pytest.raises(ValueError, match="one for each of the 4 blocks"):
        lf.apply(backbone("vit"), lf.ToMe(merged=(1, 2)))


def test_families_without_attention_over_a_sequence_are_refused_with_the_reason():
    for family, reason in (("swin", "windows"), ("mixer", "keys of attention"), ("poolformer", "map")):
        with pytest.raises(ValueError, match=reason):
            lf.apply(backbone(family), lf.ToMe())
