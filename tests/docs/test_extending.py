"""The files that show how to extend the package run as programs and keep what they say."""

import subprocess
import sys

import add_a_backbone
import add_a_rewrite
import add_an_exporter
import pytest
import torch
from blocks import ROOT

import leanformer as lf
from leanformer.backbones import MODELS

EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("add_*.py"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_on_a_page(name):
    assert len((ROOT / "examples" / name).read_text().splitlines()) < 120
    assert any(name in page.read_text() for page in (ROOT / "docs" / "extend").glob("*.md"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_as_a_program(name):
    subprocess.run([sys.executable, str(ROOT / "examples" / name)], check=True, capture_output=True, timeout=240)


def test_the_backbone_is_saved_loaded_and_fused(tmp_path):
    assert add_a_backbone.tiny_conv.__name__ in MODELS
    model = lf.apply(lf.create("tiny_conv", depth=2), lf.RIFormer(blocks=(0,))).eval()
    lf.save(model, tmp_path / "own.safetensors")
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(lf.load(tmp_path / "own.safetensors").eval()(images), model(images))
    torch.testing.assert_close(lf.fuse(model)(images), model(images))


def test_the_rewrite_leaves_the_answers():
    model = lf.create("vit", init_values=0.1, img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=2).eval()
    fast = add_a_rewrite.SCALE_IN_PRODUCT.apply(model)
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(fast(images), model(images), atol=1e-6, rtol=1e-5)
    assert not add_a_rewrite.SCALE_IN_PRODUCT.places(fast)


def test_the_exporter_leaves_no_file_that_answers_otherwise(tmp_path, monkeypatch):
    from leanformer.export.source import export

    model = lf.create("vit", img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=2, num_classes=3)
    wrong = add_an_exporter.Target(
        name="wrong", suffix=".pt2.gz", runtime="torch", write=add_an_exporter.write,
        open=lambda path: lambda images: add_an_exporter.open_compressed(path)(images) + 1,
    )  # fmt: skip
    with pytest.raises(Exception, match=r"."):
        export(model, tmp_path / "lean.pt2.gz", wrong)
    assert not list(tmp_path.iterdir())
