"""Data sets are checked before anything is trained, and images that cannot be read are counted."""

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import arrays, picture_folder, tiny
from PIL import Image
from timm.data import create_transform

import leanformer as lf
from leanformer.data.augment import Augment, erase, random_boxes
from leanformer.data.batches import Plan
from leanformer.data.draws import key_of, seed_all, uniforms
from leanformer.data.packs import write_pack
from leanformer.data.sources import Files, Stream, class_names
from leanformer.data.view import EvaluationView
from leanformer.train.checkpoint import read_checkpoint, write_checkpoint

RECIPE = lf.recipes.plain(epochs=2, batch_size=8)


def _fit(data, model=None, **options):
    options = {"recipe": RECIPE, "device": "cpu", "quiet": True, "workers": 0, **options}
    return lf.train.fit(model or tiny(), data=data, **options)


def _jpegs(images: int, side: int = 24) -> list[bytes]:
    files = []
    for index in range(images):
        file = io.BytesIO()
        Image.fromarray(np.random.RandomState(index).randint(0, 255, (side, side, 3), np.uint8)).save(file, "JPEG")
        files.append(file.getvalue())
    return files


@pytest.fixture
def packs(tmp_path):
    for split in ("train_0of2", "train_1of2", "val"):
        write_pack(tmp_path / f"set_{split}.npz", _jpegs(16), [i % 4 for i in range(16)], "abcd")
    return tmp_path


@pytest.mark.parametrize("spec", ["pack:{}", "pack:{}/set"])
def test_packs_of_a_folder_or_prefix_are_found_by_split(packs, spec):
    source = spec.format(packs)
    assert len(lf.train.open_data(source, "train")) == 32
    assert len(lf.train.open_data(source, "val")) == 16
    result = _fit(source)
    assert result.evaluation.images == 16


def test_an_explicit_pack_needs_no_split_in_its_name(packs):
    assert len(lf.train.open_data(f"pack:{packs}/*_val.npz", "train")) == 16


def test_unreadable_images_of_a_pack_are_left_out_and_counted(tmp_path):
    files = _jpegs(200)
    files[3] = b"not a picture at all"
    write_pack(tmp_path / "train.npz", files, [0] * 200)
    data = lf.train.open_data(f"pack:{tmp_path}/train.npz")
    assert len(data) == 199
    assert data.damage.count == 1
    assert "train.npz[3]" in data.damage.names[0]


def test_too_many_unreadable_images_are_an_error(tmp_path):
    write_pack(tmp_path / "train.npz", [b"no", b"picture", b"here"], [0, 1, 2])
    with pytest.raises(ValueError, match="cannot be read, more than the 1 allowed"):
        lf.train.open_data(f"pack:{tmp_path}/train.npz")


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda root: root / "nowhere", "does not exist"),
        (lambda root: root, "holds no images"),
        (lambda root: (root / "train").mkdir() or root, "holds no images"),
        (lambda root: f"pack:{root}", "no pack of the split 'train'"),
        (lambda root: f"hfds/{root}/nothing", "cannot be opened"),
    ],
)
def test_a_source_without_images_is_refused(tmp_path, prepare, message):
    with pytest.raises(ValueError, match=message):
        _fit(prepare(tmp_path), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_names_of_classes_are_those_of_the_opened_data(tmp_path, packs):
    assert class_names(f"pack:{packs}/set") == lf.train.open_data(f"pack:{packs}/set", "train").classes == tuple("abcd")
    folder = picture_folder(tmp_path / "pictures")
    assert class_names(folder) == lf.train.open_data(folder, "train").classes
    assert class_names("wds/nowhere") is None
    (tmp_path / "broken_train.npz").write_bytes(b"no pack")
    with pytest.raises(ValueError, match="is not a pack of images"):
        class_names(f"pack:{tmp_path / 'broken'}")


def test_a_missing_split_is_refused(tmp_path):
    root = picture_folder(tmp_path)
    (root / "val").rename(root / "elsewhere")
    with pytest.raises(ValueError, match="no split 'val', only train"):
        _fit(root)


def test_another_number_of_classes_than_the_head_is_refused(tmp_path):
    root = picture_folder(tmp_path)
    (root / "train" / "one more").mkdir()
    (root / "train" / "class0" / "0.png").rename(root / "train" / "one more" / "0.png")
    with pytest.raises(ValueError, match=r"5 classes, but the model's head has 4.*num_classes=5"):
        _fit(root)


def test_a_label_beyond_the_head_is_refused():
    images, labels = arrays()
    with pytest.raises(ValueError, match="label 4, but there are only 4 classes"):
        _fit((images, labels + 4))


def test_splits_with_different_classes_are_refused(tmp_path):
    root = picture_folder(tmp_path)
    (root / "val" / "class3").rename(root / "val" / "other")
    with pytest.raises(ValueError, match="different classes, such as class3, other"):
        _fit(root)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="more than the 32 images"):
        _fit(arrays(), recipe=RECIPE.replace(batch_size=64))


