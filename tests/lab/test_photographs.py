"""Studies on photographs: rows that are there are not made again, and seeds are put together image by image."""

import json

import numpy as np
import pytest
import torch
from helpers import tiny
from PIL import Image

import leanformer as lf
from lab import imagenet, imagenet_times, transfer
from lab.__main__ import main
from lab.photographs import photographs
from lab.seeds import over_seeds, table
from lab.spread import interval
from leanformer.data import Arrays, open_data, write_pack
from leanformer.measure import timing


def some(seed: int) -> Arrays:
    """Twelve pictures of four breeds."""
    draw = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (12, 3, 16, 16), generator=draw, dtype=torch.uint8)
    return Arrays(images, torch.arange(12) % 4, ("a", "b", "c", "d"))


@pytest.fixture
def small(monkeypatch):
    """The studies with a tiny ViT and one student."""
    for study in (imagenet, transfer, imagenet_times):
        monkeypatch.setattr(study, "teacher_of", lambda checkpoint: tiny())
        monkeypatch.setattr(study, "students", lambda plans: {"EViT": lambda t: lf.apply(t, lf.EViT(at=(1,)))})
    monkeypatch.setattr(transfer, "BREEDS", 4)
    monkeypatch.setattr(transfer, "breeds", lambda root, split: some({"train": 0, "val": 1}[split]))


def test_a_teacher_and_its_students_are_trained_once_for_every_seed(small, tmp_path, capsys):
    words = ["--checkpoint", "none", "--pets", "none", "--epochs", "1", "--teacher-epochs", "2", "--batch-size", "4"]
    out = tmp_path / "pets.json"
    words += ["--device", "cpu", "--runs", str(tmp_path / "runs"), "--output", str(out)]
    assert main(["transfer", *words, "--seeds", "0"]) == 0
    first = json.loads(out.read_text())["rows"]
    assert {(row["model"], row["epochs"]) for row in first} == {("teacher", 2), ("EViT", 1)}
    (teacher,) = [row for row in first if row["model"] == "teacher"]
    assert teacher["test_agreement"] == 100
    capsys.readouterr()
    assert main(["transfer", *words, "--seeds", "0", "1"]) == 0
    assert "seed 0" not in capsys.readouterr().out
    again = json.loads(out.read_text())["rows"]
    assert [row for row in again if row["seed"] == 0] == first
    assert len(again) == 4


def test_a_student_is_judged_before_and_after_its_training_on_every_set_of_photographs(small, monkeypatch, tmp_path):
    monkeypatch.setattr(imagenet, "photographs", lambda judge: {"choose": some(1), "judge": some(2)})
    monkeypatch.setattr(imagenet, "labelled", lambda pack: some(3))
    monkeypatch.setattr(imagenet, "unlabelled", lambda data, images: Arrays.unlabelled(some(0).images))
    out = tmp_path / "study.json"
    words = ["--checkpoint", "none", "--data", "none", "--judge", "none", "--beside", "more", "--only", "EViT"]
    words += ["--epochs", "1", "--batch-size", "4", "--halves", "judge", "--device", "cpu"]
    assert main(["imagenet", *words, "--runs", str(tmp_path / "runs"), "--output", str(out)]) == 0
    result = json.loads(out.read_text())
    (row,) = result["rows"]
    assert {key.removesuffix("_top1") for key in row if key.endswith("top1")} == {
        "judge", "beside", "before_judge", "before_beside"
    }  # fmt: skip
    assert result["teacher"]["judge_agreement"] == result["teacher"]["beside_agreement"] == 100
    saved = lf.load(tmp_path / "runs" / "EViT, 1 epochs, seed 0" / "model.safetensors")
    assert list(lf.core.reducers(saved)) == ["blocks.1.mix"]


