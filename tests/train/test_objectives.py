"""Objectives: their values, their sums, their teachers, and what the engine does with losses that are no numbers."""

import importlib
import json
import re
import time

import pytest
import torch
import torch.nn.functional as F
from survival import arrays, tiny
from timm.utils import ModelEmaV3
from torch import nn

import leanformer as lf
from leanformer.core import Block, Objective, Step, View
from leanformer.data import EvaluationView
from leanformer.layers.losses import relation_loss
from leanformer.train.answer_features import AnswerFeatures, missed_share
from leanformer.train.learner import (
    Learner,
    PatchConv,
    Teachers,
    choose_objective,
    in_their_roles,
    renormalised,
    set_drop_path,
)
from leanformer.train.ledger import NonFiniteLoss
from leanformer.train.objectives import CrossEntropy, SoftDistillation, parse_objective
from leanformer.train.optimise import Average

RECIPE = lf.recipes.plain(epochs=2, batch_size=8)


def _step(**changes) -> Step:
    torch.manual_seed(0)
    values = {
        "images": torch.zeros(4, 3, 8, 8),
        "targets": torch.arange(4),
        "student": View(torch.randn(4, 6), {"a": torch.randn(4, 5, 8)}),
        "teachers": {"teacher": View(torch.randn(4, 6), {"a": torch.randn(4, 5, 8), "b": torch.randn(4, 5, 7)})},
    }
    return Step(**{**values, **changes})


def test_cross_entropy_takes_hard_and_soft_labels():
    step = _step()
    soft = _step(targets=F.one_hot(step.targets, 6).float())
    assert lf.train.CrossEntropy()(step)["cross_entropy"] == pytest.approx(
        lf.train.CrossEntropy()(soft)["cross_entropy"].item()
    )


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_distillation_is_the_divergence_at_its_temperature(temperature):
    step = _step()
    loss = lf.train.SoftDistillation(temperature=temperature, weight=0.5)(step)["soft"]
    t = (step.teacher().output / temperature).softmax(-1)
    s = (step.student.output / temperature).softmax(-1)
    assert loss.item() == pytest.approx(0.5 * temperature**2 * (t * (t / s).log()).sum(-1).mean().item(), rel=1e-5)


def test_soft_distillation_from_oneself_is_zero():
    view = View(torch.randn(4, 6))
    assert lf.train.SoftDistillation()(_step(student=view, teachers={"teacher": view}))["soft"] == pytest.approx(0)


def test_hard_distillation_learns_the_teachers_first_choice():
    step = _step()
    expected = F.cross_entropy(step.student.output, step.teacher().output.argmax(-1))
    assert lf.train.HardDistillation()(step)["hard"] == expected