def test_a_file_that_breaks_is_told_of_once_and_not_every_epoch(tmp_path):
    root = picture_folder(tmp_path / "data", images=40)
    data = lf.train.open_data(root, "train")
    (root / "train" / "class1" / "1.png").write_bytes(b"half a picture")
    _fit(data, recipe=RECIPE.replace(epochs=3), damage_limit=0.1, output=tmp_path / "run")
    assert (tmp_path / "run" / "log.jsonl").read_text().count("unreadable image") == 1


def test_files_that_vanish_or_break_in_training_are_counted_and_reported(tmp_path, capsys):
    root = picture_folder(tmp_path / "data", images=40)
    data = lf.train.open_data(root, "train")
    (root / "train" / "class0" / "0.png").unlink()
    (root / "train" / "class1" / "1.png").write_bytes(b"half a picture")
    result = _fit(data, recipe=RECIPE.replace(epochs=1), damage_limit=0.1, output=tmp_path / "run", quiet=False)
    assert result.finished
    assert data.damage.count == 2
    told = capsys.readouterr().out
    assert "class0/0.png" in told
    assert "class1/1.png" in told
    assert "unreadable image" in (tmp_path / "run" / "log.jsonl").read_text()


def test_files_that_vanish_beyond_the_limit_end_the_run_with_their_names(tmp_path):
    root = picture_folder(tmp_path / "data", images=40)
    data = lf.train.open_data(root, "train")
    for path in (root / "train" / "class2").glob("*.png"):
        path.unlink()
    with pytest.raises(ValueError, match=r"images cannot be read, more than the 1 allowed(.|\n)*class2"):
        _fit(data)


def test_a_file_that_cannot_be_read_counts_once_however_often_it_is_read(tmp_path):
    root = picture_folder(tmp_path / "data")
    for split in ("train", "val"):
        (root / split / "class0" / "0.png").write_bytes(b"half a picture")
    data, val = (lf.train.open_data(root, split) for split in ("train", "val"))
    assert _fit(data, val=val, recipe=RECIPE.replace(epochs=3)).finished
    assert (data.damage.count, val.damage.count) == (1, 1)


@pytest.mark.parametrize("told", [None, 7], ids=["by name", "as a number, as earlier versions did"])
def test_a_resumed_run_counts_no_unreadable_file_twice(tmp_path, told):
    root = picture_folder(tmp_path / "data")
    (root / "train" / "class0" / "0.png").write_bytes(b"half a picture")
    _fit(root, output=tmp_path / "run", max_updates=4)
    state = read_checkpoint(tmp_path / "run")
    assert ["class0/0.png" in name for name in state["data"]["damaged"]] == [True]
    if told is not None:
        write_checkpoint(tmp_path / "run", {**state, "data": {**state["data"], "damaged": told}})
    data = lf.train.open_data(root, "train")
    assert _fit(data, val=root, output=tmp_path / "run", resume=True).finished
    assert data.damage.count == 1


def test_images_that_have_no_file_name_are_told_apart():
    data = Files(SimpleNamespace(filename=lambda index: None), None, "hfds/x")
    assert [data.filename(index) for index in (3, 4)] == ["image 3", "image 4"]


