"""Runs that learn from label maps on disk: damaged pictures, repeats, calibration, and maps of other images."""

import json
from pathlib import Path

import pytest
import torch
from helpers import picture_folder

import leanformer as lf
from leanformer.data.batches import Plan, Stretch
from leanformer.data.loader import training_batches
from leanformer.train import Annotator, LabelMaps, open_data, with_places, write_label_maps

SIZES = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 4}
RECIPE = lf.recipes.plain(epochs=1, batch_size=8)


def annotator() -> torch.nn.Module:
    torch.manual_seed(1)
    return lf.create("vit", **SIZES)


def student() -> torch.nn.Module:
    torch.manual_seed(0)
    return lf.create("lvvit", **{**SIZES, "img_size": 32, "patch_size": 16})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return picture_folder(tmp_path / "pictures")


@pytest.fixture
def maps(folder: Path, tmp_path: Path) -> Path:
    return write_label_maps(Annotator(annotator()), open_data(folder), tmp_path / "maps")


def fit(data, maps: Path, **options):
    options = {"device": "cpu", "quiet": True, "workers": 0, "evaluate_every": 0, "recipe": RECIPE, **options}
    return lf.train.fit(student(), data=data, objective=f"token_labels:labels={maps}", **options)


def spoil(folder: Path) -> str:
    """Make one picture unreadable; returns its name."""
    path = sorted((folder / "train").rglob("*.png"))[3]
    path.write_bytes(b"no picture")
    return path.name


@pytest.mark.parametrize("workers", [0, 1])
def test_a_picture_that_cannot_be_read_is_replaced_and_told(folder, maps, tmp_path, workers):
    name = spoil(folder)
    result = fit(folder, maps, output=tmp_path / "run", workers=workers)
    assert result.finished
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [name in line["name"] for line in lines if line.get("event") == "unreadable image"] == [True]


def test_more_damage_than_allowed_ends_the_run(folder, maps):
    for path in sorted((folder / "train").rglob("*.png"))[:4]:
        path.write_bytes(b"no picture")
    with pytest.raises(ValueError, match="images cannot be read, more than the 1 allowed"):
        fit(folder, maps)
    assert fit(folder, maps, damage_limit=0.5).finished


def test_maps_are_written_beside_a_picture_that_cannot_be_read_and_whole_or_not_at_all(folder, tmp_path):
    name, data = spoil(folder), open_data(folder)
    assert len(LabelMaps(write_label_maps(Annotator(annotator()), data, tmp_path / "maps"))) == len(data)
    assert [name in each for each in data.damage.names] == [True]
    for path in sorted((folder / "train").rglob("*.png"))[:4]:
        path.write_bytes(b"no picture")
    with pytest.raises(ValueError, match="more than the 1 allowed"):
        write_label_maps(Annotator(annotator()), open_data(folder), tmp_path / "others")
    assert not (tmp_path / "others").exists()


def test_repeated_augmentation_repeats_images_with_places():
    images, labels = torch.zeros(12, 3, 16, 16, dtype=torch.uint8), torch.arange(12) % 4
    plan = Plan(12, 6, repeats=3)
    view = {"input_size": (3, 16, 16), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    stretch = Stretch(plan, 0, 2, torch.device("cpu"), workers=0)
    batches = training_batches(with_places((images, labels)), RECIPE, view, stretch)
    indices = torch.cat([batch.labels[:, 1] for batch in batches]).long()
    assert torch.equal(indices, plan.order(0))
    assert indices.unique(return_counts=True)[1].tolist() == [3, 3, 3, 3]


def test_a_student_is_calibrated_on_the_images_that_have_maps(folder, maps):
    teacher = student()
    result = lf.train.fit(
        lf.apply(teacher, lf.RePa(idle_ratio=0.5)), recipe=RECIPE, data=folder, teacher=teacher, device="cpu",
        objective=f"token_labels:labels={maps} + soft", quiet=True, workers=0, evaluate_every=0,
    )  # fmt: skip
    assert result.start["calibrated_images"] == len(LabelMaps(maps))


def test_maps_of_other_images_are_refused_before_training(folder, maps, tmp_path):
    images, labels = torch.zeros(8, 3, 16, 16, dtype=torch.uint8), torch.arange(8) % 4
    with pytest.raises(ValueError, match=r"has maps of \d+ images, but arrays has 8") as caught:
        fit((images, labels), maps, output=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_student_answers_in_training_as_before_once_token_labels_have_trained_it(folder, maps):
    """With mix-token left on, cross-entropy would learn the labels of one image from patches of another."""
    result = fit(folder, maps, recipe=RECIPE.replace(ema=0.9))
    assert result.ema is not None
    for model in (result.model, result.ema):
        assert (model.return_dense, model.mix_token) == (False, False)
        assert isinstance(model.train()(torch.zeros(2, 3, 32, 32)), torch.Tensor)


def test_a_student_answers_in_training_as_before_where_training_was_refused(folder):
    model = student()
    with pytest.raises(ValueError, match="needs a teacher called 'annotator'"):
        lf.train.fit(model, recipe=RECIPE, data=folder, objective="token_labels", device="cpu", quiet=True)
    assert (model.return_dense, model.mix_token) == (False, False)
