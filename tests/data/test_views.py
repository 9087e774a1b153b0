"""Student and teachers of other sizes see the same view of an image, each made at its own size from its pixels."""

import io
import json

import numpy as np
import pytest
import torch
from helpers import arrays, picture_folder, tiny
from PIL import Image
from timm.data import Mixup

import leanformer as lf
from leanformer.data.batches import Batch, Plan, Stretch
from leanformer.data.draws import host_state, seed_all
from leanformer.data.loader import training_batches
from leanformer.data.mixing import Mixing
from leanformer.data.pictures import PictureAugment, changed
from leanformer.data.places import TokenLabelled
from leanformer.data.sources import Stream

SMALL, LARGE = (16, 16), (32, 32)
SHARP = lf.train.Recipe(erasing=0.0, batch_size=8)
"""Crops, flips and RandAugment."""
COLOURS = SHARP.replace(auto_augment=None, interpolation="random")


def config(size: tuple[int, int]) -> dict:
    return {"input_size": (3, *size), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.25)}


class Shards(torch.utils.data.IterableDataset):
    """A stream of pictures, as timm makes it of shards."""

    transform = None

    def __len__(self):
        return 32

    def __iter__(self):
        for index, pixels in enumerate(arrays()[0]):
            yield self.transform(Image.fromarray(pixels.permute(1, 2, 0).numpy())), index % 4


@pytest.fixture(params=["arrays", "files", "stream"])
def source(request, tmp_path):
    """Opens the data set anew, as each run does."""
    if request.param == "files":
        return lambda folder=picture_folder(tmp_path): lf.train.open_data(folder, "train")
    if request.param == "stream":
        return lambda: Stream(Shards(), tuple("abcd"), "shards")
    return lambda: lf.train.open_data(arrays())


def batches(data, recipe, size, sizes=(), updates=4):
    """What a run whose student has this size gets, mixed, its labels as they were."""
    plan = Plan(32, 8, seed=5)
    mix = Mixing(recipe, plan, tiny())
    found = []
    stretch = Stretch(plan, 0, updates, torch.device("cpu"), 0, sizes=sizes)
    made = training_batches(data, recipe, config(size), stretch)
    for update in range(updates):
        batch = next(made)
        seed_all(5, "update", update)
        found.append(mix(batch))
    return found


@pytest.mark.parametrize("recipe", [SHARP, COLOURS], ids=["randaugment", "colours"])
def test_a_teachers_view_is_what_a_student_of_its_size_sees(source, recipe):
    """All of it: crop, flip, colours, and mixup's partner and share."""
    recipe = recipe.replace(cutmix=0.0)
    together = batches(source(), recipe, SMALL, [LARGE])
    large = batches(source(), recipe, LARGE)
    small = batches(source(), recipe, SMALL)
    for both, big, little in zip(together, large, small, strict=True):
        assert torch.equal(both.views[LARGE], big.images)
        assert torch.equal(both.images, little.images)  # the student does not notice its teacher
        assert torch.equal(both.labels, little.labels)
        assert torch.equal(big.labels, little.labels)
        assert not little.views


def test_a_teachers_view_is_cut_and_mixed_where_the_students_is(source):
    recipe = SHARP.replace(mixup=0.0)
    mixing = Mixing(recipe, Plan(32, 8), tiny())
    together = batches(source(), recipe, SMALL, [LARGE])
    for update, (both, big) in enumerate(zip(together, batches(source(), recipe.replace(cutmix=0.0), LARGE))):
        seed_all(5, "update", update)
        assert torch.equal(both.views[LARGE], mixing.draw(SMALL)(big.images))


def test_the_views_show_the_same_picture(tmp_path):
    """Not only as many draws: a large view shrunk is the small one."""
    picture = Image.fromarray(np.random.RandomState(0).randint(0, 256, (4, 5, 3), np.uint8)).resize((50, 40))
    augment = PictureAugment(SHARP.replace(auto_augment="rand-m7-n2-p1.0-inc1"), config(SMALL), [(48, 48)])
    close = 0
    for seed in range(40):
        seed_all(seed)
        small, large = augment(picture)
        shrunk = torch.nn.functional.interpolate(large[None], SMALL, mode="bilinear", antialias=True)[0]
        close += bool((small - shrunk).abs().mean() < 0.35)  # operations on histograms differ a little
    assert close >= 36


