"""The page of the papers: every command of it can be parsed and finds what it names, our numbers come from files."""

import functools
import importlib
import json
import shlex
from pathlib import Path

import pytest

from lab.__main__ import VERBS, main
from lab.paper_index import PAPERS
from lab.papers import ours, page_text
from lab.studies.riformer import SETTINGS, riformer
from lab.study import STUDIES
from leanformer.cli import VERBS as LIBRARY
from leanformer.cli.parser import parse
from leanformer.core import parse_options
from leanformer.papers.recipes import PUBLISHED, parse_recipe
from leanformer.papers.tables import TABLES

RESULTS = Path("results")
COMMANDS = sorted({command for items in PAPERS.values() for item in items for command in item.commands})


def options_of(command):
    """The options that a command's verb would be called with."""
    words = shlex.split(command)
    if words[:3] == ["python", "-m", "lab"]:
        function, given = VERBS[words[3]], words[4:]
    else:
        module, _, name = LIBRARY[words[1]].partition(":")
        function, given = getattr(importlib.import_module(f"leanformer.cli.{module}"), name), words[2:]
    call = parse(function, " ".join(words[:4]), given)
    return call.keywords if isinstance(call, functools.partial) else {}


def check(command):
    """Refuse a command that could not run: its verb, options, recipe, study and rows all have to be there."""
    words, options = shlex.split(command), options_of(command)
    if words[1] == "train" and options["recipe"].partition(":")[0] not in PUBLISHED:
        parse_recipe(options["recipe"])
    if words[1] == "tables" and options["system"] not in (*TABLES, "all"):
        raise ValueError(f"unknown system '{options['system']}'")
    if words[1:4] == ["-m", "lab", "study"] and options["name"] != "dino":  # that one has rows of its own making
        STUDIES[options["name"]](None, **parse_options(options["arguments"])).chosen(options["only"])


def test_every_command_of_the_page_parses_and_finds_what_it_names():
    for command in COMMANDS:
        check(command)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("leanformer train --recipe evit_deit_small_0.77 --data D --output R", "unknown recipe"),
        ("leanformer tables swin", "unknown system"),
        ('python -m lab study sit --data D --only "table99/"', "table99"),
        ("leanformer show kept vit --picture P", "picture"),
    ],
)
def test_a_command_that_could_not_run_is_found_out(command, told):
    with pytest.raises(ValueError, match=told):
        check(command)


def test_every_table_and_figure_is_there_once_with_a_command_or_a_remark():
    for items in PAPERS.values():
        numbers = [item.number for item in items]
        assert len(set(numbers)) == len(numbers)
        assert all(item.commands or item.remark for item in items)
    evit, sit, riformer, repa, _ = PAPERS.values()
    for items, last in ((evit, 7), (sit, 10), (riformer, 9), (repa, 8)):
        told = " ".join(item.number.replace(",", "") for item in items if item.number.startswith("Table"))
        assert {int(word) for word in told.split() if word.isdigit()} == set(range(1, last + 1))


def test_the_rows_of_riformers_tables_are_run_with_the_teachers_that_the_paper_names():
    commands = [options_of(command) for command in COMMANDS if "lab study riformer" in command]
    assert len(commands) == 8
    for options in commands:
        for student in riformer(**parse_options(options["arguments"])).chosen(options["only"]):
            assert student.others.get("teacher") == SETTINGS[student.name].teacher, student.name


def test_repaformers_tables_5_and_6_are_run_by_their_own_recipes_from_weights():
    repa = {item.number: item.commands for item in PAPERS["RePaFormer (2025)"]}
    trained = {options_of(command)["recipe"] for command in repa["Table 5"] if "leanformer train" in command}
    assert trained == {name for name in PUBLISHED if "dino_vit_" in name}
    dense = [options_of(command) for command in repa["Table 6"] if "--task" in command]
    assert {options["recipe"] for options in dense} == {"coco_1x", "ade20k_upernet"}
    assert all(options["model"] == "MODEL" or options["checkpoint"] for options in dense)
    assert [options["model"] == "MODEL" for options in dense] == [False, True] * 3


