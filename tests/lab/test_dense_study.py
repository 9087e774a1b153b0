"""The study of dense tasks: boxes follow masks, the queue goes on where it stopped, every shape is timed."""

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scenes import small_detector
from torch.nn import functional as F
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.ops import masks_to_boxes

import leanformer as lf
from lab.__main__ import main
from lab.studies import dense_pack, dense_queue
from lab.studies.dense_album import in_memory
from lab.studies.dense_judging import pasted, run_lengths
from lab.studies.dense_memory import DetectionInMemory, Part, parts_of
from lab.studies.dense_rows import all_rows
from lab.studies.dense_timing import Conditions as Timing
from lab.studies.dense_timing import Entry, time_group
from leanformer.data.batches import Plan, Stretch
from leanformer.data.dense_open import open_scenes
from leanformer.tasks import Detection
from leanformer.tasks.detection_metrics import encoded
from leanformer.train.evaluation import Conditions

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


SEEN = {"sides": (48, 48), "multiple": 16, "normalised": ([0.5] * 3, [0.25] * 3)}


def test_boxes_of_a_part_lie_around_what_is_left_of_the_masks_and_draws_follow_from_the_place(tmp_path):
    scenes = in_memory(open_scenes(f"pets:{draw_pets(tmp_path / 'pets', 8)}", "train", "masks"))
    recipe = lf.recipes.pets(epochs=2, batch_size=4, crop_scale=(0.1, 1.0))
    task, device = DetectionInMemory(), torch.device("cpu")
    batches = list(task.batches(scenes, recipe, SEEN, Stretch(Plan(8, 4), 0, 4, device)))
    again = list(task.batches(scenes, recipe, SEEN, Stretch(Plan(8, 4), 3, 4, device)))
    assert torch.equal(batches[3].images, again[0].images)
    seen = 0
    for batch in batches:
        objects = batch.labels
        for image, mask, box, size, there in zip(
            batch.images, objects.masks, objects.boxes[:, 0], objects.sizes.tolist(), objects.there[:, 0]
        ):
            height, width = size
            assert max(size) == 48
            assert not image[:, height:].any()
            assert not image[:, :, width:].any()
            if there:
                own = mask[:1]
                assert own.shape == (1, height, width)
                found = masks_to_boxes(own) + torch.tensor([0, 0, 1, 1])
                assert (found - box).abs().max() <= 2  # of the pixels of a part that was enlarged up to three times
                bright = image[0, :height, :width] * 0.25 + 0.5 > 0.4
                assert (bright == own[0].bool()).float().mean() > 0.9
                seen += 1
    assert seen > 8


@pytest.mark.parametrize("kind", ["retinanet", "mask_rcnn"])
def test_batches_are_what_the_detector_makes_of_the_parts_itself(tmp_path, kind):
    scenes = in_memory(open_scenes(f"pets:{draw_pets(tmp_path / 'pets', 8)}", "train", "masks"))
    model, task, recipe = small_detector(kind, side=96).train(), DetectionInMemory(), lf.recipes.pets()
    stretch = Stretch(Plan(8, 8), 0, 1, torch.device("cpu"))
    batch, rows = next(task.batches(scenes, recipe, task.view(model), stretch)), next(parts_of(scenes, recipe, stretch))
    images = [part.of_image(photo.image) for photo, part in rows]
    targets = [{"boxes": part.of_boxes(photo.target.boxes), "labels": photo.target.labels + 1,
                "masks": part.of_map(photo.target.masks.byte())} for photo, part in rows]  # fmt: skip
    seen, shown = model.transform(images, targets)
    torch.testing.assert_close(batch.images, seen.tensors, rtol=1e-4, atol=1e-5)
    for index, (target, (height, width)) in enumerate(zip(shown, seen.image_sizes)):
        torch.testing.assert_close(batch.labels.boxes[index], target["boxes"])
        assert batch.labels.masks[index].shape[1:] == (height, width)
        assert torch.equal(batch.labels.masks[index], target["masks"])
        assert torch.equal(batch.labels.labels[index], target["labels"])


@pytest.mark.parametrize("kind", ["retinanet", "mask_rcnn"])
def test_answers_on_scenes_in_memory_are_judged_as_the_library_judges_them(tmp_path, kind):
    scenes = in_memory(open_scenes(f"pets:{draw_pets(tmp_path / 'pets', 6)}", "val", "masks"))
    scenes = scenes if kind == "mask_rcnn" else scenes.without_masks()
    torch.manual_seed(0)
    model = small_detector(kind, side=64).eval().lenient((64, 64))
    if kind == "mask_rcnn":
        torch.nn.init.normal_(model.roi_heads.mask_predictor.mask_fcn_logits.weight)
    how = Conditions(torch.device("cpu"), 4, "no", 0)
    mine, theirs = (task.measure(model, scenes, {}, how) for task in (DetectionInMemory(), Detection()))
    assert mine.summary() == pytest.approx(theirs.summary())
    assert mine.summary()["ap50"] > 0
    assert mine.qualities == pytest.approx(theirs.qualities)


def test_masks_are_pasted_as_torchvision_pastes_them_and_encoded_as_coco_encodes_them():
    torch.manual_seed(0)
    masks, boxes = torch.rand(30, 28, 28), torch.rand(30, 2, 2).sort(1)[0] * torch.tensor([70.0, 50.0])
    boxes[0, 1] = boxes[0, 0] + 0.2  # smaller than a pixel
    wanted = paste_masks_in_image(masks[:, None], boxes.flatten(1), (50, 70))[:, 0] > 0.5
    columns = pasted(masks, boxes.flatten(1), (50, 70))
    assert torch.equal(columns.mT, wanted)
    columns[:3] = torch.tensor([True, False, False])[:, None, None]
    assert run_lengths(columns) == [encoded(mask) for mask in columns.mT]


