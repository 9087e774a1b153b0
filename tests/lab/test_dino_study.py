"""The study of pre-training without labels: its rows, made once, also when processes share them or were stopped."""

import json
import re
from pathlib import Path

import pytest
import torch
from helpers import colour_pack

from lab.studies.dino import DinoStudy, study_dino
from lab.studies.rows import SPEEDS, rows_in
from lab.studies.scale import Scale
from leanformer.train.probe import RATES

SMALL = ("img_size=32", "embed_dim=16", "depth=4", "num_heads=2",
         "dino=prototypes=8,hidden=12,bottleneck=4,local_size=16,local_crops=1")  # fmt: skip


def study(folder, **options) -> DinoStudy:
    torch.set_num_threads(1)
    scale = Scale(data=colour_pack(folder), teacher_epochs=2, epochs=1, batch_size=16, device="cpu", **options)
    return DinoStudy.of(scale, SMALL, folder / "study.json", folder / "runs", (4, 1), "never")


def test_rows_follow_the_epochs_and_fused_features_are_the_same(tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / SPEEDS).write_text(json.dumps({"EViT 0.7": {"speedup": {"eager": 1.25}}}))  # timed before
    made = study(tmp_path)
    rows = made.run("RePa 0.5|EViT 0.7")
    places = [(row["model"], row["epoch"]) for row in rows]
    pre_trained = [(f"{name}, DINO", epoch) for name in ("ViT", "RePa 0.5") for epoch in (0, 1, 2)]
    assert places == [*pre_trained, ("EViT 0.7", 0), ("EViT 0.7", 1)]
    for row in rows[2:6:3]:
        assert row["fused_knn"] == pytest.approx(row["knn"], abs=7), "one of 16 images may change its neighbours"
        assert row["dino"].startswith("dino:prototypes=8,")
    assert [row.get("speedup") for row in rows] == [None] * 6 + [{"eager": 1.25}] * 2
    study_dino(made, "EViT")
    assert "1.25 eager" in capsys.readouterr().out
    assert rows_in(made.output) == rows, "what has a row is not made again"


def test_a_row_of_an_earlier_epoch_is_not_made_from_a_later_one(tmp_path):
    made = study(tmp_path)
    made.run("RePa 0.5")
    rows = json.loads(made.output.read_text())
    rows["rows"] = [row for row in rows["rows"] if row["epoch"] != 1]
    made.output.write_text(json.dumps(rows))
    with pytest.raises(ValueError, match="beyond epoch 1, which has no row"):
        made.run("RePa 0.5")


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ssl.md").read_text()


def measured(model, epoch, figure):
    """A figure of both seeds, from the result file."""
    rows = json.loads((ROOT / "results" / "study_dino.json").read_text())["rows"]
    found = {row["seed"]: row[figure] for row in rows if (row["model"], row["epoch"]) == (model, epoch)}
    return [found[0], found[1]]


def told(start):
    """The numbers of the page's row that begins so."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {start} |")]
    return [float(number) for number in re.findall(r"\d+\.\d", line.removeprefix(f"| {start}"))]


@pytest.mark.parametrize("epoch", [0, 2, 5, 7, 10, 12])
def test_the_page_tells_what_pre_training_came_to(epoch):
    models = ("ViT, DINO", "RePa 0.5, DINO")
    expected = [each for model in models for figure in ("knn", "linear") for each in measured(model, epoch, figure)]
    assert told(epoch) == pytest.approx(expected, abs=0.0501)


def test_the_page_tells_what_fused_features_came_to():
    vit, repa = (measured(model, 12, "fused_knn") for model in ("ViT, DINO", "RePa 0.5, DINO"))
    assert told("12, fused") == pytest.approx(vit + repa, abs=0.0501)
    moved = [round(100 * (a - b)) for a, b in zip(measured("RePa 0.5, DINO", 12, "knn"), repa)]
    assert f"{moved[0]} and {moved[1]} of 10,000 images fewer are right" in PAGE


@pytest.mark.parametrize(("model", "start"), [("EViT 0.7", "EViT 0.7"), ("ToMe 0.9", "ToMe 0.9 in every block")])
def test_the_page_tells_what_distillation_of_features_came_to(model, start):
    before, after = ({figure: measured(model, epoch, figure) for figure in ("knn", "linear")} for epoch in (0, 3))
    expected = [part[figure][seed] for figure in ("knn", "linear") for seed in (0, 1) for part in (before, after)]
    assert told(start) == pytest.approx(expected, abs=0.0501)


def test_the_page_tells_the_speeds_and_sizes_that_were_measured():
    models = {"RePa 0.5": "RePa 0.5, DINO", "ToMe 0.9": "ToMe 0.9", "EViT 0.7": "EViT 0.7"}
    epochs = {"RePa 0.5": 12, "ToMe 0.9": 3, "EViT 0.7": 3}
    speeds = {name: measured(model, epochs[name], "speedup")[0] for name, model in models.items()}
    repa, tome, evit = (f"{speeds[name]['optimised']:.2f}" for name in models)
    page = " ".join(PAGE.split())
    assert f"RePa 0.5 {repa} times, ToMe 0.9 {tome}, EViT 0.7 {evit}." in page
    repa, tome, evit = (f"{speeds[name]['compiled']:.2f}" for name in models)
    assert f"slower than the ViT ({repa}, {tome} and {evit} times)" in page
    sizes = [[measured(model, 12, each)[0] / 1e6 for model in ("RePa 0.5, DINO", "ViT, DINO")]
             for each in ("parameters", "macs")]  # fmt: skip
    (small, large), (few, many) = sizes
    assert (
        f"{small:.2f} instead of {large:.2f} million parameters, {few:.0f} instead of {many:.0f} million MACs" in page
    )
    assert f"({measured('ViT, DINO', 12, 'images_per_second')[0]['optimised']:,})" in page


def test_the_page_tells_how_many_rates_a_linear_classifier_is_chosen_from():
    assert len(RATES) == 7
    assert "at the best of seven learning rates" in " ".join(PAGE.split())