def test_our_numbers_are_those_of_the_files_with_seeds_together(tmp_path, capsys):
    rows = [{"student": "table2/0.7, labels", "seed": seed, "epochs": 3, "top1": top1, "teacher_top1": teacher}
            for seed, top1, teacher in ((0, 31.0, 39.0), (1, 32.0, 41.0))]  # fmt: skip
    assert ours({"rows": rows}, "table2/") == [
        {"row": "table2/0.7, labels", "epochs": "3", "seeds": "2", "top-1, %": "31.5 (31.0 to 32.0)", "teacher": "40.0"}
    ]
    (tmp_path / "study_evit.json").write_text(json.dumps({"kind": "study evit", "rows": rows}))
    assert main(["papers", "--page", str(tmp_path / "papers.md"), "--folder", str(tmp_path)]) == 0
    page = (tmp_path / "papers.md").read_text()
    assert "| table2/0.7, labels | 3 | 2 | 31.5 (31.0 to 32.0) | 40.0 |" in page
    assert all(f"## {paper}" in page for paper in PAPERS)
    assert "python -m lab figure token-similarity" in page


def test_a_result_without_accuracies_and_speeds_is_named_and_not_drawn_as_an_empty_table():
    rows = [{"model": "ViT-B, part by part", "batch": 2048, "mlp_ms": 3.0}]
    page = page_text({"profile_h200_eager.json": {"rows": rows}})
    assert "Ours are in `results/profile_h200_eager.json`" in page
    assert "part by part |" not in page


def test_quality_that_is_no_accuracy_is_shown_in_columns_of_its_own():
    rows = [{"model": "ViT, DINO", "seed": seed, "epoch": 12, "knn": knn, "linear": 18.5, "speedup": {"optimised": 2.0}}
            for seed, knn in ((0, 10.0), (1, 11.0))]  # fmt: skip
    assert ours({"rows": rows}, "ViT") == [
        {"row": "ViT, DINO", "epochs": "12", "seeds": "2", "k-NN, %": "10.5 (10.0 to 11.0)",
         "linear, %": "18.5 (18.5 to 18.5)", "speed-up": "2.00"}
    ]  # fmt: skip
    dense = {"model": "Mask R-CNN, ViT", "epochs": 4, "figures": {"ap": 73.6, "mask_ap": 68.1}}
    assert ours({"rows": [dense]}, "Mask") == [
        {"row": "Mask R-CNN, ViT", "epochs": "4", "AP": "73.6", "mask AP": "68.1"}
    ]
    timed = {"label": "RetinaNet, Swin-Small", "milliseconds": {"eager": 2992.3, "optimised": 2856.6}}
    assert ours({"rows": [timed]}, "*Swin") == [{"row": "RetinaNet, Swin-Small", "ms": "2857"}]


def test_no_result_that_a_table_names_is_without_a_row_of_ours():
    for items in PAPERS.values():
        for item in items:
            for file, only in item.ours:
                if (RESULTS / file).is_file():
                    found = ours(json.loads((RESULTS / file).read_text()), only)
                    assert found or only in not_run_yet(file), (item.number, file)


def not_run_yet(file):
    """Beginnings of names of students that a study has, and its result file need not have."""
    name = file.removeprefix("study_").removesuffix(".json")
    if name not in ("evit", "sit", "riformer"):
        return set()
    return {student.name.partition("/")[0] + "/" for student in STUDIES[name]().students}


def test_tables_of_a_paper_stand_in_the_papers_order():
    numbers = [item.number for item in PAPERS["RIFormer (CVPR 2023)"] if item.number.startswith("Table")]
    assert numbers == [f"Table {number}" for number in range(1, 10)]


def test_every_metaformer_of_the_study_stands_beside_its_own_table():
    ((file, only),) = next(
        item.ours for item in PAPERS["MetaFormer (CVPR 2022, TPAMI 2024)"] if item.number == "Baselines"
    )
    rows = ours(json.loads((RESULTS / file).read_text()), only)
    assert [row["row"].split("-")[0] for row in rows] == [
        "IdentityFormer", "RandFormer", "PoolFormerV2", "ConvFormer", "CAFormer",
    ]  # fmt: skip
