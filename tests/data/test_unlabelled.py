"""Images without labels: opened from folders and tensors, learnt from a teacher, refused where labels are needed."""

import io

import pytest
import torch
from helpers import arrays, picture_folder, tiny
from PIL import Image

import leanformer as lf
from leanformer.data.packs import write_pack
from leanformer.data.samples import sample_images
from leanformer.data.sources import class_names

RECIPE = lf.recipes.plain(epochs=1, batch_size=8)


def flat(root, images=32):
    """All pictures of a set in one folder."""
    folder = root / "photos"
    folder.mkdir()
    for path in (picture_folder(root / "sorted", images) / "train").rglob("*.png"):
        path.rename(folder / path.name)
    return folder


def pngs():
    """The same pictures as the bytes of files."""
    files = [io.BytesIO() for _ in arrays()[0]]
    for file, image in zip(files, arrays()[0]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "PNG")
    return [file.getvalue() for file in files]


@pytest.fixture(params=["flat folder", "nested folders", "pack", "tensor", "tuple", "tuple with none"])
def unlabelled(request, tmp_path):
    images = arrays()[0]
    if request.param == "pack":
        return f"pack:{write_pack(tmp_path / 'photos.npz', pngs(), None)}"
    tensors = {"tensor": images, "tuple": (images,), "tuple with none": (images, None)}
    if request.param in tensors:
        return tensors[request.param]
    if request.param == "flat folder":
        return flat(tmp_path)
    (tmp_path / "2024" / "May").mkdir(parents=True)
    flat(tmp_path).rename(tmp_path / "2024" / "May" / "photos")
    (tmp_path / "2024" / "May" / "photos" / "0.png").rename(tmp_path / "2024" / "0.png")
    return f"images:{tmp_path / '2024'}"


def _fit(data, **options):
    options = {"recipe": RECIPE, "device": "cpu", "quiet": True, "workers": 0, **options}
    return lf.train.fit(options.pop("model", None) or tiny(), data=data, **options)


def test_images_without_labels_open_as_such(unlabelled):
    data = lf.train.open_data(unlabelled)
    assert (len(data), data.labelled, data.classes, data.num_classes) == (32, False, None, None)
    assert class_names(unlabelled) is None
    assert sample_images(tiny(), unlabelled, 5).shape == (5, 3, 16, 16)


@pytest.mark.parametrize("mixed", [False, True])
def test_a_student_learns_from_its_teacher_alone(unlabelled, mixed):
    """As it would from the same images with labels, by soft distillation; with mixup, cutmix and smoothing too."""
    recipe = RECIPE.replace(mixup=0.8, cutmix=1.0, label_smoothing=0.1) if mixed else RECIPE
    result = _fit(unlabelled, teacher=tiny(1), recipe=recipe)
    assert result.updates == 4
    assert result.evaluation is None
    if isinstance(unlabelled, torch.Tensor):
        same = _fit(arrays(), teacher=tiny(1), recipe=recipe, objective="soft")
        assert all(torch.equal(a, b) for a, b in zip(result.model.parameters(), same.model.parameters(), strict=True))


def test_validation_images_of_their_own_are_evaluated_on(unlabelled):
    assert _fit(unlabelled, teacher=tiny(1), val=arrays()).evaluation.images == 32


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "has no labels, which the objective needs; give a teacher to learn from"),
        ({"teacher": tiny(1), "objective": "cross_entropy + soft"}, "take one that learns from the teacher alone"),
        ({"teacher": tiny(1), "val": arrays()[0]}, "has no labels, so there is no accuracy to tell"),
    ],
)
def test_what_needs_labels_is_refused_in_one_line(unlabelled, options, told, tmp_path):
    with pytest.raises(ValueError, match=told) as caught:
        _fit(unlabelled, output=tmp_path / "run", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_images_without_labels_are_not_evaluated_on(unlabelled):
    with pytest.raises(ValueError, match="has no labels, so there is no accuracy to tell") as caught:
        lf.train.evaluate(tiny(), unlabelled, device="cpu")
    assert "\n" not in str(caught.value)


def test_an_objective_that_reads_no_labels_is_trained(unlabelled):
    assert _fit(unlabelled, teacher=tiny(1), objective="features:at=blocks.0").finished


def test_folders_of_classes_stay_labelled_and_may_be_read_without(tmp_path):
    root = picture_folder(tmp_path)
    assert lf.train.open_data(root).labelled
    data = lf.train.open_data(f"images:{root}")
    assert (len(data), data.labelled) == (32, False)  # those of the split alone
    five = lf.create("vit", img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=5)
    with pytest.raises(ValueError, match=r"4 classes, but the model's head has 5.*write images:FOLDER"):
        _fit(root, model=five)
    assert _fit(f"images:{root}", model=five, teacher=lf.apply(five)).finished


def test_packs_of_which_some_have_labels_are_refused_where_every_image_needs_one(tmp_path):
    for name, labels in (("train_a", None), ("train_b", [i % 4 for i in range(32)])):
        write_pack(tmp_path / f"{name}.npz", pngs(), labels)
    assert lf.train.open_data(f"pack:{tmp_path}/*.npz").labelled
    with pytest.raises(ValueError, match="image 0 has the label -1"):
        _fit(f"pack:{tmp_path}/*.npz")


def test_the_methods_own_objective_gives_way_where_it_needs_labels():
    backbone = lf.create("vit", img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2, num_classes=4)
    slim = lf.apply(backbone, lf.SiT(at=(1,)))
    choose = lf.train.learner.choose_objective
    data = lf.train.open_data(arrays()[0])
    assert type(choose(None, slim, {"teacher": backbone}, "auto", data)).__name__ == "SoftDistillation"
    assert type(choose(None, slim, {"teacher": backbone}, "auto")).__name__ == "FeatureRecalibration"


def test_a_run_on_a_folder_without_classes_resumes_from_the_command_line(tmp_path, capsys):
    from leanformer.cli import main

    lf.save(tiny(), tmp_path / "tiny.safetensors")
    command = ["train", str(tmp_path / "tiny.safetensors"), "--data", f"images:{flat(tmp_path)}", "--teacher", "self"]
    command += ["--recipe", "plain:epochs=1,batch_size=8", "--device", "cpu", "--workers", "0", "--quiet"]
    assert main([*command, "--output", str(tmp_path / "run"), "--max-updates", "2"]) in (0, None)
    assert main(["train", "--resume", str(tmp_path / "run")]) in (0, None)
    assert "2 updates" in capsys.readouterr().out
