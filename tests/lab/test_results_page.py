"""The page of results: the papers' rows beside ours, with the speed-up of the very model that was measured."""

import functools
import json
from pathlib import Path

import pytest

import leanformer as lf
from lab import __main__ as command
from lab import results_page
from lab.suite_rows import Entry
from leanformer.measure import record, write_result
from leanformer.papers.table import PaperTables, Row
from leanformer.papers.tables import TABLES

DIMS = {"img_size": 224, "patch_size": 56, "embed_dim": 32, "depth": 4, "num_heads": 2}
SMALL = functools.partial(lf.create, "vit", **DIMS)


def lean():
    return lf.apply(SMALL(), lf.EViT())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Result files of several kinds; the suite knows one model."""
    monkeypatch.setattr(results_page, "SUITES", {"gpu": lambda batches: [(Entry("tiny EViT", "vit", (lf.EViT(),)), 1)]})
    monkeypatch.setattr(results_page, "create", lambda name, **arguments: SMALL())
    forms = {"backbone eager": 10.0, "backbone compiled": 20.0, "eager": 15.0, "compiled": 25.0, "optimised": 30.0}
    row = {"label": "tiny EViT", "batch": 1, "size": 224, "dtype": "float32", "forms": forms, "mac_ratio": 1.5,
           "speedup": 1.75, "paper_speedup": "1.50"}  # fmt: skip
    write_result(record("suite gpu", [row]), tmp_path / "results" / "suite.json")
    sweep = {"keep_rate": 0.7, "top1": 81.25, "top5": 95.0, "macs": 10**9}
    write_result(record("sweep", [sweep], data="photos.npz", images=1000), tmp_path / "results" / "sweep.json")
    profile = {"model": "vit", "mode": "eager", "batch": 1, "whole": 0.004, "parts": {"FFN": 0.001}}
    write_result(record("profile", [profile]), tmp_path / "results" / "profile.json")
    write_result(record("new kind", [{"a": {"b": 1}}]), tmp_path / "results" / "other.json")
    return tmp_path / "results"


def test_the_measured_speed_up_stands_beside_its_model_and_no_other(folder, tmp_path):
    rows = [Row("1", "tiny", SMALL), Row("1", "tiny, keep 0.7", lean, published={"top-1": "79.5", "img/s": "4385"})]
    page, wrong = results_page.write_page({"evit": (rows, "A remark.")}, tmp_path / "docs" / "results.md", folder)
    lines = page.read_text().splitlines()
    plain, kept = (next(line for line in lines if line.startswith(f"| evit | 1 | {name} |")) for name in
                   ("tiny", "tiny, keep 0.7"))  # fmt: skip
    assert not wrong
    assert "1.75 (" not in plain
    assert "| 79.5 | 4,385 |" in kept.replace("4385", "4,385")
    assert "| 1.50 | 1.75 (" in kept


def test_every_kind_of_result_is_shown_with_its_command_and_data(folder, tmp_path):
    text = results_page.write_page({}, tmp_path / "r.md", folder)[0].read_text()
    for told in (
        "## suite",
        "## sweep",
        "## profile",
        "## other",
        "Data: photos.npz, 1,000 images",
        "| 81.2 |",
        "25.0%",
    ):
        assert told in text
    assert "| a b |" in text


def test_a_study_tells_what_its_commands_share_once_and_the_rest_beside_each_row(folder, tmp_path):
    row = {"kind": "EViT", "student": "EViT, distilled", "seed": 0, "epochs": 3, "before": 60.0, "ema_top1": None,
           "macs": 10**9, "teacher_top1": 80.0, "top1": 79.0, "paper_top1": None, "parameters": 10**6,
           "command": "python -m lab study s --compile --epochs 3 --seeds 0 --only 'EViT, distilled'"}  # fmt: skip
    long = row | {"epochs": 12, "command": row["command"].replace("epochs 3", "epochs 12")}
    write_result(record("study s", [row, long]), folder / "study_s.json")
    text = results_page.write_page({}, tmp_path / "r.md", folder)[0].read_text()
    assert "\n    python -m lab study s --compile\n" in text
    assert "| `--epochs 12 --seeds 0 --only 'EViT, distilled'` |" in text
    assert "| paper |" not in text.split("## study_s")[1]  # nothing fills that column


def test_a_figure_that_is_off_is_told(folder, tmp_path):
    wrong = results_page.write_page({"evit": ([Row("1", "tiny", SMALL, params="99")], "")}, tmp_path / "r.md", folder)[
        1
    ]
    assert len(wrong) == 1
    assert "paper 99 M" in wrong[0]


def test_the_command_writes_the_page(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "TABLES", {"sit": PaperTables(TABLES["sit"].rows[:1], "A remark.")})
    path = tmp_path / "docs" / "results.md"
    assert command.main(["results", "--page", str(path), "--folder", str(folder)]) == 0
    assert "LV-ViT+-Ti" in path.read_text()
    assert json.loads((folder / "sweep.json").read_text())["kind"] == "sweep"


def test_a_suite_shows_both_ratios_and_old_rows_blanks(folder, tmp_path):
    forms = {"backbone eager": 10.0, "backbone compiled": 20.0, "backbone optimised": 25.0, "optimised": 40.0}
    row = {"label": "new", "backbone": "vit", "batch": 1, "size": 224, "dtype": "float32", "runtime": "torch",
           "forms": forms, "over_timm": 2.0, "over_timm_spread": 0.01, "over_own": 1.6, "over_own_spread": 0.02,
           "mac_ratio": 2.0, "share": 0.8, "failed": "", "command": "python -m lab suite gpu"}  # fmt: skip
    failed = row | {"label": "broken", "forms": {}, "failed": "out of memory"}
    failed |= dict.fromkeys(("over_timm", "over_own", "mac_ratio", "share", "over_timm_spread", "over_own_spread"))
    old = json.loads((folder / "suite.json").read_text())["rows"][0]
    write_result(record("suite gpu", [row, old, failed]), folder / "suite.json")
    lines = results_page.write_page({}, tmp_path / "r.md", folder)[0].read_text().splitlines()
    cells = [line.strip("|").split("|") for line in lines]
    head = next([name.strip() for name in line] for line in cells if any("over own" in name for name in line))
    shown = {line[0].strip(): dict(zip(head, map(str.strip, line))) for line in cells if len(line) == len(head)}
    assert [shown["new"][name] for name in ("over timm", "over own", "share")] == ["2.00", "1.60", "0.80"]
    assert shown["new"]["timm's best, img/s"] == "20"  # the optimised backbone is not timm's
    assert [shown["tiny EViT"][name] for name in ("over timm", "over own")] == ["1.75", ""]
    assert shown["broken"]["failed"] == "out of memory"


def test_the_suite_of_families_has_columns_of_its_own(folder, tmp_path):
    row = {"family": "mlp_mixer", "model": "mixer_b16_224", "method": "repa", "batch": 256, "dtype": "bfloat16",
           "forms": {"compiled": 10.0, "compiled, graph": 12.0, "optimised": 9.0}, "ratios": {"optimised": 0.75},
           "loss": "optimised", "failed": "", "commit": None, "command": ""}  # fmt: skip
    write_result(record("suite families", [row]), folder / "families.json")
    text = results_page.write_page({}, tmp_path / "r.md", folder)[0].read_text()
    assert "| mlp_mixer | mixer_b16_224 | repa | 256 | bfloat16 | 12 | 9 | 0.75 | optimised |" in text


def test_every_result_file_of_this_repository_can_be_shown():
    for result in results_page.read_results(Path(__file__).parents[2] / "results"):
        if result.get("rows"):
            assert results_page.shown_result(result).count("\n| ") >= len(result["rows"]) // 10