def test_features_and_relations_compare_what_is_tapped():
    step = _step()
    s, t = step.student.taps["a"], step.teacher().taps["a"]
    assert lf.train.FeatureDistillation("a")(step)["features"] == F.mse_loss(s, t)
    ours, theirs = (F.cosine_similarity(x[:, :, None], x[:, None], dim=-1) for x in (s, t))  # (4, 5, 5)
    torch.testing.assert_close(lf.train.RelationDistillation("a")(step)["relations"], F.mse_loss(ours, theirs))
    with pytest.raises(ValueError, match=r"\(4, 5, 8\) in the student and b \(4, 5, 7\)"):
        lf.train.FeatureDistillation("a", "b")(step)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_relations_compare_the_places_of_a_map_in_the_layout_of_its_block(layout):
    student = nn.Sequential(Block(mix=nn.Identity(), ffn=None, dim=8, layout=layout), nn.Conv2d(3, 3, 1))
    maps = [torch.randn(2, 4, 5, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    tokens = [x.flatten(2).mT if layout == "NCHW" else x.flatten(1, 2) for x in maps]  # (2, N, C)
    for place in ("0", "0.mix", "1"):
        views = [View(None, {place: x}) for x in maps]
        step = _step(student=views[0], teachers={"teacher": views[1]})
        objective = lf.train.RelationDistillation(place)
        objective.prepare(student)
        if place == "1":
            with pytest.raises(ValueError, match=r"1 gives \(2, 4, 5, 8\).*say layout=NCHW or layout=NHWC"):
                objective(step)
            objective = lf.train.RelationDistillation(place, layout=layout)
        assert objective(step)["relations"] == relation_loss(*tokens)
    with pytest.raises(ValueError, match="layout is auto, NCHW or NHWC, not 'NHCW'"):
        parse_objective("relations:at=blocks.1,layout=NHCW")


def test_relations_of_a_swin_are_those_of_its_places():
    student = lf.create(
        "swin", img_size=32, patch_size=4, window_size=4, embed_dim=16, depths=(1,), num_heads=(2,), num_classes=4
    )
    found = choose_objective("relations:at=layers.0.blocks.0", student, {"teacher": student}, "auto")
    views = [View(None, {"layers.0.blocks.0": torch.randn(2, 8, 8, 16)}) for _ in range(2)]
    terms = found(_step(student=views[0], teachers={"teacher": views[1]}))
    assert terms["relations"] == relation_loss(*(view.taps["layers.0.blocks.0"].flatten(1, 2) for view in views))


@pytest.mark.parametrize("classes", [3, 9])
@pytest.mark.parametrize("spec", ["soft", "hard", "distillation_token", "distillation_token:kind=soft"])
def test_a_teacher_of_other_classes_is_refused_in_one_line(spec, classes):
    step = _step(
        student=View((torch.randn(4, 6), torch.randn(4, 6))), teachers={"teacher": View(torch.randn(4, classes))}
    )
    with pytest.raises(ValueError, match=r"the teacher answers \(4, \d\), the student \(4, 6\): other classes"):
        parse_objective(spec)(step)


def test_the_distillation_token_gets_a_loss_of_its_own():
    model = lf.create(
        "deit_tiny_distilled_patch16_224", img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=2, num_classes=4
    )
    result = lf.train.fit(
        model, recipe=RECIPE, data=arrays(), teacher=tiny(1), objective="distillation_token", device="cpu", quiet=True
    )
    assert result.finished
    assert isinstance(model.train()(torch.zeros(2, 3, 16, 16)), torch.Tensor), "both tokens answer for this objective"
    with pytest.raises(ValueError, match="no distillation token"):
        lf.train.fit(tiny(), recipe=RECIPE, data=arrays(), teacher=tiny(), objective="distillation_token", device="cpu")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("features", "objective features needs at, as in features:at=…"),
        ("soft:heat=2", "objective soft has no option 'heat'; its options: temperature, weight, teacher"),
        ("answer_features:at=norm", "objective answer_features has no option 'at'; its options: weight, teacher"),
    ],
)
def test_an_option_that_an_objective_needs_or_does_not_have_is_named(spec, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_objective(spec)


def test_objectives_add_up_with_taps_of_all():
    total = parse_objective("cross_entropy:weight=0.5 + soft:temperature=2 + features:at=a,weight=3")
    assert total.student_taps() == {"a"}
    assert total.teacher_taps() == {"teacher": frozenset({"a"})}
    assert set(total(_step())) == {"cross_entropy", "soft", "features"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [("nothing", "unknown objective"), ("soft:tau=2", "tau"), ("soft:temperature", "not option=value")],
)
def test_an_unknown_objective_is_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        parse_objective(spec)


def test_a_missing_teacher_is_refused_before_training():
    with pytest.raises(ValueError, match="needs a teacher called 'teacher'; given: none"):
        lf.train.fit(tiny(), recipe=RECIPE, data=arrays(), objective="soft", device="cpu", quiet=True)


def test_by_default_the_methods_teach_and_else_logits_and_labels():
    plain = choose_objective(None, tiny(), {"teacher": tiny(1)}, "auto")
    assert {type(p).__name__ for p in plain.parts} == {"CrossEntropy", "SoftDistillation"}
    assert type(choose_objective(None, tiny(), {}, "auto")).__name__ == "CrossEntropy"
    slim = lf.apply(lf.create("vit", img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2), lf.SiT(at=(1,)))
    assert "Recalibration" in type(choose_objective(None, slim, {"teacher": tiny()}, "auto")).__name__


def test_a_teacher_sees_images_in_its_own_normalisation():
    images = torch.rand(2, 3, 16, 16)
    given = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.3), "input_size": (3, 16, 16)}
    wanted = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7), "input_size": (3, 16, 16)}
    mean, std = (torch.tensor(given[k])[:, None, None] for k in ("mean", "std"))
    seen = renormalised((images - mean) / std, given, wanted)
    mean, std = (torch.tensor(wanted[k])[:, None, None] for k in ("mean", "std"))
    torch.testing.assert_close(seen * std + mean, images)
    assert renormalised(images, given, given) is images


