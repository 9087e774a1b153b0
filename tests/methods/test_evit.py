"""EViT against its equations: which tokens stay, what the fused one is, and where each came from."""

import math

import pytest
import torch
from helpers import randomise
from timm.layers import Attention
from torch import Tensor, nn

import leanformer as lf
from leanformer.core import FUSED, Branch, decision_paths, kept_patches, single_patches, taps, trace
from leanformer.layers.attention import attend, class_attention, mean_attention
from leanformer.methods.evit.method import Reorganise

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 5}


def tiny(name: str = "vit", **arguments) -> nn.Module:
    return randomise(lf.create(name, **{**TINY, **arguments})).eval()


def images(size: tuple[int, int] = (32, 32), batch: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(1)).to(dtype)


def reference(branch: Branch, x: Tensor, prefix: int, keep_rate: float, fuse: bool) -> Tensor:
    """The paper's Algorithm 1, one image and one head at a time, behind a prefix of any length."""
    attention, out = branch.fn, []
    dim = attention.head_dim
    for tokens in branch.norm(x):
        q, k, v = attention.qkv(tokens).chunk(3, dim=1)
        heads, row = [], torch.zeros(len(tokens), dtype=x.dtype)
        for h in range(attention.num_heads):
            part = slice(h * dim, (h + 1) * dim)
            qh, kh = attention.q_norm(q[:, part]), attention.k_norm(k[:, part])
            probabilities = torch.exp(qh @ kh.T / math.sqrt(dim))
            probabilities = probabilities / probabilities.sum(1, keepdim=True)
            heads.append(probabilities @ v[:, part])
            row += probabilities[0] / attention.num_heads
        out.append((attention.proj(torch.cat(heads, dim=1)), row[prefix:]))
    result = []
    for tokens, (y, row) in zip(x, out):
        y = tokens + branch.scale(y)
        count = math.ceil(keep_rate * len(row))
        order = sorted(range(len(row)), key=lambda i: -row[i].item())
        rows = [y[i] for i in range(prefix)] + [y[prefix + i] for i in order[:count]]
        if fuse:
            rows.append(sum(row[i] * y[prefix + i] for i in order[count:]))
        result.append(torch.stack(rows))
    return torch.stack(result)


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("vit", {}),
        ("vit", {"qk_norm": True, "init_values": 0.5}),
        ("deit_tiny_distilled_patch16_224", {}),
        ("vit_small_patch14_reg4_dinov2", {}),
    ],
)
def test_the_fast_path_agrees_with_the_equations_head_by_head(name, arguments, fuse):
    model = lf.apply(tiny(name, **arguments), lf.EViT(keep_rate=0.6, fuse_tokens=fuse)).double()
    prefix = model.blocks[0].grid.prefix
    x = torch.randn(2, prefix + 16, 32, dtype=torch.float64)
    branch = model.blocks[1].mix
    with torch.no_grad():
        assert (branch(x) - reference(branch, x, prefix, 0.6, fuse)).abs().max() < 1e-12


@pytest.mark.parametrize("options", [{}, {"qk_norm": True, "scale_norm": True, "gated": True, "qkv_bias": True}])
def test_attend_is_timms_attention_and_reads_the_scores_of_its_map(options):
    attention = randomise(Attention(32, num_heads=4, norm_layer=nn.LayerNorm, **options)).double().eval()
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    y, row = attend(attention, x, "class")
    assert torch.allclose(y, attention(x), atol=1e-12)
    seen = []
    attention.fused_attn = False
    attention.attn_drop.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    attention(x)
    assert torch.allclose(row, seen[0][:, :, 0].mean(1), atol=1e-12)
    assert torch.allclose(attend(attention, x, "mean")[1], seen[0].mean((1, 2)), atol=1e-12)


def test_half_precision_ranks_by_float32_scores():
    attention = randomise(Attention(32, num_heads=4)).bfloat16()
    y, row = attend(attention, torch.randn(2, 9, 32).bfloat16())
    assert y.dtype == torch.bfloat16
    assert row.dtype == torch.float32


