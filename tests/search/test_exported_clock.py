"""The clock of other runtimes: it exports, opens and times what the search proposes, and compares nothing."""

import pytest
import torch

import leanformer as lf
from leanformer.core import fuse
from leanformer.search.clock import Place, clock_for


def merged(depth: int) -> torch.nn.Module:
    torch.manual_seed(0)
    vit = lf.create("vit", img_size=64, patch_size=8, embed_dim=48, depth=depth, num_heads=3, num_classes=10)
    return fuse(lf.apply(vit, lf.ToMe(merged=4)).eval())


@pytest.mark.parametrize("depth", [1, pytest.param(12, marks=pytest.mark.exhaustive)])
def test_models_that_merge_in_every_block_are_timed_without_a_comparison(depth, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.delattr("leanformer.export.source.check")
    clock = clock_for(Place(torch.device("cpu"), 2, torch.float32), "onnxruntime", repeats=1)
    assert clock.models({"lean": merged(depth)})["lean"].median > 0
