"""The study of dense tasks: boxes follow masks, the queue goes on where it stopped, every shape is timed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.ops import masks_to_boxes

import leanformer as lf
from lab.__main__ import main
from lab.studies import dense_queue
from lab.studies.dense_memory import DetectionInMemory, Part, in_memory
from lab.studies.dense_rows import all_rows
from leanformer.data.batches import Plan, Stretch
from leanformer.data.dense_open import open_scenes

HEIGHT, WIDTH = 40, 48


def draw_pets(root: Path, count: int = 4) -> Path:
    """A bright rectangle on a dark ground in each picture, of two breeds, one a cat and one a dog."""
    (root / "images").mkdir(parents=True)
    (root / "annotations" / "trimaps").mkdir(parents=True)
    draws = np.random.default_rng(0)
    for split in ("trainval", "test"):
        lines = []
        for number in range(count):
            name = f"{split}_{number}"
            trimap = np.full((HEIGHT, WIDTH), 2, dtype=np.uint8)
            top, left = draws.integers(0, 20, 2)
            trimap[top : top + 16, left : left + 20] = 1
            Image.fromarray(trimap).save(root / "annotations" / "trimaps" / f"{name}.png")
            Image.fromarray(np.where(trimap == 1, 220, 30).astype(np.uint8)).save(root / "images" / f"{name}.jpg")
            lines.append(f"{name} {number % 2 + 1} {number % 2 + 1} 1")
        (root / "annotations" / f"{split}.txt").write_text("\n".join(lines))
    return root


def draw_camvid(root: Path, count: int = 2) -> Path:
    draws = np.random.default_rng(0)
    for split in ("train", "test"):
        (root / split).mkdir(parents=True)
        (root / f"{split}annot").mkdir()
        for number in range(count):
            numbers = draws.integers(0, 12, (HEIGHT, WIDTH), dtype=np.uint8)
            Image.fromarray(np.stack([20 * numbers] * 3, 2)).save(root / split / f"{number}.png")
            Image.fromarray(numbers).save(root / f"{split}annot" / f"{number}.png")
    return root


def command(tmp_path: Path, *more: str) -> int:
    return main([
        "dense-study", "--pets", str(tmp_path / "pets"), "--camvid", str(tmp_path / "camvid"), "--device", "cpu",
        "--dry-run", "--batch-size", "2", "--camvid-batch-size", "2", "--epochs", "1", "--camvid-epochs", "1",
        "--repeats", "1", "--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "study.json"), *more,
    ])  # fmt: skip


def rows_of(tmp_path: Path) -> dict[str, dict]:
    return {row["model"]: row for row in json.loads((tmp_path / "study.json").read_text())["rows"]}


def test_boxes_of_a_part_lie_around_what_is_left_of_the_masks_and_draws_follow_from_the_place(tmp_path):
    scenes = in_memory(open_scenes(f"pets:{draw_pets(tmp_path / 'pets', 8)}", "train", "masks"))
    recipe = lf.recipes.pets(epochs=2, batch_size=4, crop_scale=(0.1, 1.0))
    task, device = DetectionInMemory(), torch.device("cpu")
    batches = list(task.batches(scenes, recipe, {}, Stretch(Plan(8, 4), 0, 4, device)))
    again = list(task.batches(scenes, recipe, {}, Stretch(Plan(8, 4), 3, 4, device)))
    assert all(torch.equal(one, other) for one, other in zip(batches[3].images, again[0].images))
    seen = 0
    for batch in batches:
        for image, target in zip(batch.images, batch.labels):
            assert image.shape[1:] == target["masks"].shape[1:]
            assert 0 <= image.min() <= image.max() <= 1
            if len(target["boxes"]):
                found = masks_to_boxes(target["masks"]) + torch.tensor([0, 0, 1, 1])
                assert torch.equal(found, target["boxes"])
                bright = image[0] > 0.4
                assert (bright == target["masks"][0].bool()).float().mean() > 0.9
                seen += 1
    assert seen > 8


def test_a_part_is_cut_at_the_edges_of_the_picture():
    recipe = lf.recipes.pets(crop_scale=(1.0, 1.0), crop_ratio=(3 / 4, 4 / 3))
    for ratio in (0.0, 0.5, 1.0):
        part = Part.drawn([1.0, ratio, 0.999, 0.999, 0.0, 0.5], (30, 20), recipe)
        assert part.top + part.height <= 30
        assert part.left + part.width <= 20
        assert part.flipped


def test_the_queue_goes_on_where_it_stopped_and_adopted_rows_start_from_the_trained_detector(
    tmp_path, monkeypatch, capsys
):
    draw_pets(tmp_path / "pets")
    first, adopted = "RetinaNet, PoolFormer-S12", "RetinaNet, PoolFormer-S12 RePa 0.5 adopted"
    assert command(tmp_path, "--only", adopted) == 2
    assert "starts from 'RetinaNet, PoolFormer-S12', which is not there" in capsys.readouterr().err
    train, asked = dense_queue.train, []

    def fails_once(row, plan):
        asked.append(row.label)
        if len(asked) == 1:
            raise RuntimeError("out of memory")
        return train(row, plan)

    monkeypatch.setattr(dense_queue, "train", fails_once)
    assert command(tmp_path, "--only", f"{first}|{adopted}") == 0
    assert rows_of(tmp_path)[first]["failed"] == "RuntimeError: out of memory"
    assert command(tmp_path, "--only", f"{first}|{adopted}") == 0
    assert command(tmp_path, "--only", f"{first}|{adopted}") == 0
    assert asked == [first, first, adopted]
    rows = rows_of(tmp_path)
    assert {"ap", "ap50"} <= rows[first]["figures"].keys()
    assert rows[first]["start"] == "scratch"
    assert rows[adopted]["before_training"]["calibrated_slots"] == 4
    assert rows[adopted]["parameters"] < rows[first]["parameters"]


def test_every_shape_is_timed_beside_its_unchanged_backbone(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    monkeypatch.setattr(lf, "optimize", lambda model, **_: model)
    draw_pets(tmp_path / "pets")
    labels = ["RetinaNet, ViT-Ti", "RetinaNet, ViT-Ti RePa 0.75"]
    assert command(tmp_path, "--step", "time", "--only", "|".join([*labels, f"{labels[1]} adopted"])) == 0
    times = json.loads((tmp_path / "runs" / "times_cpu.json").read_text())
    assert list(times) == labels
    assert times[labels[0]]["over_unchanged"] == 1.0
    assert times[labels[1]]["over_unchanged"] > 0
    assert not times[labels[1]]["trained"]
    assert times[labels[1]]["macs"] < times[labels[0]]["macs"]


def test_an_adopted_row_comes_after_the_row_that_it_starts_from():
    rows = list(all_rows())
    assert all(rows.index(row.unchanged) < rows.index(row) for row in rows if row.adopted)


@pytest.mark.exhaustive
def test_every_row_trains_on_drawn_scenes(tmp_path):
    draw_pets(tmp_path / "pets")
    draw_camvid(tmp_path / "camvid")
    assert command(tmp_path) == 0
    rows = rows_of(tmp_path)
    assert set(rows) == {row.label for row in all_rows()}
    assert not any("failed" in row for row in rows.values())
    assert "mask_ap" in rows["Mask R-CNN, ViT-Ti"]["figures"]
    assert "miou" in rows["UPerNet, Swin-T"]["figures"]
