"""Plans are timed in turn with the model they come from, whichever process compiles them."""

import json

import pytest
import torch
from safetensors.torch import save_file
from timm import create_model

from lab import plans_checked
from lab.plans import Study, measured_costs
from lab.plans_again import Timed, predict_again
from lab.plans_checked import AT_ONCE, Check, drawn, time_plans
from leanformer.search.clock import Place, clock_for
from leanformer.search.plan import Plan, space_of


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """A ViT-Ti's weights, a clock that counts, what plans are made of, and what they cost."""
    path = tmp_path_factory.mktemp("vit") / "vit.safetensors"
    torch.manual_seed(0)
    save_file(create_model("vit_tiny_patch16_224").state_dict(), path)
    clock = clock_for(Place(torch.device("cpu"), 8, torch.float32), "macs")
    teacher = plans_checked.teacher_of(path)
    space = space_of(teacher, ("evit", "tome"))
    return path, clock, space, Timed(*measured_costs(Study(teacher, space, clock, path.parent)))


def test_all_models_are_ready_before_the_first_is_timed(setting):
    path, _, _, timed = setting
    clock = clock_for(Place(torch.device("cpu"), 1, torch.float32), "eager", repeats=1)
    plans = {"small": {"plan": Plan((128, 128)).to_json(), "predicted": timed.costs.predict(Plan((128, 128)))}}
    told = []
    (row,) = time_plans(path, clock, timed.teacher, plans, lambda: told.append("ready"))
    assert told == ["ready"]
    assert row["model"] == "small"
    assert row["speedup"] > 1


def test_a_check_holds_random_plans_against_the_clock_and_survives_a_lost_process(
    setting, tmp_path, monkeypatch, capsys
):
    path, clock, space, timed = setting
    smaller = Plan((160, 160))
    best = {"plan": smaller.to_json(), "predicted": timed.costs.predict(smaller), "family": "px"}
    (tmp_path / "lean 2.json").write_text(json.dumps({"target": "2 times", "hand": {}, "best": [best]}))
    output = tmp_path / "checked.json"
    Check(path, clock, timed).run(space, tmp_path, 2, 1, output)
    result = json.loads(output.read_text())
    assert [row["model"] for row in result["rows"]] == ["lean 2", "random 0", "random 1"]
    assert result["plans_checked"] == 2
    assert result["worst_error"] < 0.05
    assert Timed.from_json(result) == timed
    predict_again(output)
    assert capsys.readouterr().out.count("2 of 2 within 5%") == 4

    monkeypatch.setattr(plans_checked, "compile_together", lambda jobs, workers, go: [(job, None) for job in jobs])
    Check(path, clock, timed).run(space, tmp_path, AT_ONCE, 2, output)
    assert json.loads(output.read_text())["rows"] == []


def test_random_plans_are_all_different_and_cost_less_than_the_model(setting):
    _, _, space, timed = setting
    plans = drawn(space, timed.costs, timed.teacher, 8)
    assert len({str(plan) for plan in plans}) == 8
    assert all(timed.costs.predict(plan) < timed.teacher for plan in plans)


def test_plans_are_predicted_anew_with_every_unchanged_model_that_was_timed(setting, tmp_path, capsys):
    """A chip on which a model at 176 pixels takes half as long again as one would think."""
    _, _, _, timed = setting
    costs, seconds = timed.costs, timed.teacher
    plans = {"fewer pixels": Plan((176, 176)), "random 0": Plan.of((176, 176), {"evit": {9: 0.5}})}
    rows = [
        {"model": name, "plan": plan.to_json(), "speedup": seconds / (1.5 * costs.predict(plan)), "error": -1 / 3}
        for name, plan in plans.items()
    ]
    file = tmp_path / "checked.json"
    file.write_text(json.dumps({"rows": rows, **timed.to_json()}))
    predict_again(file)
    told = capsys.readouterr().out
    assert "drawn at random, as predicted: median 33.3%, worst 33.3%, 0 of 1 within 5%" in told
    assert "drawn at random, fitted to 1 more models: median" in told
    assert "1 of 1 within 5%" in told


def test_a_file_without_a_table_of_costs_is_refused_in_one_line(tmp_path):
    file = tmp_path / "old.json"
    file.write_text(json.dumps({"rows": []}))
    with pytest.raises(ValueError, match="no table of costs"):
        predict_again(file)
