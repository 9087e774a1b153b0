"""Nothing lost, nothing twice: parts, manifests, kills, full disks."""

import csv
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import randomise, tiny
from pictures import same_rows, write_pictures

import leanformer as lf
from leanformer.prediction import Field, ResultBatch
from leanformer.prediction import parts as parts_module
from leanformer.prediction import predictions as predictions_module
from leanformer.prediction.formats import arrow_table

parquet = pytest.importorskip("pyarrow.parquet")
PIXELS = torch.randint(0, 256, (50, 3, 20, 20), generator=torch.Generator().manual_seed(0)).byte()


@pytest.fixture
def model() -> torch.nn.Module:
    return randomise(tiny()).eval()


@pytest.fixture
def small_parts(monkeypatch) -> None:
    monkeypatch.setattr(parts_module, "MOST_ROWS", 16)


def read(path: Path) -> list[dict[str, Any]]:
    return parquet.read_table(path).to_pylist()


def stopped(model: torch.nn.Module, output: Path, after: int, **options: Any) -> None:
    """Begin a run and break it off behind `after` parts."""
    write, count = parts_module.Parts._write, 0

    def break_off(self: Any, batches: Any) -> None:
        nonlocal count
        write(self, batches)
        count += 1
        if count == after:
            raise RuntimeError("broken off")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts_module.Parts, "_write", break_off)
        with pytest.raises(RuntimeError, match="broken off"):
            lf.predict(model, PIXELS, device="cpu", workers=0, **options).save(output)


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_a_file_holds_every_row_once_and_in_order(model, tmp_path, small_parts, ending):
    output = tmp_path / f"answers.{ending}"
    report = lf.predict(model, PIXELS, device="cpu", workers=0).save(output)
    text = None if ending == "parquet" else output.read_text().splitlines()
    rows = (
        read(output) if text is None else list(csv.DictReader(text)) if ending == "csv" else list(map(json.loads, text))
    )
    assert [row["path"] for row in rows] == [str(index) for index in range(50)]
    expected = list(lf.predict(model, PIXELS, device="cpu", workers=0))
    assert [int(row["class"]) for row in rows] == [row["class"] for row in expected]
    assert [float(row["score"]) for row in rows] == [row["score"] for row in expected]
    assert report.rows == report.total == 50
    assert os.listdir(tmp_path) == [output.name]


def test_a_folder_keeps_its_parts_with_a_manifest(model, tmp_path, small_parts):
    lf.predict(model, PIXELS, device="cpu", workers=0, embed=True).save(tmp_path / "vectors")
    manifest = json.loads((tmp_path / "vectors" / "manifest.json").read_text())
    files = [tmp_path / "vectors" / part["file"] for part in manifest["parts"]]
    assert manifest["complete"]
    assert len(files) == 4
    assert sum(part["rows"] for part in manifest["parts"]) == 50
    assert [row["path"] for file in files for row in read(file)] == [str(index) for index in range(50)]
    assert sorted(os.listdir(tmp_path / "vectors")) == sorted(["manifest.json", *(file.name for file in files)])
    again = lf.predict(model, PIXELS, device="cpu", workers=0, embed=True).save(tmp_path / "vectors")
    assert again.rows == 0
    assert again.total == 50


def test_parquet_says_what_model_made_it_and_keeps_halves(model, tmp_path):
    lf.predict(model, PIXELS, device="cpu", embed=True).to_parquet(tmp_path / "a.parquet")
    schema = parquet.read_schema(tmp_path / "a.parquet")
    assert json.loads(schema.metadata[b"leanformer"])["arguments"]["embed_dim"] == 16
    assert json.loads(schema.metadata[b"leanformer.predict"])["rows"] == 50
    assert str(schema.field("embedding").type) == "fixed_size_list<element: halffloat>[16]"


def test_rows_without_an_answer_are_null_in_every_format(model, tmp_path):
    write_pictures(tmp_path / "photos", 9, bad=(2,))
    answers = lf.predict(model, tmp_path / "photos", device="cpu", workers=0, embed=True)
    for ending in ("parquet", "csv", "jsonl"):
        answers.save(tmp_path / f"a.{ending}")
    row = read(tmp_path / "a.parquet")[2]
    assert row["class"] is None
    assert row["embedding"] is None
    assert row["error"]
    assert json.loads((tmp_path / "a.jsonl").read_text().splitlines()[2])["embedding"] is None
    assert list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))[2]["class"] == ""


def test_names_that_are_not_utf_8_are_written_alike_in_every_format(model, tmp_path):
    (odd,) = write_pictures(tmp_path / "photos", 1)
    os.rename(odd, os.fsencode(tmp_path / "photos") + b"/caf\xe9.png")
    answers = lf.predict(model, tmp_path / "photos", device="cpu", workers=0)
    for ending in ("parquet", "csv"):
        answers.save(tmp_path / f"a.{ending}")
    written = rf"{tmp_path}/photos/caf\udce9.png"
    assert [row["path"] for row in read(tmp_path / "a.parquet")] == [written]
    assert [row["path"] for row in csv.DictReader((tmp_path / "a.csv").read_text().splitlines())] == [written]


