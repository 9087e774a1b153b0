"""Models side by side: weights and arguments are for those given by name, and files are opened as they are."""

import pytest
import torch
from helpers import randomise, tiny
from timm.models import VisionTransformer

import leanformer as lf
from leanformer.cli import main
from leanformer.cli.common import Comparison

SETS = ("img_size=16", "patch_size=8", "embed_dim=16", "depth=2", "num_heads=2", "num_classes=4")


@pytest.fixture
def places(tmp_path):
    """The weights of a plain model, and another model as a checkpoint and as a hub folder."""
    plain = VisionTransformer(img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=4)
    lean = lf.apply(randomise(tiny()), lf.EViT(at=(1,)))
    torch.save(plain.state_dict(), tmp_path / "vit.pth")
    lf.save(lean, tmp_path / "lean.safetensors")
    lf.hub.save_folder(lean, tmp_path / "folder")
    return tmp_path


@pytest.mark.parametrize("file", ["lean.safetensors", "folder"])
@pytest.mark.parametrize("first", ["name", "file"])
def test_a_file_stands_beside_a_named_model_with_weights_and_arguments(places, file, first):
    file = str(places / file)
    order = ("vit", file) if first == "name" else (file, "vit")
    how = {"checkpoint": places / "vit.pth", "arguments": SETS, "fused": False}
    rows = Comparison(order, ("repa",), **how).open()
    assert list(rows) == [*order, f"{order[0]} repa"]
    assert torch.equal(rows["vit"].head.weight, torch.load(places / "vit.pth")["head.weight"])
    assert [method.name for method in rows[file].card.methods] == ["evit"]
    against = Comparison((file,), against=("vit",), **how).open()
    assert torch.equal(against["vit"].head.weight, rows["vit"].head.weight)


@pytest.mark.parametrize("file", ["lean.safetensors", "folder"])
@pytest.mark.parametrize("verb", ["bench", "profile"])
def test_weights_and_arguments_for_files_alone_are_refused(places, verb, file, capsys):
    for words in (["--checkpoint", str(places / "vit.pth")], ["--set", "depth=2"]):
        assert main([verb, str(places / file), *words]) == 2
        assert "says itself how it was built" in capsys.readouterr().err


def test_a_checkpoint_with_methods_is_timed_as_it_would_be_deployed(tmp_path):
    model = lf.apply(lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2), lf.RePa())
    file = str(lf.save(model, tmp_path / "trained.safetensors"))
    fused = str(lf.save(lf.fuse(model, verify=False), tmp_path / "fused.safetensors"))
    found = Comparison((file, fused)).open()
    assert [each.card.fused for each in found.values()] == [True, True]
    assert not Comparison((file,), fused=False).open()[file].card.fused