def test_teachers_stay_as_they_are_and_get_no_gradient():
    teacher = tiny(1)
    before = {k: v.clone() for k, v in teacher.state_dict().items()}
    lf.train.fit(tiny(), recipe=RECIPE, data=arrays(), teacher=teacher, device="cpu", quiet=True)
    assert not teacher.training
    assert all(torch.equal(before[k], v) for k, v in teacher.state_dict().items())
    assert all(p.grad is None for p in teacher.parameters())
    assert not any(module._forward_hooks for module in teacher.blocks.modules())


def test_a_teacher_that_is_the_student_is_refused():
    model = tiny()
    with pytest.raises(ValueError, match="shares its weights with the student"):
        lf.train.fit(model, recipe=RECIPE, data=arrays(), teacher=model, device="cpu", quiet=True)


def test_the_profile_of_an_update_says_where_its_time_goes():
    model = tiny()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    spent = lf.train.profile(
        model, recipe=RECIPE, data=arrays(), teacher=tiny(1), device="cpu", updates=3, accumulate=2
    )
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[key], rtol=0, atol=1e-15)
    assert 0 <= spent["data_ms"] < spent["update_ms"]
    assert spent["data_alone_ms"] > 0
    assert spent["data_share"] == pytest.approx(spent["data_ms"] / spent["update_ms"])
    assert spent["teachers_ms"] > 0


def test_the_profile_shows_data_that_come_slowly(monkeypatch):
    module = importlib.import_module("leanformer.train.profiling")
    quick = module.training_batches

    def slow(*arguments):
        for batch in quick(*arguments):
            time.sleep(0.02)
            yield batch

    monkeypatch.setattr(module, "training_batches", slow)
    spent = lf.train.profile(tiny(), recipe=RECIPE, data=arrays(), device="cpu", updates=2, accumulate=2)
    assert spent["data_ms"] >= 40
    assert spent["data_alone_ms"] >= 40
    assert spent["data_share"] > 0.1


def test_drop_path_grows_linearly_over_the_blocks():
    model = lf.create("vit", img_size=16, patch_size=8, embed_dim=8, depth=5, num_heads=1)
    set_drop_path(model, 0.4)
    rates = [getattr(block.mix.drop, "drop_prob", 0.0) for block in model.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


def test_drop_path_reaches_the_modules_that_methods_put_in():
    model = lf.apply(lf.create("vit", img_size=16, patch_size=8, embed_dim=8, depth=3, num_heads=1), lf.RePa())
    set_drop_path(model, 0.4)
    assert getattr(model.blocks[2].ffn.drop, "drop_prob", 0.0) == pytest.approx(0.4)


class Spoil(Objective):
    """Not a number in one update."""

    def __init__(self, call: int):
        super().__init__()
        self.call, self.calls = call, 0

    def forward(self, step: Step):
        self.calls += 1
        value = step.student.output.sum() * 0
        return {"spoiled": value + float("nan") if self.calls == self.call else value}


def test_a_loss_that_is_not_finite_stops_the_run_with_step_term_and_rate(tmp_path):
    objective = lf.train.CrossEntropy() + Spoil(6)
    with pytest.raises(NonFiniteLoss, match=r"at update 5: spoiled = nan; learning rate 0\.000\d+"):
        lf.train.fit(
            tiny(), recipe=RECIPE, data=arrays(), objective=objective, output=tmp_path / "run", device="cpu",
            quiet=True, save_every=1,
        )  # fmt: skip
    state = lf.train.checkpoint.read_checkpoint(tmp_path / "run")
    assert state["update"] == 5
    assert all(torch.isfinite(v).all() for v in state["learner"].values())


def test_a_loss_that_is_not_finite_can_be_skipped(tmp_path):
    result = lf.train.fit(
        tiny(), recipe=RECIPE, data=arrays(), objective=lf.train.CrossEntropy() + Spoil(3), output=tmp_path / "run",
        device="cpu", quiet=True, nonfinite="skip",
    )  # fmt: skip
    assert result.updates == 8
    assert all(torch.isfinite(p).all() for p in result.model.parameters())
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines if "skipped" in line.get("event", "")] == [2]


