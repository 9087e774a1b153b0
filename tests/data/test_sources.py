"""Data sets and logs that other packages write and read: WebDataset shards, Hugging Face data sets, TensorBoard."""

import io
import json
from pathlib import Path

import pytest
import torch
from helpers import arrays, tiny
from PIL import Image

import leanformer as lf

RECIPE = lf.recipes.plain(epochs=2, batch_size=8)


def _fit(data, **options):
    return lf.train.fit(
        tiny(), **{"recipe": RECIPE, "data": data, "device": "cpu", "quiet": True, "workers": 0} | options
    )


def _pictures() -> list[Image.Image]:
    return [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in arrays()[0]]


def _png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    webdataset = pytest.importorskip("webdataset", reason="needs leanformer[data]")
    splits = {}
    for split in ("train", "validation"):
        names = [f"{split}-{shard}.tar" for shard in range(2)]
        for shard, name in enumerate(names):
            with webdataset.TarWriter(str(tmp_path / name)) as writer:
                for index, picture in list(enumerate(_pictures()))[shard::2]:
                    writer.write({"__key__": f"{index:03}", "png": _png(picture), "cls": str(index % 4).encode()})
        splits[split] = {"name": split, "num_samples": 32, "filenames": names, "shard_lengths": [16, 16]}
    (tmp_path / "_info.json").write_text(json.dumps({"splits": splits}))
    return tmp_path


@pytest.mark.parametrize("workers", [0, 2])
def test_webdataset_shards_train_and_evaluate(shards, workers):
    result = _fit(f"wds/{shards}", workers=workers)
    assert (result.updates, result.evaluation.images) == (8, 32)
    held = lf.train.evaluate(result.model, arrays(), device="cpu")
    assert result.evaluation.loss == pytest.approx(held.loss, abs=2e-3)


def test_a_run_on_shards_resumes_where_it_was(shards, tmp_path):
    whole = _fit(f"wds/{shards}", output=tmp_path / "whole")
    _fit(f"wds/{shards}", output=tmp_path / "parts", max_updates=5)
    parts = _fit(f"wds/{shards}", output=tmp_path / "parts", resume=True)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True))


def test_shards_refuse_repeated_augmentation_which_their_order_cannot_have(shards, tmp_path):
    with pytest.raises(ValueError, match="no image can be repeated: set repeats=1") as caught:
        _fit(f"wds/{shards}", recipe=RECIPE.replace(repeats=3), output=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("kind", "package"), [("hfds", "datasets"), ("wds", "webdataset")])
def test_a_missing_package_is_named(monkeypatch, tmp_path, kind, package):
    (tmp_path / "shards").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"needs the package {package}; pip install 'leanformer\[data\]'"):
        lf.train.open_data(f"{kind}/shards")


def test_shards_without_the_split_are_refused(shards):
    (shards / "_info.json").write_text(json.dumps({"splits": {}}))
    with pytest.raises(ValueError, match="cannot be opened by timm as split 'train'; train: split train not found"):
        _fit(f"wds/{shards}")


@pytest.fixture(params=["saved to disk", "parquet"])
def hugging_face(request, tmp_path: Path, monkeypatch) -> Path:
    datasets = pytest.importorskip("datasets", reason="needs leanformer[data]")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list("abcd"))})
    columns = {"image": _pictures(), "label": [i % 4 for i in range(32)]}
    held = datasets.Dataset.from_dict(columns, features=features)
    root = tmp_path / "With Capitals"
    if request.param == "parquet":
        root.mkdir()
        for split in ("train", "validation"):
            held.to_parquet(root / f"{split}.parquet")
    else:
        datasets.DatasetDict({"train": held, "validation": held}).save_to_disk(root)
    return root


def test_hugging_face_data_sets_on_disk_train_and_evaluate(hugging_face):
    assert lf.train.open_data(f"hfds/{hugging_face}", "val").classes == ("a", "b", "c", "d")
    result = _fit(f"hfds/{hugging_face}")
    assert (result.updates, result.evaluation.images) == (8, 32)
    held = lf.train.evaluate(result.model, arrays(), device="cpu")
    assert result.evaluation.loss == pytest.approx(held.loss, abs=2e-3)


def test_tensorboard_gets_every_logged_value(tmp_path):
    pytest.importorskip("tensorboard", reason="needs leanformer[track]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _fit(arrays(), val=arrays(), output=tmp_path / "run", tensorboard=True, log_every=2)
    (events,) = {path.parent for path in (tmp_path / "run").rglob("events.out.tfevents.*")}
    told = EventAccumulator(str(events)).Reload()
    assert {"loss", "learning_rate", "epoch/val_top1"} <= set(told.Tags()["scalars"])
    assert [scalar.step for scalar in told.Scalars("loss")] == [2, 4, 6, 8]


def test_half_precision_on_a_cpu_is_refused_with_what_would_work():
    with pytest.raises(ValueError, match="fp16 needs a GPU; on a CPU use bf16"):
        _fit(arrays(), precision="fp16")
