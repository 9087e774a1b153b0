"""The study of pre-training without labels: its rows, made once, also when processes share them or were stopped."""

import json

import pytest
import torch
from helpers import colour_pack

from lab.studies.dino import DinoStudy, study_dino
from lab.studies.rows import SPEEDS, rows_in
from lab.studies.scale import Scale

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
