"""Latency by component: every module is timed once, on its own inputs, and the clock sees what is slow."""

import json
import time

import pytest
import torch
from families import BACKBONES, backbone, images
from torch import nn

import leanformer as lf
from leanformer.cli import main
from leanformer.core import blocks_of
from leanformer.measure import timing
from leanformer.measure.components import Together, _captured, _ran, _without_reduction, components, profile


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setitem(timing.SAMPLE_SECONDS, "cpu", 0.005)


class Slow(nn.Module):
    """Another module, and then a nap."""

    def __init__(self, fn: nn.Module, seconds: float):
        super().__init__()
        self.fn, self.seconds = fn, seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return self.fn(x)


@pytest.mark.parametrize("family", BACKBONES)
def test_every_parameter_belongs_to_at_most_one_component(family):
    model = backbone(family)
    paths = [path for found in components(model).values() for path in found]
    owned = [id(p) for path in paths for p in model.get_submodule(path).parameters()]
    assert len(owned) == len(set(owned))
    inside = {id(p) for block in blocks_of(model).values() for n, p in block.named_parameters() if "norm" not in n}
    scales = {id(p) for n, p in model.named_parameters() if "scale" in n or "gamma" in n}
    assert inside - scales <= set(owned)


@pytest.mark.parametrize("family", ["vit", "swin", "timm_poolformer", "gfnet"])
def test_a_component_gives_alone_what_it_gives_in_the_model(family):
    model = backbone(family)
    outputs = {}
    handles = [
        m.register_forward_hook(lambda m, i, o, p=p: outputs.__setitem__(p, o)) for p, m in model.named_modules()
    ]
    with torch.inference_mode():
        seen = _captured(model, images(model), _without_reduction(model))
        for handle in handles:
            handle.remove()
        for paths in components(model).values():
            ran = [inner for path in paths for inner in _ran(path, seen)]
            alone = Together([model.get_submodule(p) for p in ran], [seen[p] for p in ran])(images(model))
            assert ran
            assert all(torch.equal(a, outputs[p]) for a, p in zip(alone, ran))


@pytest.mark.parametrize("component", ["patch embedding", "token mixer", "FFN", "head"])
def test_a_slow_part_is_found(component):
    model = lf.adopt(backbone("vit"))
    path = {
        "patch embedding": "patch_embed",
        "token mixer": "blocks.0.mix.fn",
        "FFN": "blocks.2.ffn.fn",
        "head": "head",
    }
    where = path[component]
    inner = model.get_submodule(where)
    if component == "patch embedding":
        model.patch_embed.proj = Slow(inner.proj, 0.02)
    else:
        model.set_submodule(where, Slow(inner, 0.02))
    row = profile(model, device="cpu", repeats=1).rows[0]
    assert row.parts[component] >= 0.02
    assert max(row.parts, key=lambda name: row.parts[name]) == component


def test_token_reduction_is_told_apart_from_attention():
    for method in (lf.EViT(), lf.SiT()):
        row = profile(lf.apply(backbone("vit"), method), device="cpu", repeats=1).rows[0]
        assert row.parts["token reduction"] >= 0
        assert row.parts["token mixer"] > 0
    assert "token reduction" not in profile(backbone("vit"), device="cpu", repeats=1).rows[0].parts


@pytest.mark.slow
def test_components_can_be_compiled():
    model = lf.create("vit", img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=1, num_classes=2)
    row = profile(model, device="cpu", modes=["compiled"], repeats=1).rows[0]
    assert row.mode == "compiled"
    assert row.parts["FFN"] > 0


def test_profile_writes_a_result_and_a_figure(tmp_path, capsys):
    size = [f"--set={a}" for a in ("img_size=32", "patch_size=8", "embed_dim=32", "depth=4", "num_heads=2")]
    files = ["--output", str(tmp_path / "p.json"), "--figure", str(tmp_path / "p.svg")]
    assert main(["profile", "vit", *size, "--apply", "evit", "--device", "cpu", "--repeats", "1", *files]) == 0
    found = json.loads((tmp_path / "p.json").read_text())
    assert found["kind"] == "profile"
    assert [row["model"] for row in found["rows"]] == ["vit", "vit evit"]
    assert "token reduction" in (tmp_path / "p.svg").read_text()
    assert "token mixer" in capsys.readouterr().out
    assert main(["profile"]) == 2