def test_every_term_is_logged_and_the_loss_is_their_sum(tmp_path):
    lf.train.fit(
        tiny(), recipe=RECIPE, data=arrays(), val=arrays(), teacher=tiny(1), output=tmp_path / "run", device="cpu",
        quiet=True, log_every=1,
    )  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert len(steps) == 8
    assert steps[0]["loss"] == pytest.approx(steps[0]["cross_entropy"] + steps[0]["soft"])
    assert (
        (tmp_path / "run" / "log.csv").read_text().startswith("epoch,update,val_top1,val_top5,val_loss,seconds\n1,4,")
    )


class Second(Objective):
    """Every update takes a second."""

    def __init__(self):
        super().__init__()
        self.seconds = 0

    def perf_counter(self) -> float:
        return self.seconds

    def forward(self, step: Step):
        self.seconds += 1
        return {"nothing": step.student.output.sum() * 0}


@pytest.mark.parametrize("log_every", [3, 4])
def test_the_speed_that_is_logged_counts_the_updates_of_its_time(log_every, tmp_path, monkeypatch):
    def steps(**options) -> list[float]:
        objective = Second()
        monkeypatch.setattr("leanformer.train.loop.time", objective)
        lf.train.fit(
            tiny(), recipe=RECIPE, data=arrays(), val=arrays(), objective=objective, output=tmp_path / "run",
            device="cpu", quiet=True, log_every=log_every, save_every=5, **options,
        )  # fmt: skip
        lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
        return [line["images_per_second"] for line in lines if line["kind"] == "step"]

    assert set(steps(max_updates=5)) == {8}
    assert set(steps(resume=True)) == {8}


def test_a_method_schedule_is_followed_and_ends_at_its_target(tmp_path):
    backbone = lf.create("vit", img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2, num_classes=4)
    model = lf.apply(backbone, lf.EViT(keep_rate=0.5, start_epoch=1, shrink_epochs=2))
    result = lf.train.fit(
        model, recipe=RECIPE.replace(epochs=3), data=arrays(), output=tmp_path / "run", device="cpu", quiet=True,
        log_every=1,
    )  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    rates = [line["keep_rate"] for line in lines if line["kind"] == "step"]
    assert rates[:5] == [1.0] * 5
    assert sorted(rates, reverse=True) == rates
    assert 0.5 < rates[-1] < 0.6
    assert result.model.blocks[1].mix.keep_rate == 0.5


def test_a_compiled_student_gives_the_taps_and_gradients_of_the_plain_one():
    objective = lf.train.FeatureDistillation("blocks.1") + lf.train.CrossEntropy()
    images, labels = torch.randn(4, 3, 16, 16), torch.arange(4)
    gradients = []
    for compile in (False, True):
        student, teacher = tiny(), tiny(1)
        learner = Learner(student, objective)
        teachers = Teachers({"teacher": teacher}, objective.teacher_taps(), lf.core.input_of(student))
        if compile:
            learner._compiled = (torch.compile(student, backend="aot_eager"),)
        for _ in range(2):
            student.zero_grad()
            terms = learner(images, labels, teachers(images), 0.0)
            sum(terms.values()).backward()
        gradients.append([p.grad for p in student.parameters()])
        learner.close()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*gradients))


def test_patches_are_products_while_a_compiled_model_trains_and_convolutions_again_after_that():
    model = lf.create("vit", img_size=16, patch_size=8, embed_dim=8, depth=1, num_heads=1, num_classes=3)
    images = torch.randn(2, 3, 16, 16)
    before, learner = model(images), Learner(model, parse_objective("cross_entropy"), compile=True)
    assert type(model.patch_embed.proj) is PatchConv
    torch.testing.assert_close(model(images), before)
    learner.close()
    assert type(model.patch_embed.proj) is torch.nn.Conv2d
    assert torch.equal(model(images), before)


@torch._dynamo.config.patch(skip_nnmodule_hook_guards=True)
def test_a_compiled_teacher_is_compiled_again_where_other_taps_read_it(monkeypatch):
    """Two runs in one process: the second wants what the first had no taps for."""
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: plain(model, backend="eager", **options))
    torch._dynamo.reset()
    teacher, images = tiny(), torch.randn(2, 3, 16, 16)
    for paths in ((), ("blocks.0",), ()):
        teachers = Teachers(
            {"teacher": teacher}, {"teacher": frozenset(paths)}, lf.core.input_of(teacher), compile=True
        )
        assert set(teachers(images)["teacher"].taps) == set(paths)
        teachers.close()


