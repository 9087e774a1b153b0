"""Recipes for rows of the papers' tables: larger images at one cost, an oracle, a model trained on at another size."""

import pytest
import timm
import torch
from helpers import picture_folder

import leanformer as lf
from leanformer.cli import main
from leanformer.papers.evit.tables import LARGER, LV_LARGER
from leanformer.papers.recipes import PUBLISHED


def test_every_row_of_evits_tables_5_to_7_is_a_recipe_with_the_printed_accuracy():
    for setting in LARGER[1:]:
        found = PUBLISHED[f"evit_deit_small_{setting.keep}_{setting.size}"]
        assert (found.arguments, found.top1) == ({"img_size": setting.size}, setting.top1)
    for setting in LV_LARGER[2:]:
        found = PUBLISHED[f"evit_lvvit_small_{setting.keep}_{setting.size}"]
        assert found.top1 == setting.top1
        assert found.recipe.objective.startswith("token_labels")
    oracle = {name: found for name, found in PUBLISHED.items() if "oracle" in name}
    assert {name: found.top1 for name, found in oracle.items()} == {
        "evit_deit_small_0.7_oracle": "80.8", "evit_deit_small_0.7_oracle_450": "81.0",
        "evit_deit_small_0.7_oracle_600": "81.3", "evit_deit_base_0.7_oracle": "82.1",
    }  # fmt: skip
    assert all(found.recipe.epochs == int(name.rpartition("_")[2]) for name, found in oracle.items() if name[-1] == "0")


def test_a_model_trained_with_evit_is_fine_tuned_at_448_pixels_with_its_tokens_gone_from_the_first_step():
    published = PUBLISHED["evit_lvvit_small_0.7_448"]
    small = {"img_size": 64, "patch_size": 16, "embed_dim": 16, "num_heads": 2, "depth": 4, "num_classes": 3}
    trained = PUBLISHED["evit_lvvit_small_0.7_272"].build(**small)
    student = published.student(published.sized(trained))
    assert lf.core.input_of(student)["input_size"] == (3, 448, 448)
    (method,) = lf.card_of(student).methods
    assert method.advance(student, 0.0) == {"keep_rate": 0.7}
    assert lf.card_of(trained).methods[0].advance(trained, 0.0) == {"keep_rate": 1.0}
    same = torch.equal(student.blocks[1].mix.fn.qkv.weight, trained.blocks[1].mix.fn.qkv.weight)
    assert same
    assert published.recipe.epochs == 100


@pytest.mark.parametrize("layers", [(5, 7, 10), (3, 7, 10), (4, 8, 10), (4, 6, 10)])
def test_the_places_of_table_4_are_counted_from_1(layers):
    (method,) = PUBLISHED[f"evit_deit_small_at_{'_'.join(map(str, layers))}"].methods
    assert tuple(block + 1 for block in method.at) == layers


def test_a_model_that_is_trained_on_at_384_pixels_gets_the_dropout_of_that_recipe():
    published = PUBLISHED["caformer_s18_384"]
    small = {"depths": (1, 1, 1, 1), "dims": (32, 32, 32, 32), "num_classes": 3}
    trained = PUBLISHED["caformer_s18"].build(**small)
    student = published.student(published.sized(trained))
    assert lf.core.input_of(student)["input_size"] == (3, 384, 384)
    assert (trained.head.head_drop.p, student.head.head_drop.p) == (0.0, 0.4)
    assert torch.equal(student.head.fc2.weight, trained.head.fc2.weight)
    other = published.sized(lf.create("vit", img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2))
    assert lf.core.input_of(other)["input_size"] == (3, 384, 384)


def test_a_riformer_that_is_trained_on_at_384_pixels_learns_from_logits_alone():
    small = {"depths": (1, 1, 2, 1), "dims": (8, 8, 16, 16), "num_classes": 3, "img_size": 64}
    published, trained = PUBLISHED["riformer_s12_384"], PUBLISHED["riformer_s12"].build(**small)
    student = published.student(published.sized(trained))
    teacher = lf.create("gfnet_h_b", img_size=64, depth=(1, 1, 1, 1), embed_dim=(8, 8, 8, 8), num_classes=3)
    (method,) = lf.card_of(student).methods
    assert method == published.methods[0]
    assert list(method.objective(student, teacher).teacher_taps()) == ["teacher"]
    assert torch.equal(student.stages[0].blocks[0].mix.fn.weight, trained.stages[0].blocks[0].mix.fn.weight)


@pytest.mark.parametrize("name", ["sit_ti", "sit_s", "sit_m", "sit_l", "sit_deit_s", "sit_deit_s_fast"])
def test_a_sit_is_loaded_with_its_stages_in_their_order(name, tmp_path):
    dims = {"embed_dim": 12, "num_heads": 2, "img_size": 64}
    model = PUBLISHED[name].build(**dims)
    again = lf.load(lf.save(model, tmp_path / "model.safetensors"))
    assert lf.card_of(again).methods == PUBLISHED[name].methods
    slimmed = [[type(block.pre).__name__ for block in each.blocks] for each in (model, again)]
    assert slimmed[0] == slimmed[1]


WHERE = ["--device", "cpu", "--workers", "0", "--max-updates", "1", "--evaluate-every", "0", "--quiet"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sit_ti", "sit_ti is distilled: give --teacher self, or an --objective"),
        ("lvvit_t", "lvvit_t is distilled: give --teacher annotator=dm_nfnet_f6:WEIGHTS, or an --objective"),
        ("riformer_s12", "--teacher gfnet_h_b:WEIGHTS --teacher imitation=poolformer_s12:WEIGHTS, or an --objective"),
    ],
)
def test_a_recipe_that_distils_is_not_trained_on_labels_alone_unless_that_is_asked_for(name, told, tmp_path, capsys):
    command = ["train", "--recipe", name, "--data", str(tmp_path), "--output", str(tmp_path / "run"), *WHERE]
    assert main(command) == 2
    assert told in capsys.readouterr().err
    assert main([*command, "--objective", "cross_entropy"]) == 2
    assert "is distilled" not in capsys.readouterr().err


def test_a_teacher_whose_head_is_new_is_told_of(tmp_path, capsys):
    torch.save(timm.create_model("test_byobnet").state_dict(), tmp_path / "cnn.pth")
    small = ["--set=img_size=32", "--set=embed_dim=12", "--set=num_heads=3", "--set=depth=2"]
    pictures = picture_folder(tmp_path / "pictures")
    command = ["train", "deit_tiny_patch16_224", *small, "--recipe", "finetune:batch_size=4", "--classes", "4", *WHERE]
    where = ["--data", str(pictures), "--output", str(tmp_path / "run")]
    assert main([*command, *where, "--teacher", f"test_byobnet:{tmp_path / 'cnn.pth'}"]) == 0
    told = "the teacher 'teacher' has learnt nothing to answer: test_byobnet answers for 1000 classes"
    assert told in capsys.readouterr().err
