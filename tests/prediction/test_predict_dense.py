"""Rows of detectors and segmenters: what the model finds, at the picture's own size, in every kind of file."""

import base64
import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scenes import draw_scene, small_detector, small_segmenter

import leanformer as lf
from leanformer.cli import main
from leanformer.prediction import dense
from leanformer.prediction import parts as parts_module
from leanformer.tasks.segmentation import segment

HOW = {"device": "cpu", "workers": 0}
NAMES = {"detection": ["square", "disc"], "segmentation": ["ground", "square", "disc"]}


def photos(folder: Path, count: int = 5, bad: tuple[int, ...] = (1,)) -> list[Path]:
    """Scenes of several sizes; those that are `bad` hold no picture."""
    folder.mkdir()
    for index in range(count):
        pixels = draw_scene(index)[0].permute(1, 2, 0).numpy()
        Image.fromarray(pixels).resize((64 + 16 * (index % 3), 64)).save(folder / f"{index}.png")
    for index in bad:
        (folder / f"{index}.png").write_bytes(b"no picture")
    return sorted(folder.iterdir())


def model_for(task: str) -> Any:
    made = small_detector("mask_rcnn") if task == "detection" else small_segmenter()
    if task == "detection":
        made.roi_heads.detections_per_img = 8
    return lf.core.set_classes(made, NAMES[task]).eval()


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def listed(rows: Any) -> list[dict[str, Any]]:
    return [{name: plain(value) for name, value in row.items()} for row in rows]


@torch.no_grad()
def test_a_detectors_row_is_what_it_finds_in_the_whole_picture(tmp_path):
    paths, model = photos(tmp_path / "photos", 3), model_for("detection")
    rows = list(lf.predict(model, tmp_path / "photos", score=0.0, batch_size=1, **HOW))
    assert [row["error"] for row in rows] == [None, "not a picture of a known format", None]
    assert rows[1]["boxes"] is None
    masks = pytest.importorskip("faster_coco_eval.core.mask")
    for row, path in zip(rows[::2], paths[::2]):
        pixels = torch.tensor(np.asarray(Image.open(path))).permute(2, 0, 1) / 255
        found = model.answering_above(0.0)([pixels])[0]
        assert row["size"].tolist() == list(pixels.shape[1:])
        np.testing.assert_array_equal(row["boxes"], found["boxes"])
        np.testing.assert_array_equal(row["scores"], found["scores"])
        assert len(row["boxes"]) > 5
        assert row["classes"].tolist() == (found["labels"] - 1).tolist()
        assert row["names"] == [NAMES["detection"][label] for label in row["classes"]]
        runs = [{"size": plain(row["size"]), "counts": counts} for counts in row["masks"]]
        np.testing.assert_array_equal(masks.decode(runs).transpose(2, 0, 1), found["masks"][:, 0] > 0.5)


def test_a_score_leaves_out_what_is_below_it(tmp_path):
    photos(tmp_path / "photos", 2, bad=())
    model = model_for("detection")
    most = list(lf.predict(model, tmp_path / "photos", score=0.0, **HOW))
    least = sorted(most[0]["scores"])[-3]
    some = list(lf.predict(model, tmp_path / "photos", score=float(least), **HOW))
    assert len(some[0]["scores"]) == 2
    usual = lf.predict(model, tmp_path / "photos", **HOW)
    assert usual.settings.score == pytest.approx(0.05)


def test_a_segmenters_row_is_a_label_map_of_the_pictures_size_and_the_share_of_each_class(tmp_path, monkeypatch):
    paths, model = photos(tmp_path / "photos", 4), model_for("segmentation")
    rows = [row for row in lf.predict(model, tmp_path / "photos", **HOW) if not row["error"]]
    pictures = [Image.open(path) for index, path in enumerate(paths) if index != 1]
    for row, expected in zip(rows, segment(model, pictures), strict=True):
        label_map = np.asarray(Image.open(io.BytesIO(row["label_map"])))
        np.testing.assert_array_equal(label_map, expected)
        assert row["size"].tolist() == list(label_map.shape)
        shares = {label: float((label_map == label).mean()) for label in np.unique(label_map).tolist()}
        assert dict(zip(row["classes"].tolist(), row["shares"].tolist())) == pytest.approx(shares)
        assert row["shares"].tolist() == sorted(row["shares"], reverse=True)
        assert row["names"] == [NAMES["segmentation"][label] for label in row["classes"]]
    monkeypatch.setattr(dense, "LONGEST", 32)  # a large picture is shown smaller, and answered at its own size
    smaller = [row for row in lf.predict(model, tmp_path / "photos", **HOW) if not row["error"]]
    for row, small in zip(rows, smaller, strict=True):
        maps = [np.asarray(Image.open(io.BytesIO(each["label_map"]))) for each in (row, small)]
        assert maps[0].shape == maps[1].shape
        assert (maps[0] == maps[1]).mean() > 0.5