@pytest.mark.parametrize("score", [class_attention, mean_attention])
def test_scores_keep_their_digits_in_half_precision_and_under_autocast(score):
    q, k = (3 * torch.randn(2, 4, 9, 8, generator=torch.Generator().manual_seed(i)).bfloat16() for i in (0, 1))
    exact = score(q.double(), k.double()).float()
    assert torch.allclose(score(q, k), exact, rtol=1e-4, atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(score(q, k), exact, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("depth", "places"), [(12, (3, 6, 9)), (16, (4, 8, 12)), (24, (6, 12, 18)), (6, (1, 3, 4))])
def test_default_places_are_the_papers(depth, places):
    assert lf.EViT().places(lf.create("vit", **{**TINY, "depth": depth})) == places


@pytest.mark.parametrize(
    ("rate", "fuse", "counts"),
    [
        (0.9, True, (178, 162, 147)), (0.9, False, (177, 160, 144)), (0.8, True, (158, 128, 104)),
        (0.8, False, (157, 126, 101)), (0.7, True, (139, 99, 71)), (0.7, False, (138, 97, 68)),
        (0.6, True, (119, 73, 45)), (0.6, False, (118, 71, 43)), (0.5, True, (99, 51, 27)), (0.5, False, (98, 49, 25)),
    ],
)  # fmt: skip
def test_token_counts_at_224_are_the_published_codes(rate, fuse, counts):
    model = lf.create("vit", img_size=224, patch_size=16, embed_dim=8, depth=12, num_heads=1, num_classes=2)
    model = lf.apply(model, lf.EViT(keep_rate=rate, fuse_tokens=fuse)).eval()
    assert tuple(patches.shape[1] for patches in kept_patches(model, torch.randn(1, 3, 224, 224))) == counts


def test_nothing_happens_when_every_token_is_kept():
    model = tiny()
    lean = lf.apply(model, lf.EViT(keep_rate=0.999))
    assert torch.equal(lean(images()), model(images()))


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "vit_small_patch14_reg4_dinov2"])
def test_prefix_tokens_are_never_dropped(name):
    model = tiny(name)
    lean = lf.apply(model, lf.EViT(keep_rate=0.01, at=(1,)))
    with taps(model, ["blocks.1.mix"]) as whole, taps(lean, ["blocks.1.mix"]) as short:
        model(images()), lean(images())
    prefix = model.blocks[1].grid.prefix
    assert prefix > 1
    assert short["blocks.1.mix"].shape[1] == prefix + 2
    assert torch.allclose(short["blocks.1.mix"][:, :prefix], whole["blocks.1.mix"][:, :prefix], atol=1e-6)


@pytest.mark.parametrize("size", [(32, 32), (48, 32), (24, 56)])
def test_other_image_sizes_square_or_not(size):
    model = lf.apply(tiny(dynamic_img_size=True), lf.EViT(keep_rate=0.5, at=(1,)))
    patches = size[0] * size[1] // 64
    assert kept_patches(model, images(size))[0].shape[1] == math.ceil(patches / 2) + 1
    assert model(images(size)).shape == (3, 5)


@pytest.mark.parametrize("pool", ["avg", "map"])
def test_models_without_class_token_use_mean_attention(pool):
    model = tiny(class_token=False, global_pool=pool)
    with pytest.raises(ValueError, match="score='mean'"):
        lf.apply(model, lf.EViT())
    assert lf.apply(model, lf.EViT(score="mean", keep_rate=0.5))(images()).shape == (3, 5)


def test_registers_alone_are_no_class_token():
    model = tiny(class_token=False, global_pool="avg", reg_tokens=2)
    with pytest.raises(ValueError, match="no class token"):
        lf.apply(model, lf.EViT())


def test_lvvit_reorganises_in_blocks_5_9_13():
    model = lf.create("lvvit", img_size=64, embed_dim=32, depth=16, num_heads=2, num_classes=5)
    lean = lf.apply(model, lf.EViT(keep_rate=0.7)).eval()
    assert list(decision_paths(lean)) == [f"blocks.{i}.mix.decision" for i in (4, 8, 12)]
    assert [p.shape[1] for p in kept_patches(lean, images((64, 64)))] == [13, 11, 9]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"keep_rate": 0}, "keep_rate .*not 0"), ({"keep_rate": 1.5}, "1.5"), ({"keep_rate": math.nan}, "nan"),
        ({"keep_rate": "x"}, "'x'"), ({"keep_rate": (0.5, 2)}, "2"), ({"tokens": (0, 1, 2)}, "tokens"),
        ({"tokens": 5}, "tokens must be .*, not 5"), ({"at": (3, 3)}, "different"), ({"at": 3}, "at must be .*, not 3"),
        ({"score": "max"}, "'max'"), ({"start_epoch": -1}, "start_epoch"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_with_what_was_found(options, found):
    with pytest.raises(ValueError, match=found):
        lf.EViT(**options)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"keep_rate": (0.5, 0.5)}, "2 values"), ({"at": (7,)}, "block 7"), ({"tokens": (4, None, 3, 2)}, "block 0"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_the_model_are_refused(options, found):
    with pytest.raises(ValueError, match=found):
        lf.apply(tiny(), lf.EViT(**options))


def test_backbones_that_cannot_lose_tokens_are_refused_by_name():
    swin = lf.create(
        "swin", img_size=32, patch_size=2, window_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 4], num_classes=5
    )
    with pytest.raises(ValueError, match="SwinTransformer"):
        lf.apply(swin, lf.EViT(at=(0,)))
    mixer = lf.create("mixer", img_size=32, patch_size=8, embed_dim=32, num_blocks=4, num_classes=5)
    with pytest.raises(ValueError, match="MlpMixer"):
        lf.apply(mixer, lf.EViT())


