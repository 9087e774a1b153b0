"""adopt: the same function, gradients and model-level methods as timm's own model, for every family."""

import copy
import inspect
from typing import Any

import pytest
import timm
import torch
from families import BACKBONES, PATCHES, VIT
from helpers import randomise
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import Tensor, nn

import leanformer as lf
from leanformer.backbones.registry import build

FAMILIES = [family for family in BACKBONES if not lf.blocks_of(build(BACKBONES[family][0], **BACKBONES[family][1]))]
DROPS = ("drop_rate", "proj_drop_rate", "attn_drop_rate", "pos_drop_rate", "patch_drop_rate", "drop_path_rate")
SEQUENCES = [family for family in FAMILIES if BACKBONES[family][1].get("depth")]


def pair(family: str, **arguments: Any) -> tuple[nn.Module, nn.Module]:
    """timm's model with random weights and the adopted one, in evaluation mode."""
    name, usual = BACKBONES[family]
    theirs = randomise(build(name, **{**usual, **arguments})).eval()
    return theirs, lf.adopt(theirs)


def images(model: nn.Module, batch: int = 3) -> Tensor:
    return torch.randn(batch, *lf.core.input_of(model)["input_size"])


def answer(model: nn.Module, x: Tensor, seed: int = 5) -> tuple[Any, dict[bytes, Tensor]]:
    """Output and the gradients of all parameters, by the parameters' bytes: names differ, values do not."""
    model = copy.deepcopy(model)
    torch.manual_seed(seed)
    x = x.clone().requires_grad_()
    output = model(x)
    parts = output if isinstance(output, tuple) else (output,)
    sum((part**2).sum() for part in parts).backward()
    assert all(p.grad is not None for p in model.parameters())
    gradients = {p.detach().numpy().tobytes(): p.grad for p in model.parameters()}
    assert len(gradients) == len(list(model.parameters()))
    return parts, {**gradients, b"images": x.grad}


def assert_same_answers(theirs: nn.Module, ours: nn.Module, x: Tensor) -> None:
    (expected, expected_gradients), (got, gradients) = answer(theirs, x), answer(ours, x)
    assert len(got) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(got, expected))
    assert gradients.keys() == expected_gradients.keys()
    assert all(torch.equal(gradients[key], expected_gradients[key]) for key in gradients)


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_and_gradients_are_bit_equal(family: str) -> None:
    theirs, ours = pair(family)
    assert_same_answers(theirs, ours, images(ours))


@pytest.mark.parametrize("family", FAMILIES)
def test_training_with_every_kind_of_drop_is_bit_equal_with_the_same_seed(family: str) -> None:
    accepted = inspect.signature(type(pair(family)[0]).__init__).parameters
    if "args" in accepted:  # a subclass that passes everything on
        accepted = inspect.signature(timm.models.VisionTransformer.__init__).parameters
    drops = {drop: 0.3 for drop in DROPS if drop in accepted}
    assert len(drops) >= 3
    theirs, ours = pair(family, **drops)
    x = images(ours, 4)
    assert_same_answers(theirs.train(), ours.train(), x)
    torch.manual_seed(1)
    one = ours(x)
    torch.manual_seed(2)
    assert not torch.equal(one, ours(x)), "nothing was dropped"


def test_distilled_training_gives_both_heads() -> None:
    theirs, ours = pair("deit_distilled")
    for model in (theirs, ours):
        model.train().set_distilled_training()
    assert len(ours(images(ours))) == 2
    assert_same_answers(theirs, ours, images(ours))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_features_head_and_intermediates_are_timms(family: str) -> None:
    theirs, ours = pair(family)
    x = images(ours)
    features = theirs.forward_features(x)
    assert torch.equal(ours.forward_features(x), features)
    for pre_logits in (False, True):
        assert torch.equal(ours.forward_head(features, pre_logits), theirs.forward_head(features, pre_logits))
    for options in ({}, {"output_fmt": "NLC"}, {"indices": 2}, {"norm": True, "intermediates_only": True}):
        try:
            expected = theirs.forward_intermediates(x, **options)
        except AssertionError:  # hierarchical models have no NLC
            continue
        got = ours.forward_intermediates(x, **options)
        assert _equal(got, expected)


