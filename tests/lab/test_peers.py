"""Peers come near the wanted MACs and answer; those that are not installed leave no row."""

import importlib.util
import sys
import types

import pytest
import timm
import torch

from lab import peers
from lab.__main__ import main
from leanformer.measure import count, timing

SMALL = {"img_size": 64, "embed_dim": 128, "depth": 2, "num_heads": 2, "num_classes": 5}


@pytest.fixture
def vit():
    return timm.create_model("deit_small_patch16_224", **SMALL).eval()


def test_torch_pruning_removes_channels_until_the_macs_fit(vit):
    pytest.importorskip("torch_pruning")
    whole, images = count(vit).macs, torch.randn(2, 3, 64, 64)
    model = peers.make_peer("torch-pruning", vit, whole // 2)
    assert count(model).macs == pytest.approx(whole / 2, rel=0.15)  # channels go in steps of eight
    assert model(images).shape == (2, 5)
    assert count(vit).macs == whole


def test_photographs_decide_which_channels_torch_pruning_removes(vit):
    pytest.importorskip("torch_pruning")
    whole, images = count(vit).macs, torch.randn(4, 3, 64, 64)
    model = peers.pruned(vit, whole // 2, images)
    assert count(model).macs == pytest.approx(whole / 2, rel=0.15)
    assert not torch.equal(model(images), peers.pruned(vit, whole // 2)(images))
    assert all(parameter.grad is None for parameter in (*vit.parameters(), *model.parameters()))


def test_token_merging_takes_the_number_of_merges_nearest_to_the_macs(vit, monkeypatch):
    """The library's own work is left to it; a module that drops r tokens a block stands for it."""

    def patch(model):
        model.r = 0
        for block in model.blocks:
            block.register_forward_pre_hook(lambda _, given: (given[0][:, model.r :],))

    fake = types.SimpleNamespace(patch=types.SimpleNamespace(timm=patch))
    monkeypatch.setitem(sys.modules, "tome", fake)
    whole = count(vit).macs
    model = peers.merged_by_tome(vit, int(0.7 * whole))
    best = abs(count(model).macs - 0.7 * whole)
    for r in (model.r - 1, model.r + 1):
        model.r = r
        assert abs(count(model).macs - 0.7 * whole) >= best


def test_what_is_not_installed_leaves_no_row(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.setitem(timing.SAMPLE_SECONDS, "cpu", 0.002)
    found = importlib.util.find_spec
    absent = ("torch_pruning", "tome", "pruna")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in absent else found(name, *rest))
    words = ["--device", "cpu", "--dry-run", "--batches", "1", "--only", "RePa 0.75 on DeiT-S batch|torch-pruning"]
    assert main(["suite", "peers", *words]) == 0
    shown = capsys.readouterr().out
    assert "RePa 0.75 on DeiT-S" in shown
    assert "torch-pruning" not in shown


def test_unknown_peers_are_refused():
    with pytest.raises(ValueError, match="known: torch-pruning, tome, pruna"):
        peers.installed("magic")
