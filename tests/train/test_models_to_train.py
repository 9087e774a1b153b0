"""Which models can be trained and judged: by their weights, their channels and what of them learns."""

import pytest
import timm
import torch

import leanformer as lf
from leanformer.core import input_of, set_input
from leanformer.train import evaluate, extract_features, open_data
from leanformer.train.evaluation import Conditions
from leanformer.train.judging import judge_by_neighbours

SIZES = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 4}
RECIPE = lf.recipes.plain(epochs=1, batch_size=8)


def model(**arguments) -> torch.nn.Module:
    torch.manual_seed(0)
    return lf.create("vit", **{**SIZES, **arguments})


def images(count: int = 16, channels: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randint(0, 256, (count, channels, 16, 16), dtype=torch.uint8), torch.arange(count) % 4


@pytest.mark.parametrize(
    ("student", "teacher", "message"),
    [
        (model().double(), None, "the weights of the model are torch.float64"),
        (model(), model().double(), "the weights of teacher are torch.float64"),
        (model(), model(in_chans=1), "the teacher 'teacher' takes images of 1 channels, but the model of 3"),
        (model().requires_grad_(False), None, r"no parameter that learns.*requires_grad_\(True\)"),
    ],
    ids=["float64", "teacher in float64", "teacher of grey images", "frozen"],
)
def test_what_cannot_be_trained_is_refused_in_one_line(student, teacher, message, tmp_path):
    how = {"teacher": teacher, "objective": "soft" if teacher else None, "output": tmp_path / "run"}
    with pytest.raises(ValueError, match=message) as told:
        lf.train.fit(student, recipe=RECIPE, data=images(), device="cpu", quiet=True, **how)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "run").exists()


def test_a_model_in_float64_is_judged_as_in_float32():
    found, expected = (evaluate(each, images(), device="cpu") for each in (model().double(), model()))
    assert torch.equal(found.predictions, expected.predictions)
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)
    found, expected = (extract_features(each, images(), device="cpu") for each in (model().double(), model()))
    assert torch.allclose(found.vectors, expected.vectors, atol=1e-5)


def test_images_of_other_channels_need_a_normalisation_of_as_many():
    grey, data = model(in_chans=1), images(channels=1)
    with pytest.raises(ValueError, match=r"takes 1 channels.* a mean of 3; give it another one: lf\.core\.set_input"):
        evaluate(grey, data, device="cpu")
    assert evaluate(set_input(grey, {"mean": (0.5,), "std": (0.5,)}), data, device="cpu").images == 16


def test_a_single_image_has_no_neighbours_to_be_judged_by():
    backbone, data = model(num_classes=0), open_data(images(1))
    with pytest.raises(ValueError, match="arrays has one image that can be read, and none to look for its neighbours"):
        judge_by_neighbours(backbone, data, None, 1, input_of(backbone), Conditions.on("cpu"))


def test_a_teacher_that_no_run_folder_can_hold_is_named_with_what_would_do(tmp_path):
    teacher, how = timm.create_model("resnet10t", num_classes=4), {"device": "cpu", "quiet": True}
    with pytest.raises(ValueError, match=r"the teacher 'teacher' is a ResNet .*create_teacher"):
        lf.train.fit(model(), recipe=RECIPE, data=images(), teacher=teacher, output=tmp_path / "run", **how)
    assert not (tmp_path / "run").exists()
    lf.train.fit(model(), recipe=RECIPE, data=images(), teacher=teacher, **how)  # nothing is to be written
