"""The demo leaves what it promises."""

import pytest
import torch

import leanformer as lf
from leanformer.cli import demo_work, main
from leanformer.cli.demo_work import begin, digits, small_vit, view


def test_the_digits_are_split_without_overlap_and_hold_every_class():
    train, test = digits()
    assert len(train[1]) + len(test[1]) == 1797
    assert train[1].unique().tolist() == test[1].unique().tolist() == list(range(10))
    assert train[0].dtype == torch.uint8


def test_fusing_in_the_demo_is_exact():
    torch.manual_seed(0)
    model = lf.apply(small_vit(), lf.RePa(idle_ratio=0.5), lf.EViT(keep_rate=0.7))
    exact, images = model.double().eval(), view(model, digits()[1][0][:8]).double()
    with torch.no_grad():
        assert (exact(images) - lf.fuse(exact)(images)).abs().max() < 1e-9


@pytest.mark.parametrize("name", ["lean/lean.safetensors", "teacher.safetensors", "table.txt"])
def test_what_no_demo_made_stays_as_it_is(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo_work, "fit", lambda *_, **__: pytest.fail("the training began"))
    mine = tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("hours of work")
    assert main(["demo", "--output", str(tmp_path)]) == 2
    assert f"{tmp_path / name.partition('/')[0]} is there already" in capsys.readouterr().err
    assert mine.read_text() == "hours of work"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]


def test_a_demo_begins_anew_where_another_one_was(tmp_path):
    folder = begin(tmp_path / "demo")
    (folder / "plan.json").write_text("old")
    (tmp_path / "demo" / "teacher.safetensors").write_text("old")
    assert begin(tmp_path / "demo") == folder
    assert not (folder / "plan.json").exists()


@pytest.mark.slow
def test_the_demo_leaves_a_lean_model_its_plan_a_table_and_a_report(tmp_path, capsys):
    assert main(["demo", "--epochs", "1", "--lean-epochs", "1", "--output", str(tmp_path / "demo")]) == 0
    assert "times as fast as the teacher, timed in turn with it" in capsys.readouterr().out
    found = {path.name for path in (tmp_path / "demo").iterdir()}
    assert found == {"teacher.safetensors", "table.txt", "lean"}
    folder = tmp_path / "demo" / "lean"
    assert {"lean.safetensors", "plan.json", "report.html"} <= {path.name for path in folder.iterdir()}
    page = (folder / "report.html").read_text()
    assert "Block by block" in page
    teacher, lean = lf.load(tmp_path / "demo" / "teacher.safetensors"), lf.load(folder / "lean.safetensors")
    assert lf.measure.count(lean).macs < lf.measure.count(teacher).macs


def test_a_demo_that_is_stopped_says_that_the_next_one_begins_anew(tmp_path, monkeypatch, capsys):
    def stopped(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_work, "lean", stopped)
    assert main(["demo", "--epochs", "1", "--lean-epochs", "1", "--output", str(tmp_path / "demo")]) == 130
    assert "a new demo begins anew" in capsys.readouterr().out
