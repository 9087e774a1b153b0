"""A run is resumed from any folder: what it was given as a relative path is noted as an absolute one."""

import pytest

from leanformer.train.engine import _located_labels, source_names


@pytest.mark.parametrize("kind", ["", "images:", "pack:", "hfds/", "wds/"])
def test_a_source_given_by_a_relative_path_is_noted_by_its_place(kind, tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    assert source_names(f"{kind}photos", None) == {"train": f"{kind}{tmp_path}/photos"}


def test_packs_named_by_the_beginning_of_their_names_are_noted_by_their_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert source_names("pack:tiny_", "pack:none/tiny_") == {
        "train": f"pack:{tmp_path}/tiny_",
        "val": "pack:none/tiny_",
    }


def test_label_maps_of_an_objective_are_noted_by_their_place(tmp_path, monkeypatch):
    (tmp_path / "maps").mkdir()
    monkeypatch.chdir(tmp_path)
    said = "token_labels:labels=maps,class_labels=annotator + cross_entropy"
    assert _located_labels(said) == said.replace("maps", f"{tmp_path}/maps")