@pytest.mark.parametrize("form", [str, list], ids=["a text", "a list of texts"])
def test_what_is_not_utf_8_in_an_answer_is_escaped(form):
    text = "d\udce9"
    field = Field("name", "text", () if form is str else (None,))
    batch = ResultBatch(0, ["0"], [None], {"name": [text if form is str else [text]]})
    (row,) = arrow_table([batch], [field], {}).to_pylist()
    assert row["name"] == (r"d\udce9" if form is str else [r"d\udce9"])


def test_a_broken_run_goes_on_where_it_was(model, tmp_path, small_parts):
    output = tmp_path / "answers.parquet"
    stopped(model, output, after=2)
    assert not output.exists()
    report = lf.predict(model, PIXELS, device="cpu", workers=0).save(output)
    assert (report.rows, report.total) == (18, 50)
    lf.predict(model, PIXELS, device="cpu", workers=0).save(tmp_path / "whole.parquet")
    assert same_rows(read(output), read(tmp_path / "whole.parquet"))


def test_a_part_that_is_lost_is_computed_again(model, tmp_path, small_parts):
    whole = lf.predict(model, PIXELS, device="cpu", workers=0)
    whole.save(tmp_path / "vectors")
    lost = sorted((tmp_path / "vectors").glob("part-*"))[1]
    before = read(lost)
    lost.unlink()
    assert lf.predict(model, PIXELS, device="cpu", workers=0).save(tmp_path / "vectors").rows == 16
    assert same_rows(read(lost), before)


def test_two_gaps_become_two_parts(model, tmp_path, small_parts, monkeypatch):
    lf.predict(model, PIXELS, device="cpu", workers=0).save(tmp_path / "vectors")
    lost = sorted((tmp_path / "vectors").glob("part-*"))[0::2]
    before = [read(path) for path in lost]
    for path in lost:
        path.unlink()
    monkeypatch.setattr(parts_module, "MOST_ROWS", 1000)
    assert lf.predict(model, PIXELS, device="cpu", workers=0).save(tmp_path / "vectors").rows == 32
    assert all(same_rows(read(path), rows) for path, rows in zip(lost, before, strict=True))


def test_parts_of_another_run_are_not_continued(model, tmp_path, small_parts):
    output = tmp_path / "answers.parquet"
    stopped(model, output, after=1)
    with pytest.raises(ValueError, match="parts of another run: top differ"):
        lf.predict(model, PIXELS, device="cpu", top=2).save(output)
    with pytest.raises(ValueError, match="parts of another run: source, rows differ"):
        lf.predict(model, PIXELS[:40], device="cpu").save(output)
    with pytest.raises(ValueError, match="parts of another run: model differ"):
        lf.predict(randomise(tiny(), seed=1), PIXELS, device="cpu").save(output)
    assert lf.predict(model, PIXELS, device="cpu", top=2).save(output, overwrite=True).rows == 50


def test_a_folder_does_not_hold_the_rows_in_two_formats(model, tmp_path):
    output, answers = tmp_path / "answers", lf.predict(model, PIXELS, device="cpu", workers=0)
    answers.save(output, "csv")
    with pytest.raises(ValueError, match="another run: format differ"):
        answers.save(output, "jsonl")
    assert not list(output.glob("*.jsonl"))
    answers.save(output, "jsonl", overwrite=True)
    assert not list(output.glob("*.csv"))
    assert len(list(output.glob("*.jsonl"))) == 1


def test_rows_of_pictures_that_have_changed_are_not_continued(model, tmp_path):
    paths = write_pictures(tmp_path / "photos", 3)

    def save(**options: Any) -> Any:
        return lf.predict(model, tmp_path / "photos", device="cpu", workers=0).save(tmp_path / "v", **options)

    save()
    assert save().rows == 0
    os.utime(paths[1], (1, 1))
    with pytest.raises(ValueError, match="parts of another run: source differ"):
        save()
    assert save(overwrite=True).rows == 3


def test_a_list_may_name_files_that_are_not_there(model, tmp_path):
    paths = [*write_pictures(tmp_path, 1), tmp_path / "none.png", "memory://none/at/all.png"]
    answers = lf.predict(model, paths, device="cpu", workers=0)
    assert answers.save(tmp_path / "v").failed == 2
    assert answers.save(tmp_path / "v").rows == 0


