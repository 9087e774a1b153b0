"""No augmentation of any recipe fails on any picture, and only a file that cannot be decoded counts as damaged."""

import random
import warnings

import numpy as np
import pytest
import torch
from helpers import arrays, picture_folder, tiny
from PIL import Image
from timm.data import auto_augment

import leanformer as lf
from leanformer.data import batches, reading
from leanformer.data.draws import seed_all
from leanformer.data.loader import augment_of
from leanformer.data.pictures import AugmentationError, PictureAugment, pipeline
from leanformer.data.rand_augment import OPERATIONS, one_layer
from leanformer.papers.recipes import PRESETS, PUBLISHED

CONFIG = {"input_size": (3, 16, 16), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.25)}
SETTINGS = ("crop_scale", "crop_ratio", "flip", "color_jitter", "auto_augment", "interpolation", "erasing")
FURTHER = ("original", "v0", "v0r", "originalr", "3a", "augmix-m5-w4-d2", "rand-m20-mmax30-n4-p1.0", "rand-m9-t3a")
"""Policies of timm that no recipe has, but a user may ask for."""


def recipes() -> list[lf.train.Recipe]:
    """One recipe for each augmentation that a published recipe or a preset has."""
    every = [published.recipe for published in PUBLISHED.values()] + [preset() for preset in PRESETS.values()]
    return list({tuple(getattr(recipe, name) for name in SETTINGS): recipe for recipe in every}.values())


def odd_pictures() -> dict[str, Image.Image]:
    """Pictures of every shape and mode, as the loader hands them on: decoded to RGB."""
    noise = np.random.RandomState(0).randint(0, 256, (40, 50, 4), np.uint8)
    whole = Image.fromarray(noise)
    found = {
        "rgb": whole.convert("RGB"), "rgba": whole, "grey": whole.convert("L"), "palette": whole.convert("P"),
        "black and white": whole.convert("1"), "one colour": Image.new("RGB", (30, 30), (7, 7, 7)),
        "one pixel": whole.crop((0, 0, 1, 1)), "two pixels": whole.crop((0, 0, 2, 1)),
        "a line": whole.crop((0, 0, 50, 1)), "a column": whole.crop((0, 0, 1, 40)), "cmyk": whole.convert("CMYK"),
    }  # fmt: skip
    return {name: picture.convert("RGB") for name, picture in found.items()}


@pytest.mark.parametrize("policy", ["recipes", *FURTHER])
def test_every_augmentation_works_on_every_picture(policy):
    """Some thousand draws in all, sharper ones than the recipes' among them."""
    asked = recipes() if policy == "recipes" else [lf.train.Recipe(auto_augment=policy, interpolation="random")]
    assert policy != "recipes" or len(asked) >= 5
    for number, recipe in enumerate(asked):
        views = PictureAugment(recipe, CONFIG, [(24, 20)])
        for name, picture in odd_pictures().items():
            for draw in range(15):
                seed_all(number, name, draw)
                small, large = views(picture)
                assert small.shape == (3, 16, 16)
                assert large.shape == (3, 24, 20)
                assert small.isfinite().all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 30), (30, 1), (2, 3), (40, 50)])
def test_every_augmentation_works_on_arrays_of_every_shape(shape):
    images = torch.randint(0, 256, (64, 3, *shape)).byte()
    for key, recipe in enumerate(recipes()):
        for size in ((16, 16), (2, 5)):
            seen = augment_of(recipe, {**CONFIG, "input_size": (3, *size)})(images, torch.arange(64), key)
            assert seen.shape == (64, 3, *size)
            assert seen.isfinite().all()


@pytest.mark.parametrize("policy", ["rand-m9-mstd0.5-inc1", "rand-m9-mstd0.5"])
def test_every_operation_works_at_the_ends_of_its_range(policy, monkeypatch):
    (augment,) = [
        step
        for step in pipeline(lf.train.Recipe(auto_augment=policy), CONFIG).transforms
        if isinstance(step, auto_augment.RandAugment)
    ]
    for sign in (0.1, 0.9):
        monkeypatch.setattr(auto_augment.random, "random", lambda sign=sign: sign)
        for operation in augment.ops:
            operation.prob, operation.magnitude_std = 1.0, 0
            for operation.magnitude in (0, 10):
                for picture in odd_pictures().values():
                    assert operation(picture).size == picture.size