def test_too_many_explicit_tokens_and_masks_are_refused():
    model = tiny()
    with pytest.raises(ValueError, match="17 tokens where only 16"):
        lf.apply(model, lf.EViT(tokens=(17, 5, 3)))(images())
    with pytest.raises(ValueError, match="mask"):
        lf.apply(model, lf.EViT()).forward_features(images(), attn_mask=torch.zeros(17, 17))


def test_options_change_at_run_time_and_share_the_weights():
    lean = lf.apply(tiny(), lf.EViT(keep_rate=0.7))
    for options, counts in (
        ({"keep_rate": 0.5}, [9, 6, 4]),
        ({"keep_rate": (0.75, 1.0, 0.5)}, [13, 13, 8]),
        ({"tokens": (9, 6, 2)}, [10, 7, 3]),
        ({"tokens": (9, None, 2), "fuse_tokens": False}, [9, 7, 2]),
        ({"tokens": [None, 9, 6, 2]}, [10, 7, 3]),
    ):
        other = lf.with_options(lean, **options)
        assert [p.shape[1] for p in kept_patches(other, images())] == counts
        assert other.blocks[1].mix.fn.qkv.weight is lean.blocks[1].mix.fn.qkv.weight
    assert [p.shape[1] for p in kept_patches(lean, images())] == [13, 11, 9]


def test_survivors_are_the_patches_of_the_image_that_they_say():
    """With branches scaled to nothing, tokens stay what the patch embedding made of them."""
    model = tiny(init_values=1.0)
    for block in model.blocks:
        block.mix.scale.gamma.data.zero_(), block.ffn.scale.gamma.data.zero_()
    lean = lf.apply(model, lf.EViT(keep_rate=0.6))
    paths = [path.removesuffix(".decision") for path in decision_paths(lean)]
    with taps(lean, ["norm_pre", *paths]) as seen:
        history = kept_patches(lean, images())
    embedded = seen["norm_pre"][:, 1:]  # (B, N, C)
    for path, patches in zip(paths, history, strict=True):
        tokens = seen[path][:, 1:]
        assert tokens.shape[1] == patches.shape[1]
        for image in range(3):
            real = patches[image] != FUSED
            assert torch.equal(tokens[image][real], embedded[image][patches[image][real]])
            assert patches[image][real].unique().numel() == real.sum()
            assert patches[image, -1] == FUSED


def test_a_kept_fused_token_is_no_patch_wherever_it_lands():
    model = lf.apply(tiny(), lf.EViT(keep_rate=0.5, at=(1, 2)))
    kept_patches(model, images())
    chosen = {"blocks.1.mix.decision": torch.tensor([[5, 3]]), "blocks.2.mix.decision": torch.tensor([[2, 0]])}
    assert single_patches(trace(model, chosen)[1]).tolist() == [[FUSED, 5, FUSED]]


def test_tracing_is_refused_where_nothing_can_be_traced():
    with pytest.raises(ValueError, match=r"lf\.EViT"):
        kept_patches(tiny(), images())


def test_gradient_reaches_dropped_patches_through_the_fused_token_alone():
    x = torch.randn(1, 17, 32)
    for fuse in (True, False):
        branch = Reorganise(
            norm=nn.Identity(), fn=Attention(32, num_heads=2), prefix=1, keep_rate=0.5, fuse_tokens=fuse
        )
        with torch.no_grad():
            branch.fn.proj.weight.zero_()  # values reach nothing through attention
        leaf = x.clone().requires_grad_()
        branch(leaf)[:, -1].sum().backward()
        reached = (leaf.grad.abs().sum(-1) > 1e-8).sum().item()
        assert (reached > 1) if fuse else (reached == 1)