def test_weights_and_pictures_are_looked_at_once_for_a_run(model, tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(predictions_module, "model_fingerprint", lambda given: looked.append(given) or "same")
    lf.predict(model, PIXELS, device="cpu", workers=0).save(tmp_path / "v")
    assert looked == [model]


def test_an_output_that_ends_with_a_slash_is_a_folder_whatever_its_name(model, tmp_path):
    answers = lf.predict(model, PIXELS, device="cpu", workers=0)
    answers.save(f"{tmp_path}/vectors_v1.5/")
    answers.save(f"{tmp_path}/rows.d/", "csv")
    assert [path.suffix for path in (tmp_path / "vectors_v1.5").glob("part-*")] == [".parquet"]
    assert [path.suffix for path in (tmp_path / "rows.d").glob("part-*")] == [".csv"]
    with pytest.raises(ValueError, match=r"cannot be written as '.5'; .* the name of a folder ends with /"):
        answers.save(f"{tmp_path}/vectors_v1.5")


def test_what_is_there_already_is_not_overwritten_unasked(model, tmp_path):
    answers = lf.predict(model, PIXELS, device="cpu", workers=0)
    (tmp_path / "a.csv").write_text("mine")
    (tmp_path / "folder").mkdir(), (tmp_path / "folder" / "mine.txt").write_text("")
    for output, says in {
        "a.csv": "is there already",
        "folder": "holds other files, such as mine.txt",
        "a.csv/b.csv": "cannot write",
        "a.xlsx": "cannot be written as '.xlsx'; known: .parquet, .csv, .jsonl",
        "s3://bucket/a.csv": "is an address",
    }.items():
        with pytest.raises(ValueError, match=says) as refusal:
            answers.save(output if "://" in output else tmp_path / output)
        assert "\n" not in str(refusal.value)
    assert (tmp_path / "a.csv").read_text() == "mine"
    answers.save(tmp_path / "a.csv", overwrite=True)
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 51


def test_a_second_run_keeps_away_from_an_output_that_is_being_written(model, tmp_path):
    answers = lf.predict(model, PIXELS, device="cpu", workers=0)
    style, about = parts_module.FORMATS[".parquet"], {}
    with parts_module.Parts(tmp_path / "v", style, answers.job(), answers.fields, about):
        with pytest.raises(ValueError, match="another run is writing"):
            answers.save(tmp_path / "v")
    assert answers.save(tmp_path / "v").rows == 50


def test_a_full_disk_stops_with_one_line_and_keeps_what_is_whole(model, tmp_path, small_parts, monkeypatch):
    output, written = tmp_path / "answers.parquet", 0
    write_table = parquet.write_table

    def full(table: Any, path: str, **options: Any) -> None:
        nonlocal written
        written += 1
        if written > 2:
            Path(path).write_bytes(b"half a file")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_table(table, path, **options)

    monkeypatch.setattr(parquet, "write_table", full)
    with pytest.raises(ValueError, match="No space left on device; 32 of 50 rows are whole in") as refusal:
        lf.predict(model, PIXELS, device="cpu", workers=0).save(output)
    assert "\n" not in str(refusal.value)
    monkeypatch.setattr(parquet, "write_table", write_table)
    assert lf.predict(model, PIXELS, device="cpu", workers=0).save(output).rows == 18
    assert [row["path"] for row in read(output)] == [str(index) for index in range(50)]


def test_an_interrupt_keeps_the_rows_that_were_computed(model, tmp_path, monkeypatch):
    add, count = parts_module.Parts.add, 0

    def interrupted(self: Any, batch: Any) -> None:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        add(self, batch)

    monkeypatch.setattr(parts_module.Parts, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lf.predict(model, PIXELS, device="cpu", workers=0).save(tmp_path / "v")
    assert [len(read(path)) for path in (tmp_path / "v").glob("part-*")] == [24]


@pytest.mark.parametrize(
    ("ending", "workers"), [("parquet", 1), pytest.param("jsonl", 0, marks=pytest.mark.exhaustive)]
)
def test_killed_at_random_moments_a_run_gives_the_rows_of_one_that_was_not(model, tmp_path, ending, workers):
    source, saved = tmp_path / "photos", lf.save(model, tmp_path / "model.safetensors")
    write_pictures(source, 1000, bad=(17, 600))
    whole, killed = tmp_path / f"whole.{ending}", tmp_path / f"killed.{ending}"
    command = [sys.executable, Path(__file__).with_name("killed.py"), saved, source, killed, workers, 5]
    found = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stdout + found.stderr
    assert int(found.stdout.split()[-1]) >= 3
    lf.predict(lf.load(saved), source, embed="float32", device="cpu", workers=0).save(whole)
    if ending == "parquet":
        rows = read(killed)
        assert [row["path"] for row in rows] == [str(source / f"{index}.png") for index in range(1000)]
        assert same_rows(rows, read(whole))
    else:
        assert killed.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*.parts"))
