"""Every published recipe builds its model and takes a step with it."""

import itertools
from typing import Any

import pytest
import torch

import leanformer as lf
from leanformer.papers.recipes import PUBLISHED, Published, find, parse_recipe

SMALL: dict[str, dict[str, Any]] = {
    "vit": {"embed_dim": 24, "num_heads": 3},
    "deit": {"embed_dim": 24, "num_heads": 3},
    "lvvit": {"embed_dim": 16, "num_heads": 2},
    "swin": {"embed_dim": 12, "num_heads": (1, 1, 2, 2), "depths": (1, 1, 2, 1), "window_size": 2},
    "repavit": {"embed_dim": 24, "num_heads": 3},
    "repamixer": {"embed_dim": 24, "num_blocks": 2},
    "poolformer": {"depths": (1, 1, 2, 1), "dims": (8, 8, 16, 16)},
}
METAFORMERS = ("identityformer", "randformer", "poolformer", "poolformerv2", "convformer", "caformer")


def _build(published: Published, **changes: Any) -> torch.nn.Module:
    """The recipe's model with its structure and methods kept, its widths and images small."""
    family = published.model.split("_")[0]
    small: dict[str, Any] = {"img_size": 64, "num_classes": 4, **changes}
    if family in METAFORMERS:
        small |= {"depths": (1, 1, 2, 1), "dims": (8, 8, 32, 32)}
        if family.startswith(("conv", "ca")):
            small["head_dim"] = 16
    else:
        small |= SMALL[family]
    return published.build(**small)


def _teachers(published: Published) -> dict[str, torch.nn.Module] | None:
    plain = Published(**{**vars(published), "methods": (), "arguments": {}})
    roles = [part.partition("=")[0].strip() if "=" in part else "teacher" for part in published.teacher.split("+")]
    return {role: _build(plain) for role in roles} if published.teacher else None


@pytest.fixture(scope="module")
def data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 256, (8, 3, 64, 64)).byte(), torch.arange(8) % 4


@pytest.mark.parametrize("published", PUBLISHED.values(), ids=PUBLISHED)
def test_a_published_recipe_takes_a_step(published, data):
    model = _build(published)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    recipe = published.recipe.replace(batch_size=2, warmup_learning_rate=1e-3, warmup_epochs=1)
    result = lf.train.fit(
        model, recipe=recipe, data=data, teacher=_teachers(published), device="cpu", quiet=True, max_updates=1
    )
    assert result.updates == 1
    moved = [name for name, p in result.model.named_parameters() if name in before and not torch.equal(p, before[name])]
    assert moved


def test_the_recipes_of_repa_build_the_published_models():
    millions = {"deit_tiny": 5.736, "swin_tiny": 28.324, "poolformer_s12": 11.942, "mixer_b16": 59.940}
    for name, expected in millions.items():
        with torch.device("meta"):
            model = PUBLISHED[f"repa_{name}"].build()
        assert round(sum(p.numel() for p in model.parameters()) / 1e6, 3) == expected, name


def test_recipes_survive_json():
    for published in PUBLISHED.values():
        assert lf.recipes.Recipe.from_json(published.recipe.to_json()) == published.recipe


def test_every_family_of_the_papers_is_there():
    names = {name.partition("_")[0] for name in PUBLISHED}
    assert names == {"poolformer", "identityformer", "randformer", "poolformerv2", "convformer", "caformer", "riformer",
                     "repa", "sit", "evit", "lvvit"}  # fmt: skip


def test_settings_override_a_recipe_from_the_command_line():
    recipe = parse_recipe("evit_deit_small_0.7:epochs=3,crop_scale=(0.5,1.0),ema=none")
    assert (recipe.epochs, recipe.crop_scale, recipe.ema) == (3, (0.5, 1.0), None)
    assert find("evit_deit_small_0.7:epochs=3") is PUBLISHED["evit_deit_small_0.7"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("unknown", "unknown recipe"),
        ("finetune:epoch=3", "no setting 'epoch'"),
        ("finetune:epochs=0", "epochs must be above 0"),
        ("finetune:flip=2", "flip must lie between"),
    ],
)
def test_a_wrong_recipe_is_refused_with_what_would_work(spec, message):
    with pytest.raises(ValueError, match=message):
        parse_recipe(spec)


def test_fine_tuning_warms_up_for_a_share_of_short_runs():
    assert [parse_recipe(f"finetune:epochs={e}").warmup_epochs for e in (5, 30)] == [1, 3]


def test_the_reverse_modules_of_sit_learn_five_times_as_fast():
    from leanformer.train.optimise import parameter_groups

    published = PUBLISHED["sit_s"]
    student = _build(published)
    objective = lf.card_of(student).methods[0].objective(student, _teachers(published)["teacher"])
    groups = parameter_groups(student, objective, published.recipe)
    scales = {1.0: 0, 5.0: 0}
    for group in groups:
        scales[group.get("lr_scale", 1.0)] += sum(p.numel() for p in group["params"])
    assert scales[5.0] == sum(p.numel() for p in objective.parameters())
    assert sum(scales.values()) == sum(
        p.numel() for p in itertools.chain(student.parameters(), objective.parameters()) if p.requires_grad
    )
