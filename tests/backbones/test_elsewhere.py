"""Names of the hub and `pretrained=True`: fetched where there is a network, refused at once in one line where not."""

import time

import pytest
import timm
import torch
from huggingface_hub import constants
from timm.models import _hub, save_for_hf

import leanformer as lf
from leanformer.backbones import create_teacher
from leanformer.cli import main
from leanformer.core import Card, input_of

TINY = {"img_size": 32, "depth": 2, "num_classes": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model as timm leaves it for the hub, with another normalisation than timm's own of that name."""
    place = tmp_path_factory.mktemp("hub") / "tiny"
    model = timm.create_model("vit_tiny_patch16_224", **TINY)
    model.pretrained_cfg = {**model.pretrained_cfg, "mean": (0.1, 0.2, 0.3)}
    save_for_hf(model, str(place), model_args=TINY, safe_serialization=True)
    return place


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """A hub at a closed port of this machine, and nothing in its cache."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub(monkeypatch, folder):
    """A hub that has the files of the folder, whatever is asked for."""
    monkeypatch.setattr(_hub, "hf_hub_download", lambda repo_id, filename, **_: str(folder / filename))
    monkeypatch.setattr("leanformer.backbones.fetching.hub_answers", lambda: True)


def test_a_name_of_the_hub_gives_its_weights_and_a_card_that_needs_no_hub(hub, folder, tmp_path):
    model = lf.create("hf-hub:someone/tiny", pretrained=True)
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(model.eval()(images), theirs(images))
    assert lf.card_of(model).backbone == "vit_tiny_patch16_224"
    assert "hub" not in str(lf.card_of(model))
    lf.save(model, tmp_path / "m.safetensors")
    again = lf.load(tmp_path / "m.safetensors")
    assert torch.equal(again(images), theirs(images))
    assert input_of(again)["mean"] == (0.1, 0.2, 0.3)


def test_a_teacher_may_stand_on_the_hub_and_the_command_line_takes_such_names(hub, capsys):
    assert lf.blocks_of(create_teacher("hf-hub:someone/tiny", pretrained=True))
    assert main(["describe", "hf-hub:someone/tiny", "--set", "pretrained=True"]) == 0
    assert "vit_tiny_patch16_224 at 3x32x32" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "options"), [("deit_tiny_patch16_224", ["--set", "pretrained=True"]), ("hf-hub:timm/x.y", [])]
)
def test_without_a_network_one_line_says_so_at_once(no_network, capsys, name, options):
    start = time.perf_counter()
    assert main(["describe", name, *options]) == 2
    assert time.perf_counter() - start < 5
    told = capsys.readouterr().err.strip()
    assert len(told.splitlines()) == 1
    assert "127.0.0.1 does not answer" in told
    assert name in told


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json"):
        lf.create(f"local-dir:{tmp_path}/none")


def test_a_card_that_sends_the_reader_to_the_hub_is_refused():
    from leanformer.backbones import from_card

    with pytest.raises(ValueError, match="tampered with"):
        from_card(Card(backbone="hf-hub:someone/tiny"))