def test_prefix_tokens_come_with_the_intermediates() -> None:
    theirs, ours = pair("dinov2_reg")
    x = images(ours)
    options = {"return_prefix_tokens": True, "output_fmt": "NLC"}
    assert _equal(ours.forward_intermediates(x, **options), theirs.forward_intermediates(x, **options))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("classes", [3, 0])
def test_reset_classifier(family: str, classes: int) -> None:
    theirs, ours = pair(family)
    for model in (theirs, ours):
        torch.manual_seed(0)
        model.reset_classifier(classes)
    x = images(ours)
    assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("family", SEQUENCES)
@pytest.mark.parametrize("size", [(48, 48), (32, 64)])
def test_sequences_can_be_resized(family: str, size: tuple[int, int]) -> None:
    theirs, ours = pair(family)
    for model in (theirs, ours):
        model.set_input_size(img_size=size)
    x = torch.randn(2, 3, *size)
    assert_same_answers(theirs, ours, x)
    ours(x)
    grid = lf.blocks_of(ours)["blocks.0"].grid
    assert grid is not None
    assert grid.size == (size[0] // 8, size[1] // 8)


@pytest.mark.parametrize("size", [(64, 64), (32, 64)])
def test_swin_can_be_resized(size: tuple[int, int]) -> None:
    theirs, ours = pair("swin")
    for model in (theirs, ours):
        model.set_input_size(img_size=size, window_size=(4, 8))
    assert_same_answers(theirs, ours, torch.randn(2, 3, *size))


@pytest.mark.parametrize("family", SEQUENCES)
def test_dynamic_image_sizes_work_and_the_grid_follows(family: str) -> None:
    theirs, ours = pair(family, dynamic_img_size=True)
    grid = lf.blocks_of(ours)["blocks.2"].grid
    assert grid is not None
    for size in ((32, 32), (48, 32), (24, 64)):
        x = torch.randn(2, 3, *size)
        assert torch.equal(ours(x), theirs(x))
        assert grid.size == (size[0] // 8, size[1] // 8)


def test_swin_without_a_strict_size_works_on_any() -> None:
    theirs, ours = pair("swin", strict_img_size=False)
    for size in ((32, 32), (48, 32), (36, 60)):
        x = torch.randn(2, 3, *size)
        assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("family", ["timm_poolformer", "timm_caformer"])
def test_metaformers_take_any_size_and_the_grid_follows(family: str) -> None:
    theirs, ours = pair(family)
    grids = [block.grid.size for block in lf.blocks_of(ours).values() if block.grid is not None]
    assert grids == ([(4, 4), (2, 2)] if family == "timm_caformer" else [])
    for size in ((64, 64), (96, 64)):
        x = torch.randn(2, 3, *size)
        assert torch.equal(ours(x), theirs(x))
    grids = [block.grid.size for block in lf.blocks_of(ours).values() if block.grid is not None]
    assert grids == ([(6, 4), (3, 2)] if family == "timm_caformer" else [])


@pytest.mark.parametrize("family", FAMILIES)
def test_optimizer_groups_are_timms(family: str) -> None:
    theirs, ours = pair(family)
    assert hasattr(ours, "no_weight_decay") == hasattr(theirs, "no_weight_decay")
    for grouping in (_weight_decay, _layer_decay):
        assert grouping(ours) == grouping(theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_changes_nothing(family: str) -> None:
    _, ours = pair(family)
    checkpointed = copy.deepcopy(ours).train()
    checkpointed.set_grad_checkpointing()
    assert_same_answers(ours.train(), checkpointed, images(ours))


@pytest.mark.parametrize("mask", [{"is_causal": True}, {"attn_mask": torch.tril(torch.ones(17, 17, dtype=torch.bool))}])
@torch.no_grad()
def test_attention_masks_reach_the_attention(mask: dict[str, Any]) -> None:
    theirs, ours = pair("vit")
    x = images(ours)
    assert torch.equal(ours(x, **mask), theirs(x, **mask))
    assert not torch.equal(ours(x, **mask), ours(x))


@pytest.mark.parametrize("pool", ["", "avg", "avgmax", "max", "map", "prr"])
def test_every_pooling_of_vision_transformers(pool: str) -> None:
    theirs, ours = pair("vit", global_pool=pool)
    assert_same_answers(theirs, ours, images(ours))


@pytest.mark.parametrize(
    "options",
    [
        {"pre_norm": True},
        {"no_embed_class": True, "reg_tokens": 3},
        {"pos_embed": "none"},
        {"scale_attn_norm": True, "scale_mlp_norm": True},
        {"proj_bias": False, "qkv_bias": False},
        {"final_norm": False},
        {"in_chans": 1},
        {"depth": 1},
        {"dynamic_img_size": True, "dynamic_img_pad": True, "img_size": 30},
        {"attn_layer": "diff"},
    ],
    ids=str,
)
def test_every_option_of_vision_transformers(options: dict[str, Any]) -> None:
    theirs, ours = pair("vit", **options)
    assert_same_answers(theirs, ours, images(ours))


def test_swiglu_mlps_are_adopted() -> None:
    theirs = randomise(timm.create_model("vit_giant_patch14_reg4_dinov2", **VIT)).eval()
    assert_same_answers(theirs, lf.adopt(theirs), torch.randn(2, 3, 32, 32))


@pytest.mark.parametrize("block", ["ParallelScalingBlock", "ResPostBlock", "ParallelThingsBlock"])
def test_other_blocks_are_refused_by_name(block: str) -> None:
    kind = getattr(timm.models.vision_transformer, block)
    with pytest.raises(
        ValueError, match=rf"cannot adopt VisionTransformer: its block {block} is not understood; understood: .*Block"
    ):
        lf.adopt(timm.models.VisionTransformer(**VIT, block_fn=kind))


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto", "vit_base_patch16_rope_224"])
def test_other_models_are_refused_by_name(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    with pytest.raises(
        ValueError,
        match=f"cannot adopt {type(model).__name__}: the model class is not understood; understood: .*MlpMixer",
    ):
        lf.adopt(model)


def test_subclasses_are_refused_because_their_forward_is_not_known() -> None:
    class Twisted(timm.models.vision_transformer.Block):
        pass

    with pytest.raises(ValueError, match="its block Twisted is not understood"):
        lf.adopt(timm.models.VisionTransformer(**VIT, block_fn=Twisted))


@pytest.mark.parametrize("added", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"])
def test_blocks_with_hooks_are_refused_and_inner_hooks_are_kept(added: str) -> None:
    theirs, _ = pair("vit")
    calls = []

    def hook(*args: Any) -> None:
        calls.append(1)

    getattr(theirs.blocks[1].attn, added)(hook)
    answer(lf.adopt(theirs), images(theirs))
    assert calls
    getattr(theirs.blocks[1], added)(hook)
    with pytest.raises(ValueError, match=r"blocks\.1 has .*hooks that would be lost"):
        lf.adopt(theirs)


def test_blocks_with_a_forward_or_parametrisation_of_their_own_are_refused() -> None:
    theirs, _ = pair("vit")
    theirs.blocks[0].forward = lambda x: x
    with pytest.raises(ValueError, match=r"blocks\.0 has forward that would be lost"):
        lf.adopt(theirs)
    theirs, _ = pair("resmlp")
    nn.utils.parametrize.register_parametrization(theirs.blocks[0], "ls1", nn.Identity())
    with pytest.raises(ValueError, match="ParametrizedResBlock is not understood"):
        lf.adopt(theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_given_stays_as_it_is(family: str) -> None:
    theirs, _ = pair(family)
    before, state, tree = theirs(images(theirs)).shape, copy.deepcopy(theirs.state_dict()), repr(theirs)
    hooks = sum(len(module._forward_hooks) for module in theirs.modules())
    ours = lf.adopt(theirs)
    for parameter in ours.parameters():
        parameter.data.zero_()
    assert theirs(images(theirs)).shape == before
    assert repr(theirs) == tree
    assert sum(len(module._forward_hooks) for module in theirs.modules()) == hooks
    assert all(torch.equal(value, state[key]) for key, value in theirs.state_dict().items())


def test_modes_are_kept_block_by_block() -> None:
    theirs, _ = pair("vit")
    theirs.train()
    theirs.blocks[0].eval()
    ours = lf.adopt(theirs)
    assert ours.training
    assert not ours.blocks[0].mix.norm.training
    assert ours.blocks[1].mix.norm.training


def test_adopting_twice_keeps_card_and_function() -> None:
    model = lf.create("vit", **VIT)
    again = lf.adopt(model)
    assert again is not model
    assert lf.card_of(again) == lf.card_of(model)


def test_a_patch_dropping_model_is_known_to_leave_the_grid() -> None:
    _, ours = pair("vit", patch_drop_rate=0.5)
    assert ours.patch_drop.leaves_grid
    block = lf.blocks_of(ours)["blocks.0"]
    block.mix.fn.needs_grid = True  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"needs the grid of patches, which patch_drop \(PatchDropout\) leaves"):
        lf.apply(ours)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("deit_tiny_patch16_224", {"num_classes": 7, "img_size": [32, 48], "drop_path_rate": 0.5}),
        ("vit_tiny_patch16_224", {"global_pool": "avg", "in_chans": 1}),
        ("mixer_s32_224", {"img_size": [64, 64]}),
        ("vit_small_patch14_reg4_dinov2", {"img_size": [28, 28], "dynamic_img_size": True}),
    ],
)
def test_name_and_arguments_are_read_off_a_timm_model(name: str, arguments: dict[str, Any]) -> None:
    card = lf.card_of(lf.adopt(timm.create_model(name, **arguments)))
    assert (card.backbone, card.arguments) == (name, arguments)


def _other_eps(model: Any) -> None:
    model.blocks[3].norm1.eps = 0.1


def _other_pool(model: Any) -> None:
    model.global_pool = "max"


def _other_heads(model: Any) -> None:
    model.blocks[0].attn.num_heads = 1


def _other_act(model: Any) -> None:
    model.blocks[0].mlp.act = nn.ReLU()


@pytest.mark.parametrize("change", [_other_eps, _other_pool, _other_heads, _other_act])
def test_a_model_that_its_name_does_not_rebuild_is_not_saved(change: Any, tmp_path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32)
    change(model)
    adopted = lf.adopt(model)
    assert lf.card_of(adopted).backbone == ""
    with pytest.raises(ValueError, match=r"cannot be rebuilt from a name.*give lf\.adopt its name and arguments"):
        lf.save(adopted, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_timms_poolformer_is_not_mistaken_for_the_official_one() -> None:
    with torch.device("meta"):
        model = timm.create_model("poolformer_s12")
    name = lf.card_of(lf.adopt(model)).backbone
    assert type(build(name)) is type(model)


@pytest.mark.parametrize("family", ["mixer", "resmlp", "gmlp"])
def test_families_of_free_dimensions_are_timms_classes(family: str) -> None:
    assert type(lf.create(family, **PATCHES)) is timm.models.MlpMixer


def _weight_decay(model: nn.Module) -> list:
    return _groups(param_groups_weight_decay(model, 0.1, _spared(model)))


def _layer_decay(model: nn.Module) -> list:
    if not hasattr(model, "group_matcher"):
        return []
    groups = _groups(param_groups_layer_decay(model, 0.1, _spared(model), layer_decay=0.5))
    assert len({scale for scale, _, _ in groups}) >= 4, "layers are not told apart"
    return groups


def _spared(model: Any) -> set[str]:
    return model.no_weight_decay() if hasattr(model, "no_weight_decay") else set()


def _groups(groups: list[dict[str, Any]]) -> list:
    return sorted(
        (
            group.get("lr_scale", 1.0),
            group["weight_decay"],
            sorted(p.detach().numpy().tobytes() for p in group["params"]),
        )
        for group in groups
    )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return len(one) == len(other) and all(_equal(a, b) for a, b in zip(one, other))
