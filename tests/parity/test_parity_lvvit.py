"""LV-ViT and SiT's teachers answer as the official models do, and go back to them bit by bit."""

from pathlib import Path

import pytest
import torch
from helpers import parity_files

import leanformer as lf

TOLERANCE = 1e-4
TEACHER = "Sense-X/SiT models.lvvit.LVViT(distillation_type=None)"


@pytest.mark.parametrize("path", parity_files("lvvit_*.pt"), ids=lambda path: path.stem)
def test_lvvit_gives_the_official_logits_and_tokens(path: Path):
    answer = torch.load(path, weights_only=True)
    model = lf.from_official(answer["official"], answer["config"], answer["state_dict"])
    with torch.no_grad():
        assert (model(answer["input"]) - answer["output"]).abs().max() < TOLERANCE
        assert (model.forward_features(answer["input"]) - answer["tokens"]).abs().max() < TOLERANCE


@pytest.mark.parametrize("path", parity_files("lvvit_*.pt"), ids=lambda path: path.stem)
def test_lvvit_goes_back_bit_equal(path: Path):
    answer = torch.load(path, weights_only=True)
    again = lf.to_official(lf.from_official(answer["official"], answer["config"], answer["state_dict"]))
    assert list(again) == list(answer["state_dict"])
    assert all(torch.equal(again[key], value) for key, value in answer["state_dict"].items())


@pytest.mark.parametrize("path", parity_files("sit_*.pt"), ids=lambda path: path.stem)
def test_sit_teacher_gives_the_official_logits_and_tokens_of_every_block(path: Path):
    answer = torch.load(path, weights_only=True)
    model = lf.from_official(TEACHER, answer["config"], answer["teacher_state_dict"])
    with torch.no_grad():
        logits = model(answer["input"])
        tokens = model.forward_intermediates(answer["input"], output_fmt="NLC", intermediates_only=True)
    assert (logits - answer["teacher_output"]).abs().max() < TOLERANCE
    assert len(tokens) == len(answer["teacher_layer_tokens"])
    for ours, theirs in zip(tokens, answer["teacher_layer_tokens"]):
        assert (ours - theirs).abs().max() < TOLERANCE


@pytest.mark.parametrize("path", parity_files("sit_*.pt"), ids=lambda path: path.stem)
def test_sit_teacher_goes_back_bit_equal(path: Path):
    state = torch.load(path, weights_only=True)
    again = lf.to_official(lf.from_official(TEACHER, state["config"], state["teacher_state_dict"]))
    assert list(again) == list(state["teacher_state_dict"])
    assert all(torch.equal(again[key], value) for key, value in state["teacher_state_dict"].items())
