"""train, eval and recipes from the command line, and a run that goes on from its folder alone."""

import json

import pytest
import torch
from survival import picture_folder

import leanformer as lf
from leanformer.cli import main

SMALL = ("--set", "img_size=16", "--set", "patch_size=8", "--set", "embed_dim=16", "--set", "depth=3")
MODEL = ("vit", *SMALL, "--set", "num_heads=2", "--set", "num_classes=4")
RUN = ("--device", "cpu", "--workers", "0", "--quiet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return picture_folder(tmp_path_factory.mktemp("pictures"))


def _train(folder, output, *more: str) -> int:
    recipe = "finetune:epochs=2,batch_size=8"
    return main(["train", *MODEL, "--recipe", recipe, "--data", str(folder), "--output", str(output), *RUN, *more])


def test_train_writes_a_run_folder_that_loads_and_evaluates(folder, tmp_path, capsys):
    assert _train(folder, tmp_path / "run", "--apply", "evit:keep_rate=0.5", "--teacher", "self") == 0
    told = capsys.readouterr().out
    assert "trained: top-1" in told
    assert "moving average: top-1" in told
    run = lf.train.read_run(tmp_path / "run")
    assert run["recipe"]["batch_size"] == 8
    assert set(run["versions"]) >= {"leanformer", "torch", "timm", "python"}
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {
        "run.json", "log.jsonl", "log.csv", "checkpoint.pt", "student.safetensors", "teacher.teacher.safetensors",
        "model.safetensors", "ema.safetensors", "result.json",
    }  # fmt: skip
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    model = str(tmp_path / "run" / "model.safetensors")
    figures = tmp_path / "eval.json"
    evaluate = ["eval", model, "--data", str(folder), "--device", "cpu", "--workers", "0", "--per-class"]
    assert main([*evaluate, "--output", str(figures)]) == 0
    assert json.loads(figures.read_text())["top1"] == result["val"]["top1"]
    assert "most confused" in capsys.readouterr().out


def test_resume_needs_nothing_but_the_folder(folder, tmp_path):
    teacher = ("--teacher", "self", "--apply", "evit:keep_rate=0.5")
    assert _train(folder, tmp_path / "whole", *teacher) == 0
    assert _train(folder, tmp_path / "parts", *teacher, "--max-updates", "3", "--save-every", "1") == 0
    run = json.loads((tmp_path / "parts" / "run.json").read_text())
    run["settings"]["max_updates"] = None
    (tmp_path / "parts" / "run.json").write_text(json.dumps(run))
    assert main(["train", "--resume", str(tmp_path / "parts")]) == 0
    whole, parts = (lf.load(tmp_path / name / "model.safetensors").state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(whole[key], parts[key]) for key in whole)


def test_a_new_head_and_a_published_recipe_from_the_command_line(folder, tmp_path):
    code = main([
        "train", "--recipe", "evit_deit_small_0.7:epochs=1,batch_size=8", *SMALL, "--set", "num_heads=2",
        "--classes", "4", "--data", str(folder), "--output", str(tmp_path / "run"), *RUN,
        "--max-updates", "1", "--evaluate-every", "0",
    ])  # fmt: skip
    assert code == 0
    model = lf.load(tmp_path / "run" / "model.safetensors")
    assert model.num_classes == 4
    assert [m.name for m in lf.card_of(model).methods] == ["evit"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "vit"], "needs --data and --output"),
        (["train", "--data", "x", "--output", "y"], "name a model"),
        (["train", "--resume", "nowhere"], "is no run folder"),
        (["train", "vit", "--recipe", "nothing", "--data", "x", "--output", "y"], "unknown recipe"),
        (["train", *MODEL, "--data", "x", "--output", "y"], "does not exist"),
        (["train", *MODEL, "--data", "x", "--output", "y", "--teacher", "deit_tiny"], "needs weights"),
        (["eval", *MODEL, "--data", "nowhere"], "does not exist"),
        (["recipes", "nothing*"], "no recipe matches"),
    ],
)
def test_what_a_user_gets_wrong_ends_in_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_recipes_are_listed_with_the_papers_figures(capsys):
    assert main(["recipes", "evit_deit_small*"]) == 0
    assert "79.5" in capsys.readouterr().out
    assert main(["recipes", "evit_deit_small_0.7"]) == 0
    assert "2048" in capsys.readouterr().out


def test_a_recipe_is_shown_with_its_model_methods_and_task(capsys):
    assert main(["recipes", "repa_dino_vit_base"]) == 0
    shown = capsys.readouterr().out
    for told in ("vit_base_patch16_224", "num_classes=0", "repa", "teacher_temp=0.07"):
        assert told in shown