def test_erasing_hits_the_same_place_in_every_view():
    picture = Image.new("RGB", (50, 40), (90, 90, 90))
    recipe = lf.recipes.plain(erasing=1.0)
    augment, bare = PictureAugment(recipe, config(SMALL), [LARGE]), PictureAugment(recipe, config(SMALL))
    for seed in range(20):
        seed_all(seed)
        small, large = augment(picture)
        after = host_state()
        seed_all(seed)
        assert torch.equal(bare(picture), small)
        assert torch.equal(host_state()[2], after[2])
        blank = config(SMALL)
        grey = [(torch.tensor(90 / 255) - m) / s for m, s in zip(blank["mean"], blank["std"])]
        empty = [torch.stack(grey)[:, None, None].expand_as(image).round(decimals=4) for image in (small, large)]
        boxes = [changed(e, image.round(decimals=4)) for e, image in zip(empty, (small, large))]
        assert boxes[0] == pytest.approx(boxes[1], abs=1e-9)


def test_erasing_hits_the_same_place_in_every_view_of_arrays():
    data = lf.train.open_data((torch.zeros((32, 3, 20, 20), dtype=torch.uint8), torch.arange(32) % 4))
    plain = lf.recipes.plain(batch_size=8)
    black = batches(data, plain, SMALL, [LARGE])[0]
    for batch in batches(data, plain.replace(erasing=1.0), SMALL, [LARGE]):
        small = (batch.images != black.images).any(1).float()  # (B, H, W)
        large = (batch.views[LARGE] != black.views[LARGE]).any(1).float()
        shrunk = torch.nn.functional.avg_pool2d(large, 2)
        assert (shrunk - small).abs().mean((1, 2)).max() < 0.15  # to within a pixel at each edge
        assert small.any((1, 2)).all()


def test_cutmix_takes_the_same_box_of_the_same_partner_at_every_size():
    recipe = lf.recipes.plain(cutmix=1.0, batch_size=8)
    mix = Mixing(recipe, Plan(32, 8), tiny())
    numbers = torch.arange(8.0)[:, None, None, None]
    for seed in range(30):
        np.random.seed(seed)
        views = {LARGE: numbers.expand(8, 3, *LARGE).clone()}
        batch = mix(Batch(numbers.expand(8, 3, *SMALL).clone(), torch.arange(8) % 4, views=views))
        assert torch.equal(batch.images.repeat_interleave(2, 2).repeat_interleave(2, 3), batch.views[LARGE])
        share = (batch.images[0, 0] == 0).float().mean()
        assert batch.labels[0, 0] == pytest.approx(share.item())  # image 0 is of class 0, its partner of class 3


@pytest.mark.parametrize("alphas", [(0.8, 1.0), (0.8, 0.0), (0.0, 1.0)])
def test_mixing_is_timms(alphas):
    recipe = lf.recipes.plain(mixup=alphas[0], cutmix=alphas[1], label_smoothing=0.1, batch_size=8)
    ours, theirs = Mixing(recipe, Plan(32, 8), tiny()), Mixup(*alphas, label_smoothing=0.1, num_classes=4)
    for seed in range(60):
        images, labels = torch.randn(8, 3, 20, 12), torch.randint(0, 4, (8,))
        np.random.seed(seed)
        expected = theirs(images.clone(), labels)
        np.random.seed(seed)
        batch = ours(Batch(images.clone(), labels))
        assert torch.equal(batch.images, expected[0])
        assert torch.equal(batch.labels, expected[1])