def test_the_moving_average_is_timms():
    model = lf.apply(tiny(), lf.RePa())
    ours, theirs = Average(model, decay=0.9, use_warmup=True), ModelEmaV3(model, decay=0.9, use_warmup=True)
    for step in (1, 2, 3):
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.add_(1)
        ours.update(model, step=step)
        theirs.update(model, step=step)
    for other in (tiny(2), tiny(3)):
        model = lf.apply(other, lf.RePa())  # another model of the same kind
        ours.update(model, step=4)
        theirs.update(model, step=4)
    expected = theirs.module.state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in ours.module.state_dict().items())


def test_a_single_teacher_plays_the_only_part_and_several_keep_theirs():
    model = torch.nn.Identity()
    assert list(in_their_roles(SoftDistillation(teacher="large"), {"teacher": model})) == ["large"]
    assert list(in_their_roles(CrossEntropy(), {"teacher": model})) == ["teacher"]
    both = SoftDistillation(teacher="large") + SoftDistillation(teacher="small")
    assert list(in_their_roles(both, {"teacher": model})) == ["teacher"]
    assert list(in_their_roles(SoftDistillation(), {"teacher": model, "cnn": model})) == ["teacher", "cnn"]


def headless(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return lf.create("vit", img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=0)


def test_the_missed_share_is_that_of_plain_loops():
    s, t = (torch.randn(5, 3, dtype=torch.double, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    mean = [sum(t[b, c].item() for b in range(5)) / 5 for c in range(3)]
    lost = sum((s[b, c] - t[b, c]).item() ** 2 for b in range(5) for c in range(3))
    whole = sum((t[b, c].item() - mean[c]) ** 2 for b in range(5) for c in range(3))
    assert missed_share(s, t).item() == pytest.approx(lost / whole, rel=1e-6)


def test_a_backbone_without_a_head_learns_its_teachers_features_and_labels_only_judge_it():
    teacher, data = headless(), arrays(64)
    student = lf.apply(headless(1), lf.EViT.finetune(keep_rate=0.5, at=(0,)))
    recipe = lf.recipes.plain(epochs=8, batch_size=16, learning_rate=2e-3)
    before = AnswerFeatures()(_features(student, teacher, data))["features"]
    result = lf.train.fit(student, recipe=recipe, data=data, val=arrays(16), teacher=teacher, device="cpu", quiet=True)
    assert AnswerFeatures()(_features(result.model, teacher, data))["features"] < 0.5 * before
    assert result.evaluation.summary().keys() == {"knn_top1", "knn_top5"}


@pytest.mark.parametrize("objective", ["relations:at=blocks.0", "relations:at=blocks.0 + answer_features"])
def test_a_backbone_without_a_head_is_judged_by_neighbours_whatever_it_learns(objective):
    result = lf.train.fit(
        headless(), recipe=RECIPE.replace(epochs=1), data=arrays(), val=arrays(16), teacher=headless(1), device="cpu",
        objective=objective, quiet=True,
    )  # fmt: skip
    assert result.evaluation.summary().keys() == {"knn_top1", "knn_top5"}
    assert (CrossEntropy() + SoftDistillation()).judge is None


def test_no_image_is_its_own_neighbour_where_those_for_validation_are_learnt_from():
    result = lf.train.fit(
        headless(), recipe=RECIPE.replace(epochs=1), data=arrays(), val=arrays(), teacher=headless(1), device="cpu",
        quiet=True,
    )  # fmt: skip
    assert result.evaluation.images == 16


def _features(student: nn.Module, teacher: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> Step:
    seen = EvaluationView(lf.core.input_of(teacher))(data[0])
    with torch.no_grad():
        views = [View(model.eval()(seen)) for model in (student, teacher)]
    return Step(seen, data[1], views[0], {"teacher": views[1]})


@pytest.mark.parametrize(("teacher", "message"), [(None, "learns from a teacher's features"), (tiny, "has no head")])
def test_a_backbone_without_a_head_is_not_trained_on_labels(teacher, message):
    with pytest.raises(ValueError, match=message):
        lf.train.fit(
            headless(), recipe=lf.recipes.plain(epochs=1, batch_size=8), data=arrays(), device="cpu", quiet=True,
            teacher=teacher() if teacher else None,
        )  # fmt: skip
