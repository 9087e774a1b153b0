"""A student made from a trained teacher starts near it, and training is told to start there."""

import json
from pathlib import Path

import pytest
import survival
import torch
from survival import in_process, tiny
from together import together

import leanformer as lf
from leanformer.core import starts_from, uncalibrated

METHODS = (lf.RePa(idle_ratio=0.75, refine_steps=20), lf.EViT(keep_rate=0.7))
README = (lf.RePa(idle_ratio=0.75), lf.EViT(keep_rate=0.7))


def pictures(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten flags of 4 x 4 colours, dimmed at random, under noise: as easy as digits, and made in a moment."""
    flags = torch.rand(10, 3, 4, 4, generator=torch.Generator().manual_seed(0)).repeat_interleave(4, 2)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 10
    light = 0.3 + 0.4 * torch.rand(count, 1, 1, 1, generator=generator)
    images = light * flags.repeat_interleave(4, 3)[labels] + 0.3 * torch.rand(count, 3, 16, 16, generator=generator)
    return (255 * images).byte(), labels


TRAIN, VAL = pictures(640, 1), pictures(200, 2)


@pytest.fixture(scope="module")
def teacher() -> torch.nn.Module:
    """A ViT that knows the pictures."""
    torch.manual_seed(0)
    model = lf.create("vit", img_size=16, patch_size=4, embed_dim=48, depth=4, num_heads=3, num_classes=10)
    recipe = lf.recipes.plain(epochs=11, batch_size=32, learning_rate=2e-3, warmup_epochs=1)
    result = lf.train.fit(model, recipe=recipe, data=TRAIN, val=VAL, device="cpu", quiet=True, evaluate_every=0)
    assert result.start is None, "a model from fresh weights starts from no teacher"
    assert result.evaluation.top1 > 90
    return result.model


def one_update(model: torch.nn.Module, teacher: torch.nn.Module, **options):
    recipe = lf.recipes.plain(epochs=1, batch_size=32, learning_rate=1e-5)
    options = {"max_updates": 1, "device": "cpu", "quiet": True, "data": TRAIN, "val": VAL, **options}
    return lf.train.fit(model, recipe=recipe, teacher=teacher, **options)


def test_fit_starts_from_the_trained_model_and_not_from_ruin(teacher):
    start = {images: one_update(lf.apply(teacher, *README), teacher, calibrate=images).start for images in (512, 0)}
    assert start[512]["calibrated_images"] == 512
    assert start[512]["calibrated_slots"] == 4
    assert "switched off" in start[0]["not_calibrated"]
    assert start[512]["top1"] > start[0]["top1"] + 25


def test_training_goes_on_from_the_calibrated_weights(teacher):
    student = lf.apply(teacher, *METHODS)
    result = one_update(student, teacher)
    assert abs(result.evaluation.top1 - result.start["top1"]) < 5
    assert uncalibrated(lf.apply(teacher, *METHODS), teacher)
    assert not uncalibrated(student, teacher)


def test_the_log_and_the_result_say_what_training_starts_from(teacher, tmp_path):
    result = one_update(lf.apply(teacher, *METHODS), teacher, calibrate=64, output=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    told = next(line for line in lines if line.get("event") == "training starts from")
    assert told["top1"] == pytest.approx(result.start["top1"], abs=1e-3)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["start"] == result.start


def test_without_images_for_validation_the_agreement_with_the_teacher_is_told(teacher):
    start = one_update(lf.apply(teacher, *METHODS), teacher, val=None, calibrate=128).start
    assert start["agreement"] > 50
    assert "top1" not in start


def test_a_teacher_in_training_mode_is_asked_in_evaluation_mode_and_stays_as_it_is():
    """The stem of an LV-ViT has batch norms, whose statistics an answer in training mode would change."""
    torch.manual_seed(0)
    teacher = lf.create("lvvit", img_size=32, embed_dim=32, depth=2, num_heads=2, num_classes=10).train()
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    start = one_update(lf.apply(teacher, lf.RePa(idle_ratio=0.0)), teacher, val=None).start
    assert start["agreement"] > 95
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())


def test_a_student_that_was_calibrated_before_is_left_as_it_is(teacher):
    student = lf.calibrate(lf.apply(teacher, *METHODS), teacher, TRAIN[0][:64] / 255)
    before = {key: value.clone() for key, value in student.state_dict().items() if "norm" not in key}
    recipe = lf.recipes.plain(epochs=1, batch_size=32, learning_rate=1e-30, weight_decay=0.0)
    result = lf.train.fit(student, recipe=recipe, teacher=teacher, data=TRAIN, max_updates=1, device="cpu", quiet=True)
    assert result.start == {"teacher": "teacher"}
    assert all(torch.equal(student.state_dict()[key], value) for key, value in before.items())


def unmoved(student: torch.nn.Module, teacher: torch.nn.Module, **changes):
    """The start of a run that leaves the weights as training finds them; for methods' schedules ten epochs long."""
    recipe = lf.recipes.plain(epochs=1, batch_size=32, learning_rate=1e-30, weight_decay=0.0).replace(**changes)
    options = {"data": TRAIN, "max_updates": 1, "calibrate": 64, "device": "cpu", "quiet": True}
    return lf.train.fit(student, recipe=recipe, teacher=teacher, **options).start


def test_a_ramp_starts_from_the_teachers_weights_and_not_from_fitted_ones(teacher):
    ramp = lf.RePa(idle_ratio=0.5, refine_steps=0, ramp_epochs=10)
    student = lf.apply(teacher, ramp)
    assert "ramp" in unmoved(student, teacher)["not_calibrated"]
    for ours, theirs in zip(student.blocks, teacher.blocks, strict=True):
        assert torch.equal(ours.ffn.fc1.weight, theirs.ffn.fn.fc1.weight)
    assert unmoved(lf.apply(teacher, ramp), teacher, method_schedules=False)["calibrated_slots"] == 4


def test_other_slots_are_calibrated_as_the_ramp_starts(teacher):
    ramp, free = lf.RePa(idle_ratio=0.5, ramp_epochs=10), lf.RIFormer(blocks=(2,), layers=0)
    both, alone = lf.apply(teacher, ramp, free), lf.apply(teacher, free)
    assert [unmoved(student, teacher)["calibrated_slots"] for student in (both, alone)] == [1, 1]
    torch.testing.assert_close(both.blocks[2].mix.fn.weight, alone.blocks[2].mix.fn.weight)


def test_a_student_of_other_weights_starts_from_no_teacher(teacher):
    torch.manual_seed(5)
    fresh = lf.create("vit", img_size=16, patch_size=4, embed_dim=48, depth=4, num_heads=3, num_classes=10)
    student = lf.apply(fresh, *METHODS)
    assert not starts_from(student, teacher)
    assert one_update(student, teacher).start is None


def test_another_head_or_another_size_does_not_hide_the_teacher(teacher):
    headed = lf.backbones.with_head(lf.apply(teacher), 7)
    assert starts_from(lf.apply(headed, *METHODS), teacher)
    other = {"data": (TRAIN[0], TRAIN[1] % 7), "val": None, "objective": "cross_entropy", "calibrate": 64}
    assert one_update(lf.apply(headed, *METHODS), teacher, **other).start["calibrated_slots"] == 4
    larger = lf.apply(lf.resize(teacher, 20), *METHODS)
    assert one_update(larger, teacher, calibrate=64).start["calibrated_slots"] == 4


NOTHING = survival.At(-1, None)


def calibrated_run(folder: str, resume: bool = False, **options):
    """One and the same run of a calibrated student, whole or continued."""
    torch.set_num_threads(1)
    teacher = tiny(1)
    return lf.train.fit(
        lf.apply(teacher, lf.RePa(idle_ratio=0.5, refine_steps=3)), recipe=survival.RECIPE, data=survival.arrays(),
        teacher=teacher, objective=lf.train.parse_objective("cross_entropy + soft") + options.pop("extra", NOTHING),
        output=folder, device="cpu", quiet=True, workers=0, resume=resume, save_every=5, **options,
    )  # fmt: skip


def killed_calibrated_run(folder: str, update: int) -> None:
    calibrated_run(folder, extra=survival.At(update + 1, survival.kill))


@pytest.mark.parametrize("update", [0, 7])
def test_a_calibrated_run_that_was_killed_goes_on_bit_for_bit_and_calibrates_once(tmp_path, update, monkeypatch):
    whole = calibrated_run(str(tmp_path / "whole"))
    assert whole.start["calibrated_slots"] == 2
    folder = str(tmp_path / "killed")
    assert in_process(killed_calibrated_run, folder, update) == -9
    monkeypatch.setattr("leanformer.train.start.calibrate", None)
    resumed = calibrated_run(folder, resume=True)
    assert resumed.start == whole.start
    for key, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[key], value), key


def calibrated_step(folder: str, process: int, **options) -> None:
    """One process of a run of several; each writes down the weights that it ends with."""
    torch.set_num_threads(1)
    teacher = tiny(1)
    result = lf.train.fit(
        lf.apply(teacher, lf.RePa(idle_ratio=0.5, refine_steps=3)), recipe=lf.recipes.plain(epochs=1, batch_size=16),
        data=survival.arrays(), teacher=teacher, output=Path(folder) / "run", device="cpu", quiet=True, workers=0,
        sync_bn=True, **options,
    )  # fmt: skip
    torch.save((result.start, result.model.state_dict()), Path(folder) / f"{process}.pt")


def test_two_processes_calibrate_to_the_same_weights(tmp_path):
    together(str(tmp_path), step=calibrated_step)
    (start, one), (other_start, other) = (torch.load(tmp_path / f"{process}.pt") for process in (0, 1))
    assert start == other_start
    assert start["calibrated_slots"] == 2
    assert all(torch.equal(other[key], value) for key, value in one.items())