def test_pictures_that_were_made_smaller_to_travel_come_back_as_large_as_their_masks(tmp_path):
    whole = open_scenes(f"pets:{draw_pets(tmp_path / 'pets', 6)}", "val", "masks")
    small = open_scenes(f"pets:{shutil.copytree(tmp_path / 'pets', tmp_path / 'small')}", "val", "masks")
    for entry in small.entries:
        Image.open(entry.path).reduce(2).save(entry.path, quality=95)
    for one, other in zip(in_memory(whole).entries, in_memory(small, folder=tmp_path / "kept").entries, strict=True):
        assert one.image.shape == other.image.shape
        assert torch.equal(one.target.masks, other.target.masks)
        half = [F.avg_pool2d(photo.image.float(), 2) for photo in (one, other)]
        assert (half[0] - half[1]).abs().mean() < 4
    for entry in small.entries:
        entry.path.unlink()
    again = in_memory(small, folder=tmp_path / "kept")  # what another process decoded
    assert torch.equal(again.entries[-1].image, other.image)


def test_packs_hold_what_the_study_reads(tmp_path):
    draw_pets(tmp_path / "pets")
    draw_camvid(tmp_path / "camvid")
    dense_pack.main(tmp_path / "pets", tmp_path / "camvid", tmp_path / "packs", workers=1)
    with tarfile.open(tmp_path / "packs" / "dense_0.tar") as tar:
        tar.extractall(tmp_path / "there", filter="data")
    for source, split, wanted in (("pets", "val", "masks"), ("camvid", "test", "label_map")):
        mine, theirs = (
            in_memory(open_scenes(f"{source}:{root / source}", split, wanted)).entries
            for root in (tmp_path / "there", tmp_path)
        )
        for one, other in zip(mine, theirs, strict=True):
            kept = "masks" if source == "pets" else "label_map"
            assert torch.equal(getattr(one.target, kept), getattr(other.target, kept))
            assert (one.image.float() - other.image.float()).abs().mean() < 16


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
    monkeypatch.setattr(lf, "optimize", None)  # nothing is timed again, nor compiled for that
    assert command(tmp_path, "--step", "time", "--only", "|".join(labels)) == 0
    assert command(tmp_path, "--step", "compile", "--only", "|".join(labels)) == 0
    assert json.loads((tmp_path / "runs" / "times_cpu.json").read_text()) == times


def test_rows_and_times_of_another_machine_are_taken_along_where_there_are_none_here(tmp_path):
    label, other = "RetinaNet, ViT-Ti", "RetinaNet, Swin-T"
    known = {"rows": [{"model": label, "epochs": 1, "seed": 0, "failed": "no"},
                      {"model": other, "epochs": 1, "seed": 0, "failed": "yes"}],
             "times": {"cuda": {other: {"milliseconds": {}, "over_unchanged": None}}}}  # fmt: skip
    (tmp_path / "known.json").write_text(json.dumps(known))
    draw_pets(tmp_path / "pets")
    assert command(tmp_path, "--step", "decode", "--only", label) == 0
    assert command(tmp_path, "--only", label, "--also", str(tmp_path / "known.json")) == 0
    rows = rows_of(tmp_path)
    assert len(rows) == 2
    assert "ap" in rows[label]["figures"]
    assert rows[other]["failed"] == "yes"
    assert set(rows[other]["times"]) == {"cuda"}


def test_forms_that_fail_are_left_out_and_timing_waits_for_its_file_but_compiles_nothing_behind_it(
    tmp_path, monkeypatch
):
    label, go = "RetinaNet, ViT-Ti", tmp_path / "go"
    tried = []

    def fails(model, **how):
        tried.append(how)
        raise RuntimeError("no compiler")

    monkeypatch.setattr(lf, "optimize", fails)
    monkeypatch.setattr(torch, "compile", lambda module, **_: go.touch() or module)
    draw_pets(tmp_path / "pets")
    assert command(tmp_path, "--step", "time", "--go", str(go), "--only", f"{label}|{label} RePa 0.5") == 0
    times = json.loads((tmp_path / "runs" / "times_cpu.json").read_text())
    assert len(tried) == 2
    assert list(times[label]["milliseconds"]) == ["eager", "compiled backbone"]
    assert list(times[f"{label} RePa 0.5"]["milliseconds"]) == ["eager"]
    assert command(tmp_path, "--step", "compile", "--go", str(go), "--only", label) == 0
    assert len(tried) == 2


class Halved(torch.nn.Module):
    """Stands for a segmenter: what gives its maps, and no head."""

    def __init__(self):
        super().__init__()
        self.features = torch.nn.Conv2d(3, 4, 2, 2)

    def forward(self, images):
        return self.features(images)


def test_every_model_is_compiled_however_many_groups_a_process_times(monkeypatch):
    made, original = [], torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **how: original(module, backend=count_graphs, **how))

    def count_graphs(graph, inputs):
        made.append(graph)
        return graph

    how = Timing(device=torch.device("cpu"), forms=("compiled backbone",), repeats=1)
    for number in range(10):
        time_group([Entry("", str(number), Halved, (3, 8, 8))], how)
    assert len(made) == 10


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
