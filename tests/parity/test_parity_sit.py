"""SiT answers as the official student does, learns the official losses, and goes back to official files bit by bit."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import parity_files

import leanformer as lf
from leanformer.core import Step, View, taps
from leanformer.methods.sit.method import PRESETS
from leanformer.papers.official import RELEASED
from leanformer.papers.sit import recalibration_state

TOLERANCE = 1e-4
TEACHER = "Sense-X/SiT models.lvvit.LVViT(distillation_type=None)"
files = pytest.mark.parametrize("path", parity_files("sit_*.pt"), ids=lambda path: path.stem)


@cache
def answers(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


def student_of(answer: dict[str, Any]) -> Any:
    return lf.from_official(answer["official"], answer["config"], answer["state_dict"])


def objective_of(answer: dict[str, Any], student: Any) -> tuple[Any, Any]:
    """The objective with the official reverse modules, and the teacher."""
    teacher = lf.from_official(TEACHER, answer["config"], answer["teacher_state_dict"])
    objective = lf.card_of(student).methods[0].objective(student, teacher)
    assert objective is not None
    objective.load_state_dict(recalibration_state(answer["state_dict"]))
    return objective, teacher


def view(model: Any, paths: Any, images: torch.Tensor) -> View:
    with torch.no_grad(), taps(model, paths) as seen:
        return View(model(images), seen)


@files
def test_sit_gives_the_official_logits_and_tokens_of_every_block(path: Path):
    answer = answers(path)
    model = student_of(answer)
    objective, _ = objective_of(answer, model)
    seen = view(model, objective.student_taps(), answer["input"])
    assert (seen.output - answer["output"]).abs().max() < TOLERANCE
    tokens = [seen.taps[at][:, 1:] for at in objective.at]
    assert [t.shape for t in tokens] == [t.shape for t in answer["layer_tokens"]]
    assert max((ours - theirs).abs().max() for ours, theirs in zip(tokens, answer["layer_tokens"])) < TOLERANCE


@files
def test_reverse_modules_give_the_official_tokens_of_training(path: Path):
    answer = answers(path)
    model = student_of(answer)
    objective, _ = objective_of(answer, model)
    seen = view(model, objective.student_taps(), answer["input"])
    assert (seen.output - answer["train_output"]).abs().max() < TOLERANCE
    for ours, theirs in zip(objective.recalibrated(seen.taps), answer["train_layer_tokens"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=TOLERANCE)


@files
def test_objective_gives_the_official_losses(path: Path):
    answer = answers(path)
    student = student_of(answer)
    objective, teacher = objective_of(answer, student)
    step = Step(
        answer["input"],
        answer["labels"],
        view(student, objective.student_taps(), answer["input"]),
        {"teacher": view(teacher, objective.teacher_taps()["teacher"], answer["input"])},
    )
    terms = objective(step)
    for term in ("cls", "token", "logits"):
        assert terms[term].item() == pytest.approx(answer["losses"][f"loss_{term}"], rel=1e-4), term
    assert sum(terms.values()).item() == pytest.approx(answer["losses"]["loss"], rel=1e-4)


@files
def test_sit_goes_back_bit_equal_with_and_without_reverse_modules(path: Path):
    answer = answers(path)
    official = answer["state_dict"]
    model = student_of(answer)
    objective, _ = objective_of(answer, model)
    whole = lf.to_official(model) | objective.state_dict()
    assert whole.keys() == official.keys()
    assert all(torch.equal(whole[key], official[key]) for key in official)
    bare = {key: value for key, value in official.items() if not key.startswith("rtsm.")}
    again = lf.to_official(lf.from_official(answer["official"], answer["config"], bare))
    assert again.keys() == bare.keys()


@files
def test_fused_sit_gives_the_official_logits_and_has_nothing_of_the_reverse_modules(path: Path):
    answer = answers(path)
    fused = lf.fuse(student_of(answer))
    with torch.no_grad():
        assert (fused(answer["input"]) - answer["output"]).abs().max() < TOLERANCE
    assert not [name for name, _ in fused.named_parameters() if "rtsm" in name or "scale" in name]


@pytest.mark.parametrize("teacher", PRESETS)
def test_presets_are_the_released_stages(teacher: str):
    _, config = RELEASED[teacher.replace("lvvit_plus", "sit_lvvit")]
    assert tuple(config["stage_blocks"]) == PRESETS[teacher]


def test_a_model_of_our_own_has_the_official_form_when_it_starts_as_the_paper_does():
    backbone = lf.create(
        "lvvit", img_size=64, embed_dim=32, depth=4, num_heads=2, num_classes=5, stem="4c", aux="unused"
    )
    state = lf.to_official(lf.apply(backbone, lf.SiT(start="random")))
    assert {"tsm.0.scale", "tsm.2.weight.3.bias"} <= state.keys()
    again = lf.from_official(
        "sit_lvvit_tiny",
        {"img_size": 64, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 5, "stage_blocks": [1, 1, 1, 1]},
        state,
    )
    assert lf.to_official(again).keys() == state.keys()
    with pytest.raises(ValueError, match="start='random'"):
        lf.to_official(lf.apply(backbone, lf.SiT()))
