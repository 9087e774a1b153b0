"""DINO: its loss is that of plain loops, its teacher an average, and a run that was stopped goes on bit for bit."""

import dataclasses
import functools
import json
import math

import pytest
import torch
import torch.nn.functional as F
from helpers import arrays, picture_folder
from timm.layers import build_sincos2d_pos_embed
from together import together
from torch import nn

import leanformer as lf
from leanformer.cli import main
from leanformer.cli.demo_work import digits
from leanformer.data.batches import Plan, Stretch
from leanformer.data.loader import training_batches
from leanformer.tasks import dino
from leanformer.tasks.dino.colours import blur, colours
from leanformer.tasks.dino.head import Head
from leanformer.tasks.dino.maths import dino_loss, moved_centre, targets
from leanformer.tasks.dino.momentum import Momentum
from leanformer.tasks.dino.views import PreTraining

SMALL = dino.Config(prototypes=16, hidden=12, bottleneck=6, local_crops=2, local_size=8, neighbours=3)
RECIPE = dino.recipe(epochs=2, batch_size=8, warmup_epochs=0, learning_rate=1e-3)


def backbone(*methods: lf.core.Method, **arguments: int) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 0}
    return lf.apply(lf.create("vit", **({"dynamic_img_size": True} | sizes | arguments)), *methods)


def train(model: nn.Module, config: dino.Config = SMALL, recipe: lf.train.Recipe = RECIPE, **options):
    options = {"data": arrays(32)[0], "device": "cpu", "quiet": True, "workers": 0, **options}
    return dino.fit(model, recipe=recipe, dino=config, **options)


def test_the_loss_is_that_of_plain_loops_over_pairs_of_crops():
    generator = torch.Generator().manual_seed(0)
    student, teacher, centre = (torch.randn(shape, generator=generator, dtype=torch.double)
                                for shape in ((5, 3, 7), (2, 3, 7), (7,)))  # fmt: skip
    terms = []
    for g in range(2):
        for v in range(5):
            for b in range(3) if v != g else ():
                p = [math.exp(float(teacher[g, b, k] - centre[k]) / 0.04) for k in range(7)]
                q = [math.exp(float(student[v, b, k]) / 0.1) for k in range(7)]
                terms.append(-sum(p[k] / sum(p) * math.log(q[k] / sum(q)) for k in range(7)))
    found = dino_loss(student, targets(teacher, centre, 0.04), 0.1)
    assert found.item() == pytest.approx(sum(terms) / len(terms), rel=1e-12)


def test_the_centre_moves_towards_the_mean_of_the_teachers_scores():
    scores = torch.arange(12.0).view(2, 3, 2)
    assert moved_centre(torch.tensor([1.0, 1.0]), scores, 0.9).tolist() == pytest.approx([0.9 + 0.5, 0.9 + 0.6])


def test_prototypes_have_length_one_and_stand_still_while_frozen():
    head = Head(4, 8, hidden=6, bottleneck=3).double()
    x = torch.randn(5, 4, dtype=torch.double)
    assert head(x).abs().max() <= 1
    head.frozen = True
    head(x).sum().backward()
    assert head.prototypes.grad is None
    before = head(x)
    head.prototypes.data *= 7
    assert torch.allclose(head(x), before)


def test_blur_keeps_a_plain_picture_and_spreads_a_point():
    assert torch.allclose(blur(torch.full((2, 3, 8, 8), 0.3), torch.tensor([0.0, 2.0])), torch.tensor(0.3))
    point = torch.zeros(2, 1, 9, 9)
    point[:, 0, 4, 4] = 1
    sharp, soft = blur(point, torch.tensor([0.0, 1.0]))
    assert torch.equal(sharp, point[0])
    assert 0.1 < soft.max() < 0.2
    assert soft.sum().item() == pytest.approx(1, abs=1e-2)


def test_solarised_pictures_are_inverted_where_they_are_bright():
    pixels = torch.tensor([0.2, 0.9]).view(1, 1, 1, 2)
    assert colours(pixels, 0, 0, 1.0).flatten().tolist() == pytest.approx([0.2, 0.1])
    assert torch.equal(colours(pixels, 0, 0, 0), pixels)


