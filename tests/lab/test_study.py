"""A study trains a teacher and its students, skips what is there, and writes one row a run."""

import dataclasses
import functools
import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import colour_pack

import leanformer as lf
from lab.__main__ import main
from lab.studies import masters
from lab.studies.digest import digest, losses, points
from lab.studies.file_lock import file_lock, write_row
from lab.studies.masters import Masters
from lab.studies.riformer import riformer
from lab.studies.rows import rows_in
from lab.studies.scale import Scale
from lab.studies.speed import Kinds
from lab.studies.study import _own_first, run_study
from lab.studies.vit_tiny import vit_tiny
from leanformer.measure import timing
from leanformer.methods import EViT, RePa
from leanformer.train import Result

ROOT = Path(__file__).parents[2]
SMALL = ["--set", "img_size=32", "--set", "depths=(1,1,1,1)", "--set", "dims=(8,8,16,16)"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setitem(timing.SAMPLE_SECONDS, "cpu", 0.005)


@pytest.fixture
def pack(tmp_path):
    """Two classes of plain colours."""
    return colour_pack(tmp_path)


def run(pack, tmp_path, *more):
    arguments = ["study", "riformer", "--data", pack, "--epochs", "1", "--teacher-epochs", "1", "--batch-size", "16"]
    arguments += ["--device", "cpu", "--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "study.json")]
    arguments += ["--measure-batch", "4", "--repeats", "2"]
    return main([*arguments, *SMALL, *more])


def test_a_whole_name_means_one_student_and_a_part_of_a_name_all_that_have_it():
    small = vit_tiny(None)
    assert [student.name for student in small.chosen("EViT 0.7, distilled")] == ["EViT 0.7, distilled"]
    both = small.chosen("EViT 0.7, distilled | SiT early, rec")
    assert [student.name for student in both] == ["EViT 0.7, distilled", "SiT early, recalibration"]
    assert len(small.chosen("EViT 0.7, ")) > 2
    assert len(small.chosen("")) == len(small.students)


def test_a_study_writes_a_row_a_run_and_skips_what_is_there(pack, tmp_path, capsys):
    assert run(pack, tmp_path, "--only", "table7/affine") == 0
    first = json.loads((tmp_path / "study.json").read_text())
    assert [row["student"] for row in first["rows"]] == ["table7/affine-imitation"]
    assert run(pack, tmp_path, "--only", "table7/") == 0
    second = json.loads((tmp_path / "study.json").read_text())
    trained = ("student", "seed", "top1", "before", "train_seconds")
    again = next(row for row in second["rows"] if row["student"] == "table7/affine-imitation")
    assert [again[key] for key in trained] == [first["rows"][0][key] for key in trained]
    assert {row["student"] for row in second["rows"]} == {
        "table7/identity",
        "table7/identity-features",
        "table7/affine-imitation",
    }
    row = again
    assert row["command"].startswith("python -m lab study riformer --data pack:colours --set ")
    assert row["command"].endswith(" --device cpu --epochs 1 --seeds 0 --only table7/affine-imitation")
    assert "--compile" not in row["command"]
    assert row["speedup"]["eager"] > 0
    assert 0 <= row["top1"] <= 100
    assert row["paper_top1"] == 75.36
    assert "table7/identity" in capsys.readouterr().out
    assert run(pack, tmp_path, "--only", "table7/", "--figure", str(tmp_path / "figure.png")) == 0
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_seeds_share_a_line_with_one_command_and_rates_do_not():
    base = {"kind": "EViT", "student": "EViT, distilled", "epochs": 3, "before": 60.0, "ema_top1": None, "macs": 1}
    base |= {"teacher_top1": 80.0, "paper_top1": None, "parameters": 1}
    scale = Scale(data="pack:x", epochs=3, teacher_epochs=6, command="python -m lab study s")
    slow = dataclasses.replace(scale, learning_rate=3e-5)
    rows = [
        base | {"seed": seed, "top1": top1, "learning_rate": at.learning_rate, "command": at.command_of("EViT", seed)}
        for seed, top1, at in ((0, 78.0, scale), (1, 79.0, scale), (0, 79.5, slow))
    ]
    lines = digest(rows)
    assert [(line["seeds"], line["rate"], line["range"], line["command"]) for line in lines] == [
        ("2", "", "78.00-79.00", "python -m lab study s --epochs 3 --seeds 0 1 --only EViT"),
        ("1", "3e-05", "", "python -m lab study s --learning-rate 3e-05 --epochs 3 --seeds 0 --only EViT"),
    ]
    assert losses({"one": rows}) == [{"student": "EViT, distilled", "epochs": "3", "one": "0.50"}]


def test_schedules_are_not_mixed_and_the_best_way_to_learn_is_drawn():
    base = {"kind": "EViT 0.5", "seed": 0, "before": 60.0, "ema_top1": None, "teacher_top1": 80.0, "paper_top1": None}
    base |= {"macs": 1, "parameters": 1, "images_per_second": {"backbone compiled": 10, "optimised": 30}, "speedup": {}}
    rows = [
        base | {"student": f"EViT 0.5, {how}", "epochs": epochs, "top1": top1}
        for how, epochs, top1 in (("labels", 3, 70.0), ("distilled", 3, 75.0), ("distilled", 12, 78.0))
    ]
    assert [(line["student"], line["epochs"], line["top-1"]) for line in digest(rows)] == [
        ("EViT 0.5, labels", "3", "70.00"),
        ("EViT 0.5, distilled", "3", "75.00"),
        ("EViT 0.5, distilled", "12", "78.00"),
    ]
    assert [(point["model"], point["throughput"], point["top1"]) for point in points(rows)] == [
        ("teacher", 10, 80.0),
        ("EViT 0.5", 30, 78.0),
    ]
    untimed = [{key: value for key, value in row.items() if key != "images_per_second"} for row in rows]
    assert [(point["model"], point["macs"], point["top1"]) for point in points(untimed, teacher_macs=2)] == [
        ("teacher", 2, 80.0),
        ("EViT 0.5", 1, 78.0),
    ]


def test_a_student_of_smaller_images_learns_from_the_teacher_at_its_own_size(pack, tmp_path):
    arguments = ["study", "vit_tiny", "--data", pack, "--epochs", "1", "--teacher-epochs", "1", "--batch-size", "16"]
    arguments += ["--device", "cpu", "--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "study.json")]
    arguments += ["--measure-batch", "4", "--set", "depth=4", "--set", "embed_dim=24", "--only", "EViT 0.7 at 192 px"]
    assert main(arguments) == 0
    (row,) = rows_in(tmp_path / "study.json")
    assert row["speedup"]["eager"] > 1
    assert row["macs"] < 0.8 * lf.measure.count(lf.create("vit_tiny_patch16_224", depth=4, embed_dim=24)).macs


def test_processes_share_the_queue(pack, tmp_path):
    command = [sys.executable, "-m", "lab", "study", "riformer", "--data", pack, "--epochs", "1"]
    command += ["--teacher-epochs", "1", "--batch-size", "16", "--device", "cpu", "--runs", str(tmp_path / "runs")]
    command += ["--output", str(tmp_path / "study.json"), *SMALL, "--only", "table7/ident|table7/affine"]
    command += ["--workers", "2", "--measure", "never"]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    rows = json.loads((tmp_path / "study.json").read_text())["rows"]
    assert [row["student"] for row in rows] == [
        "table7/identity",
        "table7/identity-features",
        "table7/affine-imitation",
    ]
    assert len({row["teacher_top1"] for row in rows}) == 1


@pytest.mark.slow
def test_a_study_that_is_terminated_leaves_no_process_behind(pack, tmp_path):
    command = [sys.executable, "-m", "lab", "study", "riformer", "--data", pack, "--epochs", "9", "--device", "cpu"]
    command += ["--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "study.json"), *SMALL, "--workers", "2"]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    while started.poll() is None and len(_processes(str(tmp_path))) < 3:  # its log is there before a worker is
        time.sleep(0.1)
    assert started.poll() is None
    started.terminate()
    assert started.wait(60) != 0
    until = time.monotonic() + 30
    while _processes(str(tmp_path)) and time.monotonic() < until:  # the last one may be on its way out
        time.sleep(0.1)
    assert _processes(str(tmp_path)) == []


def _processes(text):
    """The processes whose command line contains the text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path] if text in path.read_text() else []
        except OSError:
            continue
    return found


def test_what_is_to_be_timed_travels_to_another_process(pack):
    build = functools.partial(riformer, None, img_size=32, depths=(1, 1, 1, 1), dims=(8, 8, 16, 16))
    scale = Scale(data=pack, epochs=1, teacher_epochs=1, device="cpu")
    there = pickle.loads(pickle.dumps(Kinds(build, ("table7/identity",), scale, batch=2, repeats=2)))
    assert there()["table7/identity"]["images_per_second"]["eager"] > 0


def test_speeds_measured_before_training_reach_the_rows(pack, tmp_path):
    assert run(pack, tmp_path, "--only", "table7/identity-features", "--measure", "only") == 0
    assert not (tmp_path / "study.json").exists()
    assert run(pack, tmp_path, "--only", "table7/identity-features", "--measure", "never") == 0
    (row,) = rows_in(tmp_path / "study.json")
    assert row["speedup"]["eager"] > 0
    assert run(pack, tmp_path, "--only", "table7/affine-imitation", "--measure", "only") == 0  # the others' stay
    known = json.loads((tmp_path / "runs" / "speeds.json").read_text())
    assert sorted(known) == ["table7/affine-imitation", "table7/identity-features"]
    assert rows_in(tmp_path / "study.json") == [row]


def test_processes_begin_with_other_kinds_and_keep_to_one_until_it_is_done():
    runs = [(student, seed) for seed in (0, 1) for student in vit_tiny(None).chosen("RePa 0.25,|RePa 0.5,|RePa 0.75,")]
    for worker in range(3):
        kinds = [student.kind for student, _ in _own_first(runs, worker, 3)]
        assert kinds[:6] == [f"RePa {('0.25', '0.5', '0.75')[worker]}"] * 6
        assert sorted(kinds) == sorted(student.kind for student, _ in runs)


def test_processes_share_out_the_teachers_before_any_row(tmp_path, monkeypatch):
    study = riformer(img_size=32, depths=(1, 1, 1, 1), dims=(8, 8, 16, 16))
    runs = [(student, seed) for seed in (0, 1) for student in study.chosen("table7/identity|table9/12-pool")]
    made = []
    monkeypatch.setattr(Masters, "_opened", lambda self, *which: (made.append(which), (None, 50.0))[1])
    mine = Masters(study, Scale(data="x"), None, None, tmp_path, {})
    with file_lock(tmp_path / "teacher-0"):  # another process is at it
        mine.share(runs)
    assert made == [("poolformerv2_s12", 0), ("", 1), ("poolformerv2_s12", 1)]
    write_row(tmp_path / "teacher-0", {"top1": 50.0})
    mine.share(runs)
    assert len(made) == 3
    assert mine.get("", 0) == (None, 50.0)  # trained meanwhile; opened once a row needs it


def test_a_shared_teacher_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    study = riformer(img_size=32, depths=(1, 1, 1, 1), dims=(8, 8, 16, 16))
    runs = [(student, 0) for student in study.chosen("table7/identity|table9/12-pool")]

    def opened(self, name, seed):
        if name:
            raise ValueError("no such teacher")
        return None, 50.0

    monkeypatch.setattr(Masters, "_opened", opened)
    mine = Masters(study, Scale(data="x"), None, None, tmp_path, {})
    mine.share(reversed(runs))
    assert mine.known == {("", 0): (None, 50.0)}
    assert "no such teacher" in capsys.readouterr().err


def test_a_run_that_fails_does_not_stop_the_others(pack, tmp_path):
    def fails(teacher, epochs):
        raise ValueError("no such thing")

    study = riformer(img_size=32, depths=(1, 1, 1, 1), dims=(8, 8, 16, 16))
    bad, good = study.students[0], study.students[1]
    study = dataclasses.replace(study, students=(dataclasses.replace(bad, make=fails), good))
    scale = Scale(data=pack, epochs=1, teacher_epochs=1, batch_size=16, device="cpu")
    with pytest.raises(RuntimeError, match=f"{bad.name}, seed 0: no such thing"):
        run_study(study, scale, tmp_path / "study.json", tmp_path / "runs")
    assert [row["student"] for row in rows_in(tmp_path / "study.json")] == [good.name]


def test_a_study_that_is_asked_to_stop_begins_no_other_run(pack, tmp_path, monkeypatch):
    begun = []

    def stopped(model, **options):
        begun.append(options["output"])
        return Result(model, None, None, None, [], 1, False, 0.0, options["output"])

    monkeypatch.setattr(masters, "fit", stopped)
    scale = Scale(data=pack, epochs=1, teacher_epochs=1, batch_size=16, device="cpu")
    queue = riformer(None, img_size=32, depths=(1, 1, 1, 1), dims=(8, 8, 16, 16))
    with pytest.raises(SystemExit, match="the same command goes on"):
        run_study(queue, scale, tmp_path / "study.json", tmp_path / "runs")
    assert len(begun) == 1


@pytest.mark.parametrize(("own", "used"), [(None, 5e-4), (1e-5, 1e-5)])
def test_a_teacher_keeps_its_own_rate_whatever_the_students_get(pack, tmp_path, monkeypatch, own, used):
    rates = []

    def stopped(model, **options):
        rates.append(options["recipe"].learning_rate)
        return Result(model, None, None, None, [], 1, False, 0.0, options["output"])

    monkeypatch.setattr(masters, "fit", stopped)
    queue = riformer(None, img_size=32, depths=(1, 1, 1, 1), dims=(8, 8, 16, 16))
    queue = dataclasses.replace(queue, teacher_learning_rate=own)
    scale = Scale(data=pack, epochs=1, teacher_epochs=1, batch_size=16, device="cpu", learning_rate=5e-4)
    with pytest.raises(SystemExit):
        run_study(queue, scale, tmp_path / "study.json", tmp_path / "runs")
    assert rates == [used]


def test_a_study_can_be_cut_to_some_classes_and_images(pack, tmp_path):
    study = riformer(img_size=32, depths=(1, 1, 1, 1), dims=(8, 8, 16, 16))
    scale = Scale(data=pack, epochs=1, teacher_epochs=1, batch_size=4, device="cpu", first_classes=1, images=8)
    rows = run_study(study, scale, tmp_path / "study.json", tmp_path / "runs", only="table1/pooling")
    assert rows[0]["train_images"] == 8
    assert rows[0]["first_classes"] == 1
    assert rows[0]["top1"] == 100


def test_two_studies_stand_side_by_side(pack, tmp_path, capsys):
    assert run(pack, tmp_path, "--only", "table7/identity-features", "--measure", "never") == 0
    result = json.loads((tmp_path / "study.json").read_text())
    for row in result["rows"]:
        row["top1"] = row["teacher_top1"] - 1.25
    (tmp_path / "other.json").write_text(json.dumps(result))
    command = ["--only", "table7/identity-features", "--measure", "never", "--beside"]
    capsys.readouterr()
    assert run(pack, tmp_path, *command, str(tmp_path / "other.json")) == 0
    shown = capsys.readouterr().out
    assert "points below the teacher" in shown
    assert "1.25" in shown
    (tmp_path / "third.json").write_text(json.dumps(result).replace('"epochs": 1,', '"epochs": 7,'))
    assert run(pack, tmp_path, *command, str(tmp_path / "other.json"), str(tmp_path / "third.json")) == 0
    assert "no student is in other and third as well" in capsys.readouterr().out
    assert run(pack, tmp_path, *command, str(tmp_path / "nothing.json")) == 2


def test_a_teacher_that_was_trained_otherwise_is_not_taken_for_this_one(pack, tmp_path, capsys):
    only = ["--only", "table1/pooling", "--measure", "never"]
    assert run(pack, tmp_path, *only) == 0
    again = [*only, "--output", str(tmp_path / "other.json")]
    assert run(pack, tmp_path, *again, "--teacher-epochs", "2") == 2
    assert "epochs=1, not 2" in capsys.readouterr().err
    assert run(pack, tmp_path, *again, "--set", "drop_path_rate=0.1") == 2
    assert "drop_path_rate" in capsys.readouterr().err
    assert not (tmp_path / "other.json").exists()
    assert run(pack, tmp_path, *again, "--epochs", "2") == 0  # the students' epochs are their own


def test_a_run_of_other_images_or_other_teachers_is_not_taken_for_this_one(pack, tmp_path, capsys):
    only = ["--only", "table3/soft", "--measure", "never", "--set", "logits=poolformer_m48"]
    only += ["--set", "poolformer_m48.depths=(1,1,1,1)", "--set", "poolformer_m48.dims=(8,8,16,16)"]
    assert run(pack, tmp_path, *only[:4]) == 0
    again = ["--output", str(tmp_path / "other.json")]
    assert run(pack, tmp_path, *only[:4], *again, "--images", "16") == 2
    assert "images=None, not 16" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="other images, teachers or arguments"):  # the same name and schedule
        run(pack, tmp_path, *only, *again)
    assert not (tmp_path / "other.json").exists()
    assert run(pack, tmp_path, *only[:4], *again) == 0  # the very same run is not trained again
    first, second = (rows_in(tmp_path / name)[0] for name in ("study.json", "other.json"))
    assert second == first


def test_another_file_for_a_teacher_is_not_judged_by_what_the_first_one_had(pack, tmp_path, capsys):
    assert run(pack, tmp_path, "--only", "table1/pooling", "--measure", "never") == 0
    trained = tmp_path / "runs" / "teacher-0" / "model.safetensors"
    (tmp_path / "a.safetensors").write_bytes(trained.read_bytes())
    (tmp_path / "b.safetensors").write_bytes(trained.read_bytes())
    given = ["--only", "table1/", "--measure", "never", "--runs", str(tmp_path / "other")]
    assert run(pack, tmp_path, *given, "--teacher", str(tmp_path / "a.safetensors")) == 0
    again = ["--teacher", str(tmp_path / "b.safetensors"), "--output", str(tmp_path / "other.json")]
    assert run(pack, tmp_path, *given, *again) == 2
    assert "give another folder with --runs" in capsys.readouterr().err


def test_a_teacher_with_a_new_head_is_known_again(pack, tmp_path):
    study = vit_tiny(None, img_size=32, depth=1, embed_dim=16, num_heads=1)
    for epochs in (1, 2):
        scale = Scale(data=pack, epochs=epochs, teacher_epochs=1, batch_size=16, device="cpu")
        rows = run_study(study, scale, tmp_path / "study.json", tmp_path / "runs", only="RePa 0.5, labels")
    assert [row["epochs"] for row in rows] == [1, 2]


def test_a_student_may_change_the_recipe(pack, tmp_path):
    study = riformer(img_size=32, depths=(1, 1, 1, 1), dims=(8, 8, 16, 16))
    student = dataclasses.replace(study.students[0], changes={"mixup": 0.8})
    scale = Scale(data=pack, epochs=1, teacher_epochs=1, batch_size=16, device="cpu")
    run_study(dataclasses.replace(study, students=(student,)), scale, tmp_path / "study.json", tmp_path / "runs")
    mixed = {
        path.parent.name: json.loads(path.read_text())["recipe"]["mixup"] for path in tmp_path.glob("runs/*/run.json")
    }
    assert len(mixed) == 2
    assert all((mixup == 0.8) == (run != "teacher-0") for run, mixup in mixed.items())


def test_unknown_studies_are_refused(capsys):
    assert main(["study", "nothing", "--data", "x"]) == 2
    assert "known: vit_tiny, riformer" in capsys.readouterr().err


def test_every_student_of_the_vit_study_can_be_made():
    study = vit_tiny(None, depth=12, embed_dim=24, num_heads=2, img_size=64)
    teacher = study.teacher(3)
    names = [student.name for student in study.students]
    assert len(set(names)) == len(names)
    models = [student.make(teacher, 12) for student in {student.kind: student for student in study.students}.values()]
    assert all(model.num_classes == 3 for model in models)
    assert {type(method) for model in models for method in model.card.methods} >= {EViT, RePa}


def test_rows_that_are_the_same_run_are_trained_once(pack, tmp_path):
    assert run(pack, tmp_path, "--only", "table7/affine|table8/riformer|table7/identity-features") == 0
    rows = {row["student"]: row for row in rows_in(tmp_path / "study.json")}
    twin, own, other = (
        rows[name] for name in ("table8/riformer_s12", "table7/affine-imitation", "table7/identity-features")
    )
    assert twin["same_as"] == own["student"]
    assert all(twin[key] == own[key] for key in ("run", "before", "top1", "macs", "train_seconds"))
    assert twin["command"].endswith("--only table8/riformer_s12")
    assert twin["speedup"]["eager"] > 0
    assert len(list((tmp_path / "runs").glob("table*/model.safetensors"))) == 2
    assert other["run"] != own["run"]
    assert "same_as" not in own.keys() | other.keys()
