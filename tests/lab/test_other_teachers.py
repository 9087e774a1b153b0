"""A study has teachers of other kinds beside its own: trained once, at its image size, or given as files."""

import json

import pytest
import timm
import torch
from helpers import colour_pack

import leanformer as lf
from lab.__main__ import main
from lab.studies.evit import evit
from lab.studies.metaformers import metaformers
from lab.studies.riformer import NAMED, SETTINGS, riformer
from lab.studies.sit import sit
from lab.studies.teachers import apart, teacher_by_name
from leanformer.core import input_of

SMALL = ["--set", "img_size=32", "--set", "depths=(1,1,1,1)", "--set", "dims=(8,8,16,16)"]
CNN = ["--set", "resnet50.layers=(1,1,1,1)", "--set", "resnet50.channels=(8,8,8,8)", "--set", "resnet50.stem_width=8"]


def run(folder, *more):
    arguments = ["study", "riformer", "--data", colour_pack(folder), "--epochs", "1", "--teacher-epochs", "1"]
    arguments += ["--batch-size", "16", "--device", "cpu", "--runs", str(folder / "runs"), "--measure", "never"]
    return main([*arguments, "--output", str(folder / "study.json"), *SMALL, *CNN, *more])


def test_a_row_learns_from_another_teacher_which_is_trained_once_at_the_studys_size(tmp_path):
    assert run(tmp_path, "--only", "teachers/resnet50") == 0
    (row,) = json.loads((tmp_path / "study.json").read_text())["rows"]
    assert list(row["other_teachers_top1"]) == ["resnet50"]
    trained = tmp_path / "runs" / "teacher-resnet50-0" / "model.safetensors"
    stamp = trained.stat().st_mtime
    assert run(tmp_path, "--only", "teachers/resnet50-imitation") == 0
    assert trained.stat().st_mtime == stamp
    assert main(["study", "riformer", "--data", "x", "--other", "vig=file"]) == 2
    other = ["--other", f"resnet50={trained}", "--output", str(tmp_path / "given.json"), "--runs", str(tmp_path / "g")]
    assert run(tmp_path, "--only", "teachers/resnet50", *other) == 0
    assert not (tmp_path / "g" / "teacher-resnet50-0" / "model.safetensors").exists()


VIT = {"backbone": "vit_tiny_patch16_224", "embed_dim": 24, "num_heads": 3, "depth": 4}
POOL = {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}


@pytest.mark.parametrize(
    ("study", "arguments"),
    [(evit, VIT), (sit, VIT), (riformer, POOL), (metaformers, POOL)],
    ids=["evit", "sit", "riformer", "metaformers"],
)
def test_the_teacher_starts_from_weights_of_other_classes_and_another_size(study, arguments, tmp_path):
    """Those of ImageNet, at 224 pixels with 1000 classes; the data's WordNet ids keep their rows of the head."""
    torch.manual_seed(1)
    if study in (evit, sit):
        small = {key: value for key, value in VIT.items() if key != "backbone"}
        torch.save(timm.create_model(VIT["backbone"], img_size=64, **small).state_dict(), tmp_path / "imagenet.pth")
    else:
        torch.save(lf.to_official(lf.create("poolformer_s12", **POOL)), tmp_path / "imagenet.pth")
    weights = study(tmp_path / "imagenet.pth", **arguments, img_size=64).teacher(1000)
    rates = [study(file, **arguments).teacher_learning_rate for file in (tmp_path / "imagenet.pth", None)]
    assert rates == [1e-4, 1e-3 if study is sit else None]
    classes = ("n01443537", "n01629819", "n01641577")
    teacher = study(tmp_path / "imagenet.pth", **arguments, img_size=96).teacher(3, classes)
    assert (teacher.num_classes, input_of(teacher)["input_size"]) == (3, (3, 96, 96))
    for own, given in zip(lf.blocks_of(teacher).values(), lf.blocks_of(weights).values(), strict=True):
        assert torch.equal(own.ffn.fn.fc1.weight, given.ffn.fn.fc1.weight)
    assert torch.equal(teacher.head.weight[0], weights.head.weight[1])  # the goldfish is ImageNet's second class


def test_a_leanformer_checkpoint_is_a_teacher_and_no_weights_to_start_from(tmp_path):
    file = lf.save(lf.create("poolformer_s12", **POOL), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model.safetensors is a leanformer checkpoint.*give it as --teacher"):
        riformer(file, **POOL).teacher(3)


def test_models_of_every_kind_are_built_for_an_image_size():
    for name in ("resnet10t", "poolformer_s12"):
        with torch.device("meta"):
            model = teacher_by_name(name, {"img_size": 64})(7)
        assert input_of(model)["input_size"] == (3, 64, 64)
        assert model.num_classes == 7


def test_every_row_of_the_tables_is_a_student_with_the_teachers_that_the_paper_names():
    study = riformer(logits="gfnet_h_b")
    rows = {student.name: student for student in study.students}
    assert rows.keys() == SETTINGS.keys()
    assert rows["table5/poolformer_m48-imitation"].others == {"teacher": "poolformer_m48"}
    assert rows["table9/18-caformer"].made_from == "caformer_s18"
    assert rows["table9/18-caformer"].teachers == ("imitation",)
    for name, student in rows.items():
        assert ("teacher" in student.others) == (SETTINGS[name].teacher is not None), name
        assert student.needs <= study.others.keys()


def test_slimmed_poolformers_follow_the_size_of_the_study():
    whole = {"depths": (1, 1, 4, 1), "dims": (12, 12, 24, 24), "num_classes": 3, "img_size": 32}
    less = SETTINGS["table8/poolformer_s9"].student(1, **whole)
    thin = SETTINGS["table8/poolformer_xs12"].student(1, **whole)
    assert len(lf.blocks_of(less)) == 5
    assert [block.dim for block in lf.blocks_of(thin).values()][::6] == [10, 20]


def test_arguments_of_a_model_that_is_no_teacher_here_are_refused():
    assert apart({"a": 1, "gfnet_h_b.depth": 2}) == ({"a": 1}, {"gfnet_h_b": {"depth": 2}})
    with pytest.raises(ValueError, match="no teacher 'vig'"):
        riformer(**{"vig.depth": 3})
    with pytest.raises(ValueError, match="choose one of"):
        riformer(logits="vig")
    assert "resnet50" in NAMED
