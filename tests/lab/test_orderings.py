"""Which orderings of a paper a study shows."""

from pathlib import Path

import pytest

from lab.__main__ import main
from lab.orderings import compared, seed_noise, students_of

RESULTS = Path(__file__).parents[2] / "results"


def row(student: str, top1: float, seed: int = 0, paper: float | None = None, run: str = "", epochs: int = 3) -> dict:
    found = {"student": student, "top1": top1, "seed": seed, "paper_top1": paper, "epochs": epochs}
    return found | ({"run": run} if run else {})


def verdicts(rows, apart=0.2):
    students = students_of(rows)
    found = compared(students, seed_noise(students), apart)
    return {(pair.above.name, pair.below.name): pair.verdict for pair in found}


def test_students_that_the_seeds_tell_apart_hold_or_are_the_other_way_round():
    rows = [row(f"table7/{name}", top1 + 0.1 * seed, seed, paper)
            for name, top1, paper in (("a", 50.0, 80.0), ("b", 48.0, 79.0), ("c", 49.0, 78.0), ("d", 48.0, 77.9))
            for seed in (0, 1)]  # fmt: skip
    assert verdicts(rows) == {
        ("table7/a", "table7/b"): "holds", ("table7/a", "table7/c"): "holds", ("table7/a", "table7/d"): "holds",
        ("table7/b", "table7/c"): "opposite", ("table7/b", "table7/d"): "level",
    }  # fmt: skip


def test_students_of_other_tables_and_rows_of_one_run_are_not_compared():
    rows = [row("table4/a", 1.0, paper=80.0, run="x"), row("table7/b", 2.0, paper=79.0, run="y"),
            row("table4/c", 1.0, paper=78.0, run="x"), row("table4/d", 3.0)]  # fmt: skip
    assert verdicts(rows) == {}


def test_students_that_were_trained_for_other_epochs_are_neither_mixed_nor_compared():
    rows = [
        row("table1/a", 50.0, paper=80.0),
        row("table1/b", 49.0, paper=79.0),
        row("table1/a", 10.0, 0, 80.0, epochs=1),
    ]
    assert verdicts(rows) == {("table1/a", "table1/b"): "holds"}
    assert sorted(each.mean for each in students_of(rows)) == [10.0, 49.0, 50.0]


def test_rows_from_the_trained_deit_have_the_numbers_of_those_from_random_weights():
    rows = [row(f"table2/{rate}, labels from the trained DeiT", top1) for rate, top1 in (("0.9", 80.0), ("0.5", 70.0))]
    assert list(verdicts(rows).values()) == ["holds"]


def test_the_command_tells_the_orderings_of_a_file(capsys):
    assert main(["orderings", "--file", str(RESULTS / "study_metaformers.json")]) == 0
    assert "are opposite" in capsys.readouterr().out
    assert main(["orderings", "--file", str(RESULTS / "study_riformer_cpu.json")]) == 2
    assert "no two students" in capsys.readouterr().err


@pytest.mark.parametrize("seeds", [1, 2])
def test_with_one_seed_nothing_is_level(seeds):
    rows = [row(f"table1/{n}", 50 + n, seed, 80.0 + n) for n in (0, 1) for seed in range(seeds)]
    assert set(verdicts(rows).values()) == {"holds"}
