"""Names of classes belong to the card: training writes them, everything keeps them, eval and pictures show them."""

import json

import pytest
import torch
from families import VIT
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import leanformer as lf
from leanformer.cli import main
from leanformer.core import card_json, classes_of, plain_of, set_classes
from leanformer.visualise.names import class_names_of

NAMES = ("ant", "bee", "cat", "dog", "elk")
SMALL = {"img_size": 16, "patch_size": 8, "embed_dim": 8, "depth": 1, "num_heads": 1}


def named(**arguments):
    return set_classes(lf.create("vit", **{**VIT, **arguments}), NAMES)


def test_names_survive_save_load_apply_fuse_options_and_resize(tmp_path):
    model = named()
    lean = lf.apply(model, lf.EViT(keep_rate=0.7))
    for kept in (
        lf.load(lf.save(model, tmp_path / "model.safetensors")),
        lean,
        lf.with_options(lean, keep_rate=0.5),
        lf.fuse(lf.apply(model, lf.RePa(idle_ratio=0.5)), verify=False),
        lf.resize(model, 64),
    ):
        assert classes_of(kept) == NAMES


def test_an_optimised_model_is_resized_gets_a_head_and_keeps_names_given_later(tmp_path, monkeypatch):
    monkeypatch.setenv("LEANFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    fast = lf.optimize(lf.create("vit", **VIT), device="cpu", batch=2, search=False)
    assert lf.resize(fast, 64)(torch.zeros(1, 3, 64, 64)).shape == (1, 5)
    other = lf.with_head(fast, 3)
    assert other(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
    assert lf.card_of(other).optimised is None
    set_classes(fast, NAMES)
    assert card_json(fast)["classes"] == list(NAMES)
    assert classes_of(lf.resize(fast, 64)) == NAMES
    kept = lf.with_head(fast, 2, [NAMES[3], NAMES[1]]).head.weight
    assert torch.equal(kept, plain_of(fast).head.weight[[3, 1]])
    assert classes_of(lf.load(lf.save(fast, tmp_path / "fast.safetensors"))) == NAMES


def test_another_number_of_classes_takes_the_names_off(tmp_path):
    assert classes_of(lf.with_head(named(), 3)) is None
    assert classes_of(lf.with_head(named(), 2, ["x", "y"])) == ("x", "y")
    reset = named()
    reset.reset_classifier(3)
    assert classes_of(lf.load(lf.save(reset, tmp_path / "model.safetensors"))) is None


def test_names_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="2 names of classes do not fit a model with 5 outputs"):
        set_classes(lf.create("vit", **VIT), ["a", "b"])
    with pytest.raises(ValueError, match="names of classes are texts"):
        set_classes(lf.create("vit", **VIT), [1, 2, 3, 4, 5])  # type: ignore[list-item]


def test_a_new_head_leaves_the_old_model_alone_and_takes_rows_by_the_names_on_its_card():
    model = named()
    before = model.head.weight.detach().clone()
    new = lf.with_head(model, 2, ["dog", "bee"])
    assert torch.equal(model.head.weight, before)
    assert model.num_classes == 5
    assert classes_of(model) == NAMES
    assert torch.equal(new.head.weight, before[[3, 1]])


def test_a_checkpoint_without_names_loads_as_before(tmp_path):
    model = lf.create("vit", **VIT).eval()
    path = lf.save(model, tmp_path / "model.safetensors")
    with safe_open(path, framework="pt") as file:
        card = json.loads(file.metadata()["leanformer"])
    del card["classes"]
    save_file(load_file(path), path, {"leanformer": json.dumps(card)})
    again, images = lf.load(path), torch.randn(2, 3, 32, 32)
    assert classes_of(again) is None
    assert torch.equal(again(images), model(images))


def test_wordnet_ids_are_shown_as_words_and_other_names_as_they_are():
    assert class_names_of(3, ["n02099601", "my cat", "n00000000"]) == ("golden retriever", "my cat", "n00000000")
    assert class_names_of(1000)[1] == "goldfish"
    assert class_names_of(2) == ("class 0", "class 1")


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "val"):
        for label, name in enumerate(("n01440764", "n01443537")):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (16, 16), (99 * label, 30 * i, 0)).save(tmp_path / split / name / f"{i}.png")
    return tmp_path


def test_training_on_a_folder_keeps_its_names_and_eval_prints_words(folder, tmp_path, capsys):
    model = lf.create("vit", num_classes=2, **SMALL)
    recipe = lf.recipes.plain(epochs=1, batch_size=4)
    lf.train.fit(model, recipe=recipe, data=str(folder), output=tmp_path / "run", device="cpu", quiet=True, workers=0)
    assert classes_of(model) == ("n01440764", "n01443537")
    path = tmp_path / "run" / "model.safetensors"
    assert classes_of(lf.load(path)) == ("n01440764", "n01443537")
    capsys.readouterr()
    assert main(["eval", str(path), "--data", str(folder), "--workers", "0", "--per-class", "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    assert "tench" in told
    assert "goldfish" in told


def test_the_card_as_json_has_the_names():
    assert card_json(named())["classes"] == list(NAMES)