@pytest.mark.exhaustive
def test_broken_weights_are_told_and_no_empty_answers(tmp_path):
    photos(tmp_path / "photos", 1, bad=())
    segmenter, detector = model_for("segmentation"), model_for("detection")
    segmenter.head.bias.data[0] = float("nan")
    row = next(iter(lf.predict(segmenter, tmp_path / "photos", **HOW)))
    assert row["error"] == "the model's answer is not a finite number"
    next(detector.backbone.parameters()).data.fill_(float("nan"))
    with pytest.raises(ValueError, match="its weights are broken"):
        list(lf.predict(detector, tmp_path / "photos", **HOW))


@pytest.mark.parametrize("task", [pytest.param("detection", marks=pytest.mark.exhaustive), "segmentation"])
def test_every_kind_of_file_holds_the_rows_and_a_run_that_was_broken_off_goes_on(task, tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    photos(tmp_path / "photos")
    model = model_for(task)

    def answers() -> Any:
        return lf.predict(model, tmp_path / "photos", **HOW, **({"score": 0.0} if task == "detection" else {}))

    whole, texts = listed(answers()), ("size", "boxes", "scores", "classes", "names", "masks", "shares")
    monkeypatch.setattr(parts_module, "MOST_ROWS", 2)
    finish = parts_module.Parts.add

    def break_off(self: Any, batch: Any) -> None:
        if batch.first >= 4:
            raise RuntimeError("broken off")
        finish(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(parts_module.Parts, "add", break_off)
        with pytest.raises(RuntimeError, match="broken off"):
            answers().save(tmp_path / "rows.parquet")
    assert answers().save(tmp_path / "rows.parquet").rows == 1
    assert listed(parquet.read_table(tmp_path / "rows.parquet").to_pylist()) == whole
    for row in whole:
        if row.get("label_map"):
            row["label_map"] = base64.b64encode(row["label_map"]).decode()
    answers().save(tmp_path / "rows.jsonl")
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == whole
    answers().save(tmp_path / "rows.csv")
    cells = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    assert [{name: json.loads(value) if name in texts and value else value or None for name, value in row.items()}
            for row in cells] == whole  # fmt: skip


@pytest.mark.parametrize(
    ("task", "options", "says"),
    [
        ("detection", {"embed": True}, "embed is for classification, but this is a model for detection"),
        ("detection", {"top": 3}, "top is for classification"),
        ("detection", {"score": 1.0}, "score must be at least 0 and below 1"),
        ("segmentation", {"score": 0.5}, "score is for detection, but this is a model for segmentation"),
        ("segmentation", {"optimized": True}, "optimized is for classification"),
    ],
)
def test_what_a_task_does_not_know_is_refused_in_one_line(task, options, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        lf.predict(model_for(task), photos(tmp_path / "photos", 1), **HOW, **options)


def test_the_verb_writes_boxes_and_prints_a_few(tmp_path, capsys):
    saved = str(lf.save(model_for("detection"), tmp_path / "detector.safetensors"))
    photos(tmp_path / "photos", 2)
    command = ["predict", saved, str(tmp_path / "photos"), "--device", "cpu", "--score", "0.0", "--workers", "0"]
    assert main([*command, "--output", str(tmp_path / "boxes.jsonl")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "boxes.jsonl").read_text().splitlines()]
    assert len(rows[0]["boxes"][0]) == 4
    capsys.readouterr()
    assert main(command) == 0
    assert "masks" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_ray_gives_the_rows_of_one_process(tmp_path):
    pytest.importorskip("ray")
    photos(tmp_path / "photos")
    for task in ("detection", "segmentation"):
        model = model_for(task)
        alone = listed(lf.predict(model, tmp_path / "photos", **HOW))
        assert listed(lf.predict(model, tmp_path / "photos", device="cpu", engine="ray")) == alone