def test_only_the_second_global_crop_is_solarised_and_crops_keep_their_places():
    objective = dino.DINO(dataclasses.replace(SMALL, grey=0.0, blur=(0.0, 0.0, 0.0), solarise=1.0))
    objective.prepare(backbone())
    # normalised, as they come
    bright = [torch.full((2, 3, size, size), 0.6 + 0.1 * crop) for crop, size in enumerate((16, 16, 8, 8))]
    shown = []
    _, seen = objective.answer(lambda images: shown.append(images) or images.flatten(1)[:, :16], tuple(bright))
    mean, std = (torch.tensor(objective.view[key])[:, None, None] for key in ("mean", "std"))
    assert torch.allclose(seen[:2], bright[0], atol=1e-6)
    assert torch.allclose(seen[2:], (1 - 2 * mean) / std - bright[1], atol=1e-6)
    assert torch.equal(shown[1], torch.cat(bright[2:]))


def test_crops_made_kind_by_kind_are_those_that_are_made_one_by_one():
    data = lf.data.Arrays(*arrays(24))
    objective, view = dino.DINO(SMALL), lf.core.input_of(backbone())
    recipe = RECIPE.replace(color_jitter=0.4)
    stretch = Stretch(Plan(24, 8, seed=3, accumulate=2), 2, 5, torch.device("cpu"), crops=objective.crops(recipe, view))
    found, wanted = (list(make(data, recipe, view, stretch)) for make in (PreTraining().batches, training_batches))
    assert len(found) == len(wanted) == 6
    for one, other in zip(found, wanted):
        assert len(one.crops) == 4
        assert all(torch.equal(*pair) for pair in zip(one.crops, other.crops, strict=True))
        assert torch.equal(one.labels, other.labels)


def test_compiled_code_learns_what_plain_code_learns(monkeypatch):
    config = dataclasses.replace(SMALL, head_norm=True, warmup_teacher_temp=0.06, warmup_teacher_temp_epochs=1)
    recipe = RECIPE.replace(optimizer="momentum", learning_rate=0.1, drop_path=0.0)

    def trained(**options):
        return train(backbone(lf.RePa(idle_ratio=0.5)), config, recipe, max_updates=5, **options)

    plain = trained()
    # without the last step of a compiler, which takes a minute: what is recomputed and what is kept is decided before
    through = functools.partial(torch.compile, backend="aot_eager_decomp_partition")
    monkeypatch.setattr(torch, "compile", through)
    compiled = trained(compile=True)
    for one, other in ((plain.model, compiled.model), (plain.ema, compiled.ema)):
        found, wanted = one.state_dict(), other.state_dict()
        assert all(torch.allclose(found[key].float(), wanted[key].float(), atol=1e-3) for key in found)


def test_the_teacher_is_the_average_of_the_student_and_has_its_own_statistics():
    student = backbone(lf.RePa(idle_ratio=0.5))
    objective = dino.DINO(SMALL)
    objective.prepare(student)
    before = {key: value.clone() for key, value in objective.teacher.state_dict().items()}
    for value in student.state_dict().values():
        value.add_(1)
    objective.momentum = 0.75
    Momentum(objective).update(student, 1)
    now = objective.teacher.state_dict()
    statistics = [key for key in now if "running" in key or "tracked" in key]
    assert statistics
    assert all(torch.equal(now[key], before[key]) for key in statistics)
    assert all(torch.allclose(now[key], before[key] + 0.25) for key in now if key not in statistics)


def test_the_teachers_batch_norms_learn_statistics_of_global_crops_alone():
    result = train(backbone(lf.RePa(idle_ratio=0.5)))
    student, teacher = ({k: v for k, v in m.state_dict().items() if "running" in k} for m in (result.model, result.ema))
    assert teacher
    assert all(not torch.equal(student[key], teacher[key]) for key in teacher)
    tracked = [key for key in result.ema.state_dict() if "num_batches_tracked" in key]
    assert {int(result.ema.state_dict()[key]) for key in tracked} == {8}
    assert {int(result.model.state_dict()[key]) for key in tracked} == {16}


