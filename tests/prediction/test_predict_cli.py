"""leanformer predict: the verb, its table, its files, its refusals."""

import json

import pytest
from helpers import randomise, tiny
from pictures import write_pictures

import leanformer as lf
from leanformer.cli import main


@pytest.fixture
def saved(tmp_path):
    return str(lf.save(randomise(tiny()), tmp_path / "lean.safetensors"))


def test_a_few_pictures_are_printed_as_a_table(saved, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "photos", 3, bad=(1,))
    assert main(["predict", saved, "photos", "--top", "2", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "2.png" in printed
    assert "not a picture" in printed
    assert "3 rows in" in printed
    assert "bounded by" in printed


def test_the_example_of_the_help_writes_answers(saved, tmp_path):
    write_pictures(tmp_path / "photos", 3)
    output = tmp_path / "answers.jsonl"
    assert (
        main(["predict", saved, str(tmp_path / "photos"), "--output", str(output), "--device", "cpu", "--embed"]) == 0
    )
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [len(row["embedding"]) for row in rows] == [16] * 3


def test_an_output_that_ends_with_a_slash_is_a_folder(saved, tmp_path):
    write_pictures(tmp_path / "photos", 3)
    output = tmp_path / "vectors_v1.5"
    command = ["predict", saved, str(tmp_path / "photos"), "--device", "cpu", "--format", "csv", "--output"]
    assert main([*command, f"{output}/"]) == 0
    assert json.loads((output / "manifest.json").read_text())["complete"]


def test_features_are_of_the_dtype_that_is_asked_for(saved, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_pictures(tmp_path / "photos", 1)
    for words, kind in (([], "halffloat"), (["--embed-dtype", "float32"], "float")):
        output = str(tmp_path / f"{kind}.parquet")
        assert main(["predict", saved, str(tmp_path / "photos"), "--embed", *words, "--output", output]) == 0
        assert str(parquet.read_schema(output).field("embedding").type) == f"fixed_size_list<element: {kind}>[16]"


def test_a_run_without_a_single_answer_fails(saved, tmp_path):
    write_pictures(tmp_path / "photos", 2, bad=(0, 1))
    assert main(["predict", saved, str(tmp_path / "photos"), "--device", "cpu"]) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["photos", "--output", "a.doc"], "cannot be written as '.doc'"),
        (["photos", "--output", "a.csv", "--format", "parquet"], "ends .csv, but parquet is asked for"),
        (["photos", "--kept"], "apply one that does first"),
        (["photos", "--classes", "none.txt"], "--classes: none.txt cannot be read"),
        (["photos", "--embed-dtype", "float32"], "--embed-dtype means nothing without --embed"),
        (["photos", "--format", "csv"], "--format means nothing without --output"),
        (["photos", "--overwrite"], "--overwrite means nothing without --output"),
        (["photos", "--split", "val"], "nor a folder with the folder 'val' in it"),
        (["photos", "--column", "image"], "photos is no table, so it has no column 'image'"),
        (["many"], "200 rows are too many to print; name a file with --output"),
    ],
)
def test_what_cannot_work_is_one_line(saved, tmp_path, monkeypatch, capsys, options, says):
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "photos", 2)
    (tmp_path / "many").mkdir()
    for index in range(200):
        (tmp_path / "many" / f"{index}.png").write_bytes(b"")
    assert main(["predict", saved, *options, "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_without_ray_the_engine_is_refused_with_the_line_that_brings_it(saved, tmp_path, monkeypatch, capsys):
    write_pictures(tmp_path / "photos", 2)
    monkeypatch.setattr("leanformer.prediction.ray_engine.importlib.util.find_spec", lambda name: None)
    assert main(["predict", saved, str(tmp_path / "photos"), "--engine", "ray"]) == 2
    assert "pip install 'leanformer[scale]'" in capsys.readouterr().err