def test_pictures_of_pets_become_squares_with_their_breeds(tmp_path):
    (tmp_path / "annotations").mkdir()
    (tmp_path / "images").mkdir()
    for split, names in {"trainval": ("cat_1", "dog_2"), "test": ("cat_3",)}.items():
        rows = [f"{name} {1 if name.startswith('cat') else 2} 1 1" for name in names]
        (tmp_path / "annotations" / f"{split}.txt").write_text("\n".join(rows))
        for name in names:
            Image.new("RGB", (60, 40), (200, 10, 10)).save(tmp_path / "images" / f"{name}.jpg")
    found = transfer.breeds(tmp_path, "train")
    assert found.images.shape == (2, 3, 256, 256)
    assert found.labels.tolist() == [0, 1]
    assert found.classes == ("cat", "dog")


def test_students_are_timed_beside_timms_model_and_the_optimised_one(small, monkeypatch, tmp_path):
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.setitem(timing.SAMPLE_SECONDS, "cpu", 0.002)
    monkeypatch.setattr(imagenet_times, "timms_vit", lambda checkpoint: tiny())
    out = tmp_path / "times.json"
    words = ["--checkpoint", "none", "--data", "none", "--only", "EViT", "--batch", "1", "--device", "cpu"]
    assert main(["imagenet-times", *words, "--repeats", "1", "--output", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["model"] == "EViT"
    assert min(row["over_timm"], row["over_own"]) > 0


def row(seed: int, right: list[int], **more) -> dict:
    """A row of a study whose model has these photographs right."""
    bits = np.packbits(right).tobytes().hex()
    return {"model": "x", "seed": seed, "judge_top1": 100 * sum(right) / len(right), "judge_right": bits,
            "judge_agreement": 50.0, **more}  # fmt: skip


def test_seeds_are_put_together_photograph_by_photograph():
    one, two = [1] * 6 + [0] * 2, [1] * 4 + [0] * 4
    other = row(0, two, model="pixels")
    found = over_seeds([row(0, one), row(1, two), other, row(0, one, variant="longer")], "judge")
    assert found["x"].top1 == (75.0, 50.0)
    assert found["x"].right.tolist() == [1, 1, 1, 1, 0.5, 0.5, 0, 0]
    told = table(found, np.ones(8), "pixels", {"x": 1.5})
    (line,) = [line for line in told.splitlines() if line.startswith("| x |")]
    assert line.startswith("| x | 1.50x | 2 | 62.5 | 50.0 to 75.0 | -37.5 (")
    assert "| x, longer | 1.50x | 1 | 75.0 |" in told
    another = over_seeds([row(0, one, model="x, with other methods"), other], "judge")
    assert "| x, with other methods |  | 1 | 75.0 |" in table(another, np.ones(8), "pixels", {"x": 1.5})


def test_an_interval_of_shares_is_that_of_redrawn_photographs():
    draw = np.random.default_rng(1)
    one, other = draw.integers(0, 4, 400) / 3, draw.integers(0, 2, 400).astype(float)
    redrawn = [100 * (one - other)[draw.integers(0, 400, 400)].mean() for _ in range(4000)]
    assert interval(one, other) == pytest.approx(np.percentile(redrawn, (2.5, 97.5)), abs=0.4)


def test_halves_of_the_photographs_have_the_same_pixels_as_packs(tmp_path):
    images = [Image.fromarray(np.full((8, 8, 3), shade, np.uint8)) for shade in range(0, 60, 10)]
    for index, image in enumerate(images):
        image.save(tmp_path / f"{index}.jpg")
    files = [(tmp_path / f"{index}.jpg").read_bytes() for index in range(len(images))]
    write_pack(tmp_path / "few_val.npz", files, range(len(files)))
    assert main(["halves", "--judge", f"pack:{tmp_path}/few", "--output", str(tmp_path / "halves")]) == 0
    for name, part in photographs(f"pack:{tmp_path}/few").items():
        found = open_data(f"pack:{tmp_path}/halves/{name}", "val")
        assert torch.equal(found.images, part.images)
        assert torch.equal(found.labels, part.labels)