def test_the_teachers_batch_norms_go_on_learning_after_an_evaluation():
    result = train(backbone(lf.RePa(idle_ratio=0.5)), data=arrays(32), val=arrays(16))
    tracked = [value for key, value in result.ema.state_dict().items() if "num_batches_tracked" in key]
    assert {int(value) for value in tracked} == {8}


@pytest.mark.parametrize("val", [None, arrays(16)], ids=["not judged", "judged every epoch"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path, val):
    method = lf.RePa(idle_ratio=0.5)
    whole = train(backbone(method), output=tmp_path / "whole", val=val)
    train(backbone(method), output=tmp_path / "parts", max_updates=6, save_every=1, val=val)
    parts = train(backbone(method), output=tmp_path / "parts", resume=True, val=val)
    assert parts.updates == whole.updates == 8
    for one, other in ((whole.model, parts.model), (whole.ema, parts.ema)):
        found, wanted = one.state_dict(), other.state_dict()
        assert all(torch.equal(found[key], wanted[key]) for key in found)
    assert lf.load(tmp_path / "parts" / "ema.safetensors").num_classes == 0


@pytest.mark.parametrize(("config", "objective", "message"), [
    (dataclasses.replace(SMALL, local_crops=1, grey=0.5), None, "local_crops was 2, now 1; grey was 0.2, now 0.5"),
    (SMALL, "cross_entropy", "learns by cross_entropy, not by DINO"),
])  # fmt: skip
def test_a_run_does_not_go_on_with_other_settings_than_its_own(tmp_path, config, objective, message):
    train(backbone(), output=tmp_path, max_updates=2)
    run = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(run | {"objective": objective or run["objective"]}))
    with pytest.raises(ValueError, match=message):
        train(backbone(), config, output=tmp_path, resume=True)


def test_files_are_learnt_from_and_judged_by_neighbours(tmp_path):
    result = train(backbone(), data=str(picture_folder(tmp_path / "data")), max_updates=2)
    assert result.evaluation.images == 32
    assert result.ema_evaluation.top1 > 60, "the images for validation are in the bank as well"


def test_no_image_is_its_own_neighbour_where_data_have_no_splits(tmp_path):
    classes = picture_folder(tmp_path / "data") / "train"
    assert train(backbone(), data=str(classes), max_updates=1).evaluation.images == 16


def test_a_bank_of_other_classes_than_those_of_the_judged_images_is_refused():
    data, val = (lf.data.Arrays(*arrays(count), tuple(names)) for count, names in ((32, "abcd"), (16, "abdc")))
    with pytest.raises(ValueError, match="have different classes, such as another order"):
        train(backbone(), data=data, val=val)


def test_without_labels_every_other_image_of_the_validation_data_is_the_bank():
    assert train(backbone(), val=arrays(20), max_updates=1).evaluation.images == 10


def test_weight_decay_grows_and_spares_vectors():
    objective, groups = dino.DINO(SMALL), [{"weight_decay": 0.04}, {"weight_decay": 0.0}]
    objective.prepare(backbone())
    found = []
    for update in (0, 50, 100):
        objective.advance(update, 101, 10, groups)
        found.append((groups[0]["weight_decay"], groups[1]["weight_decay"], objective.momentum, objective.head.frozen))
    assert found[0] == pytest.approx((0.04, 0, 0.996, True))
    assert found[1] == pytest.approx((0.22, 0, 0.998, False))
    assert found[2] == pytest.approx((0.4, 0, 1, False))


def test_a_collapse_is_said_once():
    objective = dino.DINO(SMALL)
    objective.prepare(backbone())
    for _ in range(60):
        told = objective._learnt(torch.randn(16, 16), torch.zeros(8, 16), torch.zeros(16), torch.tensor(0.04))
        objective._remember(*told[1:])
    assert objective.notices() == [], "every untrained backbone begins so"
    objective.advance(10, 20, 10, [])
    assert "collapsed: answers tell images apart by 0.0" in objective.notices()[0]
    assert objective.notices() == []