def test_the_log_says_where_the_images_for_validation_are_those_that_are_learnt_from(tmp_path):
    images, labels = arrays()
    for name, val in (("same", (images.clone(), labels)), ("others", (images.flip(0), labels))):
        _fit((images, labels), val=val, output=tmp_path / name, max_updates=1)
        told = [json.loads(line).get("event", "") for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        assert any("those that are learnt from" in event for event in told) == (name == "same")


def test_evaluation_counts_unreadable_files_and_leaves_them_out(tmp_path):
    root = picture_folder(tmp_path)
    (root / "val" / "class0" / "0.png").write_bytes(b"")
    result = lf.train.evaluate(tiny(), root, device="cpu", workers=0)
    assert (result.images, result.damaged) == (31, 1)


def test_files_and_arrays_of_the_same_images_evaluate_the_same(tmp_path):
    root = picture_folder(tmp_path)
    files = lf.train.evaluate(tiny(), root, device="cpu", workers=0)
    held = lf.train.evaluate(tiny(), arrays(), device="cpu")
    assert files.top1 == held.top1
    assert files.loss == pytest.approx(held.loss, abs=2e-3)


@pytest.mark.parametrize(
    ("side", "size"), [(64, (32, 32)), (32, (48, 48)), (40, (40, 40)), (60, (16, 40)), (60, (40, 16)), (30, (32, 24))]
)
def test_the_evaluation_view_of_pixels_is_timms_of_a_picture(side, size):
    image = torch.randint(80, 170, (1, 3, side, side // 2 * 3)).byte()
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)
    config = {"input_size": (3, *size), "interpolation": "bicubic", "crop_pct": 0.9, "mean": mean, "std": std}
    picture = Image.fromarray(image[0].permute(1, 2, 0).numpy())
    ours, theirs = EvaluationView(config)(image)[0], create_transform(**config)(picture)
    assert torch.equal(EvaluationView(config)(picture), theirs)
    difference = (ours - theirs).abs() * 255 * torch.tensor(std)[:, None, None]
    assert difference.max() < 1.5  # grey levels: Pillow rounds rows and then columns to whole ones


def test_augmentation_of_an_image_does_not_depend_on_its_batch():
    augment = Augment(lf.recipes.Recipe(erasing=0.0), (16, 16), (0.5,) * 3, (0.5,) * 3)
    images = torch.randint(0, 256, (6, 3, 20, 20)).byte()
    together = augment(images, torch.arange(6), key=3)
    alone = torch.cat([augment(images[i : i + 1], torch.tensor([i]), key=3) for i in range(6)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    assert not torch.equal(together, augment(images, torch.arange(6), key=4))


def test_compiled_in_half_precision_the_augmentation_is_the_same():
    recipe = lf.recipes.Recipe(erasing=0.0, auto_augment=None)
    statistics = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)
    plain, quick = (Augment(recipe, (32, 32), *statistics, half=half) for half in (False, True))
    images = torch.randint(0, 256, (6, 3, 20, 20)).byte()
    torch._dynamo.reset()
    compiled = torch.compile(quick.__call__, fullgraph=True, dynamic=False, backend="aot_eager")
    for key in (3, -(2**40)):
        found = compiled(images, torch.arange(6), torch.tensor(key))
        torch.testing.assert_close(found.float(), plain(images, torch.arange(6), key), rtol=0, atol=0.02)


def test_without_augmentation_an_image_of_the_right_size_stays_as_it_is():
    augment = Augment(RECIPE, (20, 20), (0.0,) * 3, (1.0,) * 3)
    images = torch.randint(0, 256, (4, 3, 20, 20)).byte()
    torch.testing.assert_close(augment(images, torch.arange(4), key=0), images / 255, rtol=0, atol=1e-6)


def test_a_flip_mirrors_the_image():
    augment = Augment(RECIPE.replace(flip=1.0), (20, 20), (0.0,) * 3, (1.0,) * 3)
    images = torch.randint(0, 256, (4, 3, 20, 20)).byte()
    torch.testing.assert_close(augment(images, torch.arange(4), key=0), (images / 255).flip(3), rtol=0, atol=1e-6)


def test_random_crops_lie_inside_and_have_the_areas_asked_for():
    boxes = random_boxes(uniforms(1, torch.arange(20000), 22), 64, 48, (0.2, 0.8), (3 / 4, 4 / 3))
    top, left, height, width = boxes.unbind(1)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 64).all()
    assert (left + width <= 48).all()
    share = height * width / (64 * 48)
    assert 0.18 < share.min()
    assert share.max() < 0.82
    assert top.unique().numel() > 30


def test_erasing_hits_the_share_of_images_asked_for():
    images = torch.zeros(4000, 1, 16, 16)
    erased = erase(images, uniforms(2, torch.arange(4000), 5), 0.25)
    share = (erased != 0).flatten(1).any(1).float().mean()
    assert share == pytest.approx(0.25, abs=0.03)
    area = (erased != 0).flatten(1).float().mean(1)
    assert area.max() < 0.4


def test_seeding_sets_torch_as_its_own_call_does():
    seed_all(3, "update", 7)
    drawn = torch.rand(4)
    torch.manual_seed(key_of(3, "update", 7) % 2**64 % 2**63)
    assert torch.equal(drawn, torch.rand(4))


def test_uniform_draws_are_uniform_and_independent():
    draws = uniforms(7, torch.arange(50000), 4)
    assert draws.mean(0) == pytest.approx([0.5] * 4, abs=0.01)
    assert draws.std(0) == pytest.approx([12**-0.5] * 4, abs=0.01)
    assert torch.corrcoef(draws.T).fill_diagonal_(0).abs().max() < 0.02
    assert 0 <= draws.min()
    assert draws.max() < 1


def test_an_epoch_shows_every_image_once_and_processes_share_it():
    plans = [Plan(images=40, batch_size=8, processes=2, process=p, accumulate=2) for p in range(2)]
    order = plans[0].order(0)
    seen = [order[i].item() for plan in plans for u in range(5) for rows in plan.rows(u) for i in rows]
    assert sorted(seen) == list(range(40))
    assert plans[0].order(0).tolist() == plans[1].order(0).tolist() != plans[0].order(1).tolist()


def test_repeated_augmentation_shows_fewer_images_several_times():
    order = Plan(images=30, batch_size=6, repeats=3).order(0)
    assert len(order) == 30
    assert order.unique().numel() == 10


class Shards(torch.utils.data.IterableDataset):
    """What timm makes of WebDataset shards, as far as the engine knows it."""

    def __init__(self, images: int):
        self.images, self.epoch, self.transform = images, 0, None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 32

    def __iter__(self):
        order = torch.randperm(32, generator=torch.Generator().manual_seed(self.epoch))[: self.images]
        for index in order.tolist():
            pixels = arrays()[0][index].permute(1, 2, 0).numpy()
            yield self.transform(Image.fromarray(pixels)), index % 4


@pytest.mark.parametrize("images", [32, 20], ids=["whole", "runs out"])
def test_a_stream_resumes_where_it_was(tmp_path, images):
    def stream():
        return Stream(Shards(images), tuple("abcd"), "shards")

    whole = _fit(stream(), output=tmp_path / "whole")
    _fit(stream(), output=tmp_path / "parts", max_updates=3)
    parts = _fit(stream(), output=tmp_path / "parts", resume=True)
    assert whole.updates == parts.updates == 8
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), parts.model.parameters()))


def test_a_stream_without_one_batch_is_an_error():
    with pytest.raises(ValueError, match="does not give one whole batch of 8"):
        _fit(Stream(Shards(5), tuple("abcd"), "shards"))


def test_a_stream_is_as_long_as_all_that_the_processes_read_of_it():
    shards = Shards(32)
    shards.reader = SimpleNamespace(num_samples=64)  # of which this process reads 32
    assert len(Stream(shards, None, "shards")) == 64
    shards.reader = SimpleNamespace(num_samples=None)
    assert len(Stream(shards, None, "shards")) == 32


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="does not divide"):
        Plan(images=40, batch_size=9, processes=2)
