"""A model built up part by part: parts can be left out, and what they add makes up the whole."""

import pytest
import torch
from families import backbone, images
from torch import nn

from lab.part_by_part import latency_part_by_part, without
from leanformer.core import blocks_of
from leanformer.measure import timing


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setitem(timing.SAMPLE_SECONDS, "cpu", 0.005)


def test_parts_can_be_left_out():
    model, batch = backbone("vit"), images(backbone("vit"))
    bare = without(model, "token mixer", "FFN", "norms")
    assert all(isinstance(block.mix, nn.Identity) for block in blocks_of(bare).values())
    assert bare(batch).shape == model(batch).shape
    assert torch.equal(without(model)(batch), model(batch))
    assert not torch.equal(without(model, "FFN")(batch), model(batch))


def test_what_the_parts_add_makes_up_the_whole():
    row = latency_part_by_part("tiny", backbone("vit"), torch.device("cpu"), 1, "float32", repeats=1)
    assert sum(row.parts.values()) == pytest.approx(row.whole)
