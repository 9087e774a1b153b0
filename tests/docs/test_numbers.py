"""Numbers of the README are those of the result files."""

import json
import re

import numpy as np
import pytest
from blocks import ROOT

from lab.orderings import compared, seed_noise, students_of
from lab.plans_table import together
from lab.seeds import over_seeds, speeds_of, table
from lab.spread import difference, teacher_answers
from lab.trade_off import trade_off
from lab.transfer import TEACHER

README = (ROOT / "README.md").read_text()


def rows(name):
    return json.loads((ROOT / "results" / f"{name}.json").read_text())["rows"]


def cells(start):
    """The cells of the README's row that begins so."""
    (line,) = [line for line in README.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def numbers(cell):
    return [float(number) for number in re.findall(r"\d+\.\d+", cell)]


PLANS = {
    "`lean` for 1.5 ": "lean 1.5",
    "176 px": "fewer pixels, 1.5",
    "`lean` for 2 ": "lean 2",
    "144 px": "144 px",
    "`lean` for 2.5 ": "lean 2.5",
    "128 px": "fewer pixels, 2",
}
"""Start of a row → the student, as the files of the H200 call it."""


@pytest.mark.parametrize("start", PLANS)
def test_a_student_has_the_speed_and_accuracy_that_were_measured(start):
    student = over_seeds(rows("lean_search_distilled_h200"), "judge")[PLANS[start]]
    (timed,) = [row for row in rows("study_imagenet_times_h200") if row["model"] == PLANS[start]]
    _, over_timm, over_own, top1, less, agrees = cells(start)
    assert less == difference(student.right, teacher_answers(ROOT / "results"))
    assert numbers(over_timm) + numbers(over_own) == pytest.approx([timed["over_timm"], timed["over_own"]], abs=0.0051)
    assert [float(top1), float(agrees)] == pytest.approx([student.mean, student.agreement], abs=0.051)


def test_the_readme_says_how_far_seeds_differ():
    words = re.search(
        r"three seeds, (.*?) points apart on the H200 and (.*?) on two CPU cores", " ".join(README.split())
    )
    for told, file, plans in zip(words.groups(), ("h200", "cpu"), (PLANS, CPU_PLANS), strict=True):
        students = over_seeds(rows(f"lean_search_distilled_{file}"), "judge")
        several = [students[name].top1 for name in plans.values() if file == "cpu" or name.startswith("lean")]
        assert {len(each) for each in several} == {3}
        apart = [max(each) - min(each) for each in several]
        assert numbers(told) == pytest.approx([min(apart), max(apart)], abs=0.051)


CPU_PLANS = {
    "CPU: `lean`, asked for 1.5": "lean 1.5",
    "CPU: `lean`, asked for 2 ": "lean 2",
    "CPU: 160 px": "fewer pixels, 2",
    "CPU: `lean`, asked for 2.5": "lean 2.5",
    "CPU: 144 px": "fewer pixels, 2.5",
}
"""Start of a row → the plan and its target."""


@pytest.mark.parametrize("start", CPU_PLANS)
def test_a_plan_has_the_speed_and_accuracy_that_were_measured_on_a_cpu(start):
    (timed,) = [row for row in rows("lean_search_cpu") if row["model"] == CPU_PLANS[start]]
    student = over_seeds(rows("lean_search_distilled_cpu"), "judge")[CPU_PLANS[start]]
    _, _, speed, top1, less, agrees = cells(start)
    assert len(student.top1) == 3
    assert numbers(speed) == [pytest.approx(timed["speedup"], abs=0.0051)]
    assert float(top1) == pytest.approx(student.mean, abs=0.051)
    assert less == difference(student.right, teacher_answers(ROOT / "results"))
    assert float(agrees) == pytest.approx(student.agreement, abs=0.051)


def test_what_a_method_gains_on_a_cpu_was_measured_in_each_runtime():
    measured = {(row["label"], row["runtime"]): row for row in rows("suite_cpu")}
    told = [line.strip("| ").split(" | ") for line in README.splitlines() if re.match(r"\| CPU: .* on ", line)]
    assert len(told) == 3
    for name, saved, over_timm, over_own, *_ in told:
        found = [measured[name.removeprefix("CPU: "), runtime] for runtime in ("torch", "onnxruntime", "openvino")]
        assert numbers(saved) == [pytest.approx(found[0]["mac_ratio"], abs=0.0051)]
        assert numbers(over_timm) == [pytest.approx(found[0]["over_timm"], abs=0.0051)]
        assert numbers(over_own) == pytest.approx([row["over_own"] for row in found], abs=0.0051)


def test_the_speeds_over_timm_were_measured():
    measured = [row["speedup"] for name in ("suite_gpu_h200", "suite_fp8_h200") for row in rows(name)]
    for start in (
        "EViT 0.7 / 0.5 on DeiT-S",
        "EViT 0.7 / 0.5 on DeiT-B",
        "RePa 0.75 on",
        "RePa 0.75 + EViT",
        "RIFormer",
    ):
        for number in numbers(cells(start)[2]):
            assert any(number == pytest.approx(each, abs=0.0051) for each in measured), (start, number)


def test_what_a_method_gains_over_the_optimised_backbone_was_measured():
    rates = {row["kind"]: row["images_per_second"]["optimised"] for row in rows("study_vit_tiny")}
    gains = [rates[kind] / rates["ViT at 224 px"] for kind in ("EViT 0.7", "EViT 0.5")]
    assert numbers(cells("EViT 0.7 / 0.5 on ViT-Ti")[3]) == pytest.approx(gains, abs=0.0051)


def test_a_speed_that_was_measured_in_two_runs_is_given_with_both():
    told = numbers(cells("RePa 0.75 on DeiT-S / DeiT-B / ViT-L")[2])
    for backbone in ("DeiT-B", "ViT-L"):
        both = [row["speedup"] for name in ("suite_gpu_h200", "suite_fp8_h200") for row in rows(name)
                if row["label"] == f"RePa 0.75 on {backbone}"]  # fmt: skip
        assert len(both) == 2
        assert all(any(number == pytest.approx(each, abs=0.0051) for number in told) for each in both), backbone


def test_fewer_pixels_beat_every_method_from_the_speed_on_that_the_readme_names():
    (start,) = [float(number) for number in re.findall(r"beats all methods from (\d\.\d+) times", README)]
    alike = [row for row in rows("study_vit_tiny") if row["epochs"] == 3 and row["learning_rate"] is None]
    line = sorted((row["speedup"]["optimised"], row["top1"]) for row in alike if row["kind"].startswith("ViT at"))
    for row in alike:
        speed = row["speedup"]["optimised"]
        if speed >= start and not row["kind"].startswith("ViT at"):
            assert row["top1"] < np.interp(speed, *zip(*line)), row["student"]


def test_what_optimize_alone_gives_vit_tiny_was_measured():
    told = [float(number) for number in re.findall(r"alone gives the backbone \((\d\.\d+) times for ViT-Ti", README)]
    found = [row["speedup"]["optimised"] for row in rows("study_vit_tiny") if row["kind"] == "ViT at 224 px"]
    assert told == [pytest.approx(found[0], abs=0.0051)]


def test_the_figure_is_that_of_the_result_files(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    trade_off(output=tmp_path / "drawn.svg")
    students = capsys.readouterr().out.splitlines()[2:]
    kept = (ROOT / "docs" / "accuracy_speed.svg").read_text()
    assert len(students) == 8
    assert not [line for line in students if line not in kept], "python -m lab trade-off draws it anew"


def test_the_figure_is_drawn_from_files_of_a_cpu_as_well(tmp_path, capsys):
    students, times = (ROOT / "results" / f"lean_search_{name}.json" for name in ("distilled_cpu", "cpu"))
    trade_off((students,), times, epochs=(1,), output=tmp_path / "drawn.svg", folder=ROOT / "results")
    assert "lean 1.5 (found by lean): 1.5483 and 73.1" in capsys.readouterr().out
    assert "(2 CPU cores, float32, batch 8)" in (tmp_path / "drawn.svg").read_text()


def plans_on_the_page(start):
    """The rows of the table of plans on the page on lean that stands behind this text, cell by cell."""
    page = (ROOT / "docs" / "lean.md").read_text().partition(start)[2]
    table = page[page.index("| asked for") :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


@pytest.mark.parametrize(("start", "place"), [("**On two CPU cores**", "cpu"), ("**On an H200**", "h200")])
def test_plans_on_the_page_on_lean_are_those_of_the_result_files(start, place):
    timed = {row["model"]: row for row in rows(f"lean_search_{place}")}
    trained = together(rows(f"lean_search_distilled_{place}"))
    for asked, plan, predicted, measured, seeds, top1, more, agreement in plans_on_the_page(start):
        target = asked.removesuffix("x")
        name = f"lean {target}" if plan.startswith("lean:") else f"{plan.partition(':')[0]}, {target}"
        speeds = [timed[name]["predicted_speedup"], timed[name]["speedup"]]
        assert numbers(predicted) + numbers(measured) == pytest.approx(speeds, abs=0.0051)
        row, found, lean = trained[name].row, trained[name].seeds, trained[f"lean {target}"].seeds
        after = bool(row["epochs"])
        assert seeds == (str(len(found.top1)) if after else "")
        assert numbers(top1) == pytest.approx([row["before_judge_top1"], found.mean][: 1 + after], abs=0.051)
        told = [row["before_judge_agreement"], found.agreement][: 1 + after]
        assert numbers(agreement) == pytest.approx(told, abs=0.051)
        assert more == (difference(lean.right, found.right) if after and found is not lean else "")


@pytest.mark.parametrize("kind", ["RetinaNet", "Mask R-CNN", "UperNet"])
@pytest.mark.parametrize("size", ["Small", "Base"])
def test_a_detector_has_the_latency_that_was_measured_on_a_cpu(kind, size):
    found = {row["label"]: row["milliseconds"]["optimised"] / 1e3 for row in rows("dense_cpu")}
    plain, lean = (found[f"{kind}, {name}{size}"] for name in ("Swin-", "RePa-Swin-"))
    page = (ROOT / "docs" / "dense.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {kind}, Swin-{size[0]} → RePa")]
    seconds, ratio = line.split("|")[4:6]
    assert numbers(seconds) == [pytest.approx(plain, abs=0.0051), pytest.approx(lean, abs=0.0051)]
    assert numbers(ratio) == [pytest.approx(plain / lean, abs=0.0051)]


def evidence(start):
    """The cells of the row of the page on photographs that begins so."""
    lines = (ROOT / "docs" / "evidence.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"| {start} |") and " → " in line]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(
    "name",
    [
        "lean 1.5",
        "ToMe in blocks 3, 6, 9, 1.5",
        "lean 2",
        "lean 2.5",
        "lean 3",
        "144 px",
        *(f"fewer pixels, {n}" for n in ("1.5", "2")),
    ],
)
def test_the_page_on_photographs_says_what_was_measured_on_an_h200(name):
    student = over_seeds(rows("lean_search_distilled_h200"), "judge")[name]
    (timed,) = [row for row in rows("study_imagenet_times_h200") if row["model"] == name]
    page = (ROOT / "docs" / "evidence.md").read_text()
    (line,) = re.findall(rf"^\| {re.escape(name)}(?:: .*?)? \|(.*x \|.*x \| \d \|.*)\|$", page, re.MULTILINE)
    over_timm, over_own, seeds, top1, less, agreement = (cell.strip() for cell in line.split("|"))
    assert numbers(over_timm) + numbers(over_own) == pytest.approx([timed["over_timm"], timed["over_own"]], abs=0.0051)
    assert int(seeds) == len(student.top1)
    spread = [min(student.top1), max(student.top1)] if len(student.top1) > 1 else []
    assert numbers(top1) == pytest.approx([student.mean, *spread], abs=0.051)
    assert less == difference(student.right, teacher_answers(ROOT / "results"))
    assert float(agreement) == pytest.approx(student.agreement, abs=0.051)


@pytest.mark.parametrize("name", ["lean 1.5", "lean 2", "Torch-Pruning to 0.8 GMACs", "Torch-Pruning to 0.61 GMACs"])
def test_pruned_channels_stand_beside_plans_as_measured(name):
    timed = {row["model"]: row for row in rows("study_imagenet_times_cpu")}[name]
    files = ("lean_search_distilled_cpu", "study_imagenet_peer_cpu")
    trained = {row["model"]: row for file in files for row in rows(file) if row["seed"] == 0}
    _, macs, over_timm, over_own, top1, agreement = evidence(name)
    assert numbers(macs) == [pytest.approx(trained[name]["macs"] / 1e9, abs=0.0051)]
    assert numbers(over_timm) + numbers(over_own) == pytest.approx([timed["over_timm"], timed["over_own"]], abs=0.0051)
    found = [trained[name][key] for key in ("before_judge_top1", "judge_top1", "judge_agreement")]
    assert numbers(top1) + numbers(agreement) == pytest.approx(found, abs=0.051)


def test_the_students_on_oxford_pets_are_those_of_the_result_file():
    students = over_seeds(rows("study_pets"), "test")
    teacher = students.pop(TEACHER)
    assert {len(each.top1) for each in (*students.values(), teacher)} == {3}
    told = table(students, teacher.right, "fewer pixels, 2", speeds_of(rows("lean_search_cpu")))
    assert told in (ROOT / "docs" / "evidence.md").read_text()
    (line,) = re.findall(r"^On Oxford Pets .*", README, re.MULTILINE)
    lost = [
        100 * (teacher.right.mean() - students[name].right.mean()) for name in ("lean 1.5", "lean 2", "fewer pixels, 2")
    ]
    found = [lost[0], teacher.mean, 1.55, lost[1], 1.93, lost[2], 2.08]
    assert numbers(line) == pytest.approx(found, abs=0.051)


@pytest.mark.parametrize("paper", ["EViT", "SiT", "RIFormer"])
def test_the_orderings_on_the_page_on_studies_are_those_of_the_result_files(paper):
    students = students_of(rows(f"study_{paper.lower()}"))
    pairs = compared(students, seed_noise(students), apart=0.2)
    told = re.findall(
        rf"^\| {paper}, Table (\S+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|",
        (ROOT / "docs" / "studies.md").read_text(),
        re.MULTILINE,
    )
    assert {f"table{number}" for number, *_ in told} == {pair.above.table for pair in pairs}
    for number, *counts in told:
        found = [pair.verdict for pair in pairs if pair.above.table == f"table{number}"]
        wanted = [len(found), *(found.count(verdict) for verdict in ("holds", "opposite", "level"))]
        assert [int(each) for each in counts] == wanted, number


def test_what_was_tried_for_the_recipe_is_in_the_result_files():
    page = (ROOT / "docs" / "evidence.md").read_text().partition("## What was tried for the recipe")[2]
    tried = [
        (row["epochs"], row["choose_top1"], row["choose_agreement"], row["choose_loss"])
        for file, model in (("study_imagenet", "EViT 0.5"), ("study_imagenet_recipes_cpu", "lean 2"))
        for row in rows(file)
        if row["model"] == model
    ]
    told = re.findall(r"^\| .* \| (\d+) \| (\d+\.\d) \| (\d+\.\d) \| (0\.\d+) \|$", page, re.MULTILINE)
    assert len(told) == len(tried) == 13
    for *line, loss in told:
        found = [row for row in tried if [float(each) for each in line] == pytest.approx(row[:3], abs=0.051)]
        assert any(float(loss) == pytest.approx(row[3], abs=0.00051) for row in found), line