@pytest.mark.parametrize("increasing", [True, False])
@pytest.mark.parametrize("level", [0.0, 1.0])
def test_both_data_paths_posterize_to_one_bit_at_least(increasing, level):
    policy = "rand-m10-inc1" if increasing else "rand-m10"
    steps = pipeline(lf.train.Recipe(auto_augment=policy), CONFIG).transforms
    ops = next(step.ops for step in steps if isinstance(step, auto_augment.RandAugment))
    (posterize,) = [op for op in ops if op.name.startswith("Posterize")]
    posterize.prob, posterize.magnitude = 1.0, 10 * level
    picture = odd_pictures()["rgb"]
    pixels = torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)[None].float()
    theirs = torch.from_numpy(np.asarray(posterize(picture)).copy()).permute(2, 0, 1)[None].float()
    index, sign = torch.tensor([OPERATIONS.index("Posterize")]), torch.tensor([False])
    ours = one_layer(pixels, index, torch.tensor([level]), sign, increasing)
    assert torch.equal(ours, theirs)
    assert ours.unique().numel() in (2, 16)


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (1, 3)])
def test_a_crop_of_a_tiny_picture_holds_a_pixel_of_it(size):
    """timm's boxes are empty at times, and what is resized from nothing is black."""
    augment = PictureAugment(lf.recipes.plain(crop_scale=(0.08, 1.0), crop_ratio=(3 / 4, 4 / 3)), CONFIG)
    mean, std = (torch.tensor(CONFIG[key])[:, None, None] for key in ("mean", "std"))
    for seed in range(50):
        seed_all(seed)
        seen = augment(Image.new("RGB", size, (200, 200, 200))) * std + mean
        torch.testing.assert_close(seen, torch.full_like(seen, 200 / 255))


def test_training_on_a_folder_survives_the_sharpest_draws(tmp_path):
    """Magnitude 10 always asked timm's posterizing for no bits at all."""
    root = picture_folder(tmp_path)
    recipe = lf.recipes.finetune(epochs=4, batch_size=8).replace(auto_augment="rand-m10-n4-p1.0-inc1")
    data = lf.train.open_data(root, "train")
    result = lf.train.fit(tiny(), recipe=recipe, data=data, device="cpu", quiet=True, workers=0)
    assert result.finished
    assert data.damage.count == 0


class Broken:
    """An augmentation with an error of its own."""

    transforms = ()

    def __call__(self, picture):
        raise ValueError("bits must be between or equal to 1 and 8")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_an_augmentation_is_told_as_such_and_is_no_damage(tmp_path, monkeypatch, workers):
    monkeypatch.setattr("leanformer.data.pictures.pipeline", lambda recipe, config: Broken())
    data = lf.train.open_data(picture_folder(tmp_path), "train")
    recipe = lf.recipes.plain(epochs=1, batch_size=8)
    told = r"class\d/\d+.png: augmenting a picture of 20 x 20 pixels failed, which is an error of leanformer"
    with pytest.raises(AugmentationError, match=told):
        lf.train.fit(tiny(), recipe=recipe, data=data, device="cpu", quiet=True, workers=workers)
    assert data.damage.count == 0


def _seeded(data):
    augment = PictureAugment(lf.recipes.plain(crop_scale=(0.1, 0.9)), CONFIG)
    return reading.Seeded(data, augment, seed=0)


def test_a_replacement_has_draws_of_its_own_that_depend_on_its_place_alone(tmp_path):
    root = picture_folder(tmp_path)
    images = _seeded(lf.train.open_data(root, "train"))
    whole, first, names = images[0, 5, 1]
    assert not names
    (root / "train" / images.data.reader.filename(0)).write_bytes(b"")
    replaced, label, names = images[0, 5, 0]  # image 0 is gone: image 1 stands in, at the same position
    assert "0.png" in names
    assert label == first
    assert not torch.equal(replaced, whole)
    random.seed(1)
    assert torch.equal(images[0, 5, 0][0], replaced)
    assert torch.equal(images[0, 5, 1][0], whole)


def test_a_folder_of_which_no_file_can_be_decoded_says_so(tmp_path):
    images = _seeded(lf.train.open_data(picture_folder(tmp_path, images=4), "train"))
    for path in (tmp_path / "train").rglob("*.png"):
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ValueError, match="4 images one after another cannot be read"):
        images[0, 0, 0]


def test_reading_files_warns_of_nothing_by_default(tmp_path):
    """More processes than cores would have torch warn, once for training and once for evaluation."""
    root = picture_folder(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = lf.train.fit(
            tiny(), recipe=lf.recipes.plain(epochs=1, batch_size=8), data=root, device="cpu", quiet=True
        )
    assert result.evaluation.images == 32


def test_processes_of_one_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    assert batches.worker_count(None) == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert batches.worker_count(None) == 2
    assert batches.worker_count(0) == 0
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    assert batches.worker_count(None) == 1


def test_on_a_cpu_few_images_are_evaluated_at_a_time():
    seen = []
    model = tiny()
    model.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    lf.train.evaluate(model, arrays(), device="cpu")
    lf.train.evaluate(model, arrays(), device="cpu", batch_size=32)
    assert seen == [8, 8, 8, 8, 32]
