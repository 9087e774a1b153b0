"""Folders of the hub's layout: what was written is read again, by whichever library, and pushed as it is."""

import json

import pytest
import timm
import torch
from helpers import randomise
from timm.models import save_for_hf

import leanformer as lf
from leanformer.cli import main
from leanformer.core import input_of, set_classes
from leanformer.hub import folder as folders
from leanformer.measure import record, write_result


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    plain = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=2, num_classes=2)
    return set_classes(lf.apply(randomise(plain), lf.EViT(keep_rate=0.5)), ["cat", "n02099601"]).eval()


@pytest.fixture(scope="module")
def images():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    place = tmp_path_factory.mktemp("hub")
    row = {"model": "lean | vit", "mode": "eager", "batch": 8, "throughput": 12_345.6, "macs": 10**9}
    write_result(record("bench", [row], command="leanformer bench lean"), place / "bench.json")
    final = {"teacher_seconds": 0.02, "seconds": 0.01, "agreement": 91.5, "speedup": 2.0, "met": True}
    (place / "plan.json").write_text(json.dumps({"final": final, "about": {"place": ["cpu", 64]}}))
    results = [place / "bench.json", place / "plan.json", {"val": {"top1": 71.25, "images": 10}}]
    return lf.hub.save_folder(model, place / "lean", results=results, license="apache-2.0")


def test_a_folder_gives_the_same_model_again_in_python_and_on_the_command_line(folder, model, images, capsys):
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    again = lf.hub.load(folder)
    assert torch.equal(again(images), model(images))
    assert lf.card_of(again) == lf.card_of(model).replace(
        global_pool=None, input=None, classes=lf.card_of(again).classes, arguments=lf.card_of(again).arguments
    )
    assert main(["describe", str(folder)]) == 0
    assert "evit" in capsys.readouterr().out


def test_the_model_card_says_what_the_model_is_and_what_was_measured(folder):
    text = (folder / "README.md").read_text()
    head = text.split("---")[1].strip().splitlines()
    assert {"library_name: leanformer", "license: apache-2.0", "pipeline_tag: image-classification", "- evit"} <= set(
        head
    )
    for told in (
        "made lean with `evit`",
        "keep_rate=0.5",
        "3 x 32 x 32",
        "cat; n02099601",
        "12,346",
        "leanformer bench",
    ):
        assert told in text
    assert "lean \\| vit" in text, "a bar in a name would end the column"
    assert "| lean, optimised | 10 | 91.5 |" in text
    assert "71.25" in text


def test_config_json_holds_the_card(folder, model):
    told = json.loads((folder / "config.json").read_text())
    assert told["model_type"] == "leanformer"
    assert told["leanformer"]["methods"][0]["name"] == "evit"


def test_a_folder_of_timm_is_read(tmp_path, images):
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=2).eval()
    save_for_hf(theirs, str(tmp_path), model_args={"img_size": 32, "depth": 2}, safe_serialization=True)
    assert torch.equal(lf.hub.load_folder(tmp_path)(images), theirs(images))


def test_a_folder_of_transformers_is_read_with_its_processor(tmp_path, images):
    transformers = pytest.importorskip("transformers", reason="the extra 'hub' is not installed")
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=32,
                                    patch_size=8, num_labels=5, intermediate_size=24)  # fmt: skip
    theirs = randomise(transformers.ViTForImageClassification(config)).eval()
    theirs.save_pretrained(tmp_path)
    told = {"image_mean": [0.1, 0.2, 0.3], "resample": 3, "do_center_crop": True, "size": {"shortest_edge": 40},
            "crop_size": {"height": 32, "width": 32}}  # fmt: skip
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    ours = lf.hub.load_folder(tmp_path)
    torch.testing.assert_close(ours(images), theirs(images).logits, atol=1e-5, rtol=0)
    view = input_of(ours)
    assert (view["mean"], view["interpolation"], view["crop_pct"]) == ((0.1, 0.2, 0.3), "bicubic", 0.8)


def test_a_repository_is_fetched_and_pushed(folder, model, images, monkeypatch):
    import huggingface_hub

    pushed = {}

    class Api:
        def __init__(self, **_):
            pass

        def create_repo(self, name, private, exist_ok):
            pushed["private"] = private
            return f"https://huggingface.co/{name}"

        def upload_folder(self, repo_id, folder_path, **_):
            pushed[repo_id] = (folder_path / "README.md").read_text()

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
    monkeypatch.setattr("leanformer.hub.upload.hub_answers", lambda: True)
    monkeypatch.setattr("leanformer.backbones.fetching.hub_answers", lambda: True)
    assert lf.hub.push(model, "someone/lean") == "https://huggingface.co/someone/lean"
    assert pushed["private"]
    assert 'lf.hub.load("someone/lean")' in pushed["someone/lean"]
    lf.hub.push(folder, "someone/other")
    assert pushed["someone/other"] == (folder / "README.md").read_text()
    assert torch.equal(lf.hub.load("hf-hub:someone/lean")(images), model(images))


def test_what_cannot_be_read_or_pushed_is_said(tmp_path, model, monkeypatch):
    with pytest.raises(ValueError, match=r"cannot read .*config\.json"):
        lf.hub.load_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="no model that is known"):
        lf.hub.load_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    monkeypatch.setattr(folders.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"leanformer\[hub\]"):
        lf.hub.load_folder(tmp_path)
    with pytest.raises(ValueError, match="neither a folder nor"):
        lf.hub.load("no / name at all")
    monkeypatch.setattr("leanformer.hub.upload.hub_answers", lambda: False)
    with pytest.raises(ValueError, match="hub does not answer"):
        lf.hub.push(model, "someone/lean")
    monkeypatch.setattr("leanformer.hub.upload.hub_answers", lambda: True)
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        lf.hub.push(tmp_path, "someone/lean")