def test_the_first_answers_alone_decide_the_first_figures():
    objective = dino.DINO(SMALL)
    objective.prepare(backbone())
    flat = torch.full((SMALL.prototypes,), 1 / SMALL.prototypes)
    objective._remember(torch.zeros(2, 4, SMALL.prototypes), flat, torch.tensor([math.log(SMALL.prototypes), 0.001]))
    assert objective.figures() == pytest.approx({"entropy": math.log(SMALL.prototypes), "information": 0}, abs=1e-5)
    objective.advance(1, 20, 1, [])
    assert "features deviate by 0.001" in objective.notices()[0]


def test_answers_that_are_no_numbers_leave_the_centre_where_it_was():
    objective = dino.DINO(SMALL, arrays(32)[0])
    objective.prepare(backbone())
    before = objective.centre.clone()
    scores = torch.full((2, 4, SMALL.prototypes), float("nan"))
    objective._remember(scores, scores[0, 0], torch.full_like(objective.spread, float("nan")))
    assert torch.equal(objective.centre, before)
    assert all(math.isfinite(figure) for figure in objective.figures().values())


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ({"num_classes": 4}, {}, "num_classes=0"),
        ({"dynamic_img_size": False}, {}, "dynamic_img_size=True"),
        ({}, {"recipe": RECIPE.replace(mixup=0.5)}, "has no mixup"),
        ({}, {"shard": True}, "leave shard out"),
    ],
)
def test_what_dino_cannot_do_is_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        train(backbone(**arguments), **options)


def test_settings_are_written_as_the_command_line_reads_them():
    config = dino.Config(prototypes=64, head_norm=True, blur=(0.5, 0.0, 0.1), local_scale=(0.1, 0.3))
    assert dino.Config().with_text(config.text()) == config
    with pytest.raises(ValueError, match="no setting 'prototype'"):
        dino.Config().with_text("dino:prototype=3")
    with pytest.raises(ValueError, match="from the smallest to the largest"):
        dino.Config(local_scale=(0.5, 0.1))


def test_norms_in_the_head_pull_features_that_are_nearly_the_same_apart():
    torch.manual_seed(0)
    features = torch.ones(64, 16) + 0.05 * torch.randn(64, 16)
    spread = {norm: Head(16, 32, hidden=24, bottleneck=8, norm=norm)(features).std(0).mean() for norm in (False, True)}
    assert spread[True] > 5 * spread[False]


def test_the_log_shows_entropy_and_information_and_neighbours(tmp_path):
    train(backbone(), data=arrays(32), val=arrays(16), output=tmp_path, log_every=1, max_updates=4)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    steps, epochs = ([line for line in lines if line["kind"] == kind] for kind in ("step", "epoch"))
    assert all(0 <= step["entropy"] <= math.log(16) + 1e-4 for step in steps)
    assert all("information" in step for step in steps)
    assert {"val_knn_top1", "ema_knn_top1"} <= epochs[-1].keys()


def test_the_command_line_pre_trains_and_goes_on(tmp_path, capsys):
    data, run = str(picture_folder(tmp_path / "data")), str(tmp_path / "run")
    sizes = [word for key in ("img_size=16", "patch_size=4", "embed_dim=16", "depth=1", "num_heads=2")
             for word in ("--set", key)]  # fmt: skip
    task = "dino:prototypes=16,hidden=12,bottleneck=6,local_crops=1,local_size=8,neighbours=3"
    assert main(["train", "vit", *sizes, "--task", task, "--recipe", "dino:epochs=2,batch_size=16", "--data", data,
                 "--output", run, "--device", "cpu", "--workers", "0", "--max-updates", "2",
                 "--apply", "repa:idle_ratio=0.5"]) == 0  # fmt: skip
    assert "moving average: k-NN top-1" in capsys.readouterr().out
    assert lf.load(f"{run}/ema.safetensors").num_classes == 0
    assert main(["train", "--resume", run]) == 0
    assert dino.Config().with_text(lf.train.read_run(run)["objective"]).prototypes == 16
    capsys.readouterr()
    assert main(["train", f"{run}/ema.safetensors", "--teacher", "self", "--recipe", "finetune:epochs=1,batch_size=16",
                 "--data", data, "--output", f"{run}_distilled", "--device", "cpu", "--workers", "0",
                 "--max-updates", "1"]) == 0  # fmt: skip
    assert "trained: k-NN top-1" in capsys.readouterr().out, "features that were distilled are judged by neighbours too"