class Seeing(torch.nn.Module):
    """A teacher that keeps what it is shown."""

    num_classes, in_chans = 4, 3

    def __init__(self, size: int, mean: tuple[float, ...], std: tuple[float, ...]):
        super().__init__()
        self.img_size, self.shown = (size, size), []
        self.pretrained_cfg = {"input_size": (3, size, size), "mean": mean, "std": std}

    def forward(self, images):
        self.shown.append(images)
        return torch.zeros(len(images), 4)


def test_fit_shows_each_teacher_its_own_view(source):
    student = tiny()
    own = lf.core.input_of(student)
    same = own["mean"], own["std"]
    teachers = {
        "teacher": Seeing(32, *same),
        "other": Seeing(16, (0.1, 0.2, 0.3), (0.5,) * 3),
        "same": Seeing(16, *same),
    }
    recipe = SHARP.replace(epochs=1, erasing=0.25, learning_rate=1e-4, warmup_epochs=0)
    objective = "soft + soft:teacher=other + soft:teacher=same"
    lf.train.fit(
        student,
        recipe=recipe,
        data=source(),
        teacher=teachers,
        objective=objective,
        device="cpu",
        quiet=True,
        workers=0,
    )
    large, other, same = (teacher.shown for teacher in teachers.values())
    assert len(large) == len(other) == len(same) == 4
    assert {images.shape[2:] for images in large} == {LARGE}
    mean, std = (torch.tensor(own[key])[:, None, None] for key in ("mean", "std"))
    for here, there in zip(other, same):
        colours = here * 0.5 + torch.tensor((0.1, 0.2, 0.3))[:, None, None]
        torch.testing.assert_close(colours, there * std + mean, rtol=0, atol=1e-5)


def test_a_distilled_run_across_sizes_resumes_bit_for_bit(source, tmp_path):
    recipe = SHARP.replace(epochs=2, erasing=0.25, warmup_epochs=0)

    def run(folder, **options):
        return lf.train.fit(
            tiny(), recipe=recipe, data=source(), teacher=tiny(1, size=32), output=tmp_path / folder, device="cpu",
            quiet=True, workers=0, save_every=1, **options,
        )  # fmt: skip

    whole = run("whole")
    run("parts", max_updates=3)
    parts = run("parts", resume=True)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True))


def test_label_maps_follow_a_crop_that_is_made_at_two_sizes():
    held = lf.train.open_data(arrays())
    one, two = TokenLabelled(held, seed=3), TokenLabelled(held, seed=3)
    one.transform = PictureAugment(SHARP.replace(erasing=0.5), config(SMALL))
    two.transform = PictureAugment(SHARP.replace(erasing=0.5), config(SMALL), [LARGE])
    for position in range(8):
        (image, place), ((small, large), same) = one[position], two[position]
        assert torch.equal(image, small)
        assert torch.equal(place, same)
        assert place[4] < 1 or place[5] < 1
        assert large.shape == (3, *LARGE)


def test_a_view_of_shards_does_not_change_what_the_student_sees(tmp_path):
    """The generators of a stream run on from image to image, so that a view must leave them as it found them."""
    webdataset = pytest.importorskip("webdataset", reason="needs leanformer[data]")
    with webdataset.TarWriter(str(tmp_path / "train-0.tar")) as writer:
        for index, pixels in enumerate(arrays(16)[0]):
            file = io.BytesIO()
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, "PNG")
            writer.write({"__key__": f"{index:03}", "png": file.getvalue(), "cls": str(index % 4).encode()})
    split = {"name": "train", "num_samples": 16, "filenames": ["train-0.tar"], "shard_lengths": [16]}
    (tmp_path / "_info.json").write_text(json.dumps({"splits": {"train": split}}))
    recipe, plan, where = SHARP.replace(erasing=0.5), Plan(16, 8), torch.device("cpu")
    alone, together = (
        list(
            training_batches(
                lf.train.open_data(f"wds/{tmp_path}"), recipe, config(SMALL), Stretch(plan, 0, 2, where, 1, sizes=s)
            )
        )
        for s in ([], [LARGE])
    )
    for a, b in zip(alone, together, strict=True):
        assert torch.equal(a.images, b.images)
        assert b.views[LARGE].shape == (8, 3, *LARGE)