@pytest.mark.parametrize(("words", "message"), [
    (["--task", "dino", "--teacher", "self"], "no --teacher"),
    (["--task", "dinosaur"], "unknown task 'dinosaur'"),
    (["--task", "dino:prototype=3"], "no setting 'prototype'"),
])  # fmt: skip
def test_the_command_line_refuses_what_dino_cannot_do(words, message, tmp_path, capsys):
    folder = str(tmp_path / "run")
    assert main(["train", "vit", *words, "--data", "none", "--output", folder, "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err


def test_every_recipe_of_dino_names_settings_that_are_read(tmp_path):
    found = [one for one in lf.recipes.PUBLISHED.values() if one.task]
    assert {"dino_vit_small", "repa_dino_vit_base", "dino_tiny_images"} <= {one.name for one in found}
    for one in found:
        assert dino.Config().with_text(one.task).text() == one.task
        assert one.arguments["num_classes"] == 0


def test_dino_learns_the_digits_without_their_labels():
    """Features of an untrained ViT lose most of what tells digits apart; learning from crops alone brings it back."""
    torch.manual_seed(0)
    train_data, test_data = ((F.interpolate(images.float(), size=(16, 16), mode="bilinear").byte(), labels)
                             for images, labels in digits())  # fmt: skip
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 0}
    model = lf.create("vit", dynamic_img_size=True, **sizes)
    model.pos_embed.data[0, 1:] = build_sincos2d_pos_embed(list(model.patch_embed.grid_size), dim=64)
    lf.core.set_input(model, {"mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 1.0})
    known, asked = (lf.train.extract_features(model, part, device="cpu") for part in (train_data, test_data))
    before = lf.train.knn_accuracy(known, asked).top1
    config = dino.Config(
        prototypes=256, hidden=128, bottleneck=64, head_norm=True, local_crops=0, momentum=0.985, grey=0.0,
        blur=(0.0, 0.0, 0.0), solarise=0.0, freeze_prototypes_epochs=0, final_weight_decay=0.04,
    )  # fmt: skip
    recipe = dino.recipe(epochs=16, warmup_epochs=1, batch_size=32, flip=0.0, color_jitter=0.0, drop_path=0.0)
    result = dino.fit(
        model, recipe=recipe, data=train_data, val=test_data, dino=config, device="cpu", quiet=True, evaluate_every=16
    )
    assert before < 60
    assert result.evaluation.top1 > before + 20
    assert result.ema_evaluation.top1 > before + 20


def together_step(folder: str, process: int = 0, **options) -> None:
    """Two updates of DINO with batch norms, without any draws but those of the crops, which every process shares."""
    torch.set_num_threads(1)
    still = dataclasses.replace(SMALL, grey=0.0, blur=(0.0, 0.0, 0.0), solarise=0.0, head_norm=True)
    recipe = RECIPE.replace(optimizer="momentum", learning_rate=0.1, drop_path=0.0, batch_size=16)
    result = train(backbone(lf.RePa(idle_ratio=0.5)), still, recipe, max_updates=2, output=folder)
    assert not any(type(module).__name__ == "SyncBatchNorm" for module in result.ema.modules())
    if process == 0:
        torch.save({"ema": result.ema.state_dict(), "model": result.model.state_dict()}, f"{folder}/weights.pt")


@pytest.mark.exhaustive
def test_two_processes_learn_what_one_does_with_twice_the_batch(tmp_path):
    together_step(str(tmp_path / "one"))
    together(str(tmp_path / "two"), step=together_step)
    one, two = (torch.load(tmp_path / name / "weights.pt") for name in ("one", "two"))
    for key in ("model", "ema"):
        assert all(torch.allclose(one[key][name].float(), two[key][name].float(), atol=2e-4) for name in one[key])
