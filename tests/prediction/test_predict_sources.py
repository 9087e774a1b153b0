"""Every kind of source gives the same pictures in the same order, and what is none is refused in one line."""

import os
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from helpers import randomise, tiny
from pictures import encoded, picture, same_rows, write_pictures, write_shard
from PIL import Image

import leanformer as lf
from leanformer.data.packs import write_pack

COUNT = 12
EVERY = [
    "folder", "pattern", "paths", "list", "pictures", "shards", "wds", "bytes", "table of paths", "hugging face",
    "saved split", "file://", "memory://", "memory shards", "memory table",
]  # fmt: skip


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return randomise(tiny()).eval()


@pytest.fixture(scope="module")
def expected(model, tmp_path_factory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("expected")
    return list(lf.predict(model, [str(path) for path in write_pictures(folder, COUNT)], workers=0, device="cpu"))


def make(kind: str, root: Path) -> Any:
    """A source of this kind with the pictures 0 to COUNT."""
    paths = write_pictures(root / "photos", COUNT)
    if kind in ("folder", "pattern", "file://"):
        return {"folder": root / "photos", "pattern": f"{root}/photos/*.png", "file://": f"file://{root}/photos"}[kind]
    if kind == "paths":
        return paths
    if kind == "list":
        (root / "list.txt").write_text("# pictures\n" + "\n\n".join(map(str, paths)))
        return root / "list.txt"
    if kind == "pictures":
        return [picture(index) for index in range(COUNT)]
    if kind.startswith("memory"):
        return make_in_memory(kind, root)
    if kind in ("shards", "wds"):
        (root / "shards").mkdir()
        write_shard(root / "shards" / "a-0.tar", 0, 5), write_shard(root / "shards" / "a-1.tar", 5, COUNT - 5)
        return root / "shards" if kind == "shards" else f"wds/{root}/shards"
    return make_table(kind, root, paths)


def make_in_memory(kind: str, root: Path) -> str:
    files = fsspec.filesystem("memory")
    files.store.clear()
    if kind == "memory://":
        for index in range(COUNT):
            files.pipe(f"/photos/{index}.png", encoded(index))
        return "memory://photos"
    source = write_shard(root / "a.tar", 0, COUNT) if "shards" in kind else make("bytes", root)
    files.pipe(f"/{source.name}", source.read_bytes())
    return f"memory://{source.name}"


def make_table(kind: str, root: Path, paths: list[Path]) -> Any:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    if kind == "bytes":
        table = pa.table({"id": [f"n{i}" for i in range(COUNT)], "image": [encoded(i) for i in range(COUNT)]})
        parquet.write_table(table, root / "t.parquet", row_group_size=5)
        return root / "t.parquet"
    if kind == "table of paths":
        parquet.write_table(pa.table({"label": [1] * COUNT, "path": [path.name for path in paths]}),
                            root / "photos" / "t.parquet")  # fmt: skip
        return root / "photos" / "t.parquet"
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"img": datasets.Image()})
    rows = datasets.Dataset.from_dict({"img": [{"bytes": encoded(i), "path": None} for i in range(COUNT)]}, features)
    saved = rows if kind == "hugging face" else datasets.DatasetDict({"test": rows})
    saved.save_to_disk(str(root / "saved"))
    return root / "saved" if kind == "hugging face" else f"hfds/{root}/saved"


@pytest.mark.parametrize("kind", EVERY)
def test_every_kind_of_source_gives_the_same_rows(kind, model, expected, tmp_path):
    rows = list(lf.predict(model, make(kind, tmp_path), workers=0, device="cpu"))
    assert same_rows(rows, expected, paths=False)
    assert len({row["path"] for row in rows}) == COUNT


@pytest.mark.parametrize("kind", ["shards", "bytes", "hugging face"])
def test_containers_are_read_by_other_processes_too(kind, model, expected, tmp_path):
    rows = list(lf.predict(model, make(kind, tmp_path), workers=2, batch_size=5, device="cpu"))
    assert [row["class"] for row in rows] == [row["class"] for row in expected]


def test_packs_are_seen_as_evaluation_sees_them(model, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (10, 20, 20, 3), dtype=np.uint8)
    for index, part in enumerate((pixels[:6], pixels[6:])):
        files = []
        for image in part:
            Image.fromarray(image).save(tmp_path / "one.png")
            files.append((tmp_path / "one.png").read_bytes())
        write_pack(tmp_path / f"set_{index}.npz", files, [0] * len(files))
    (tmp_path / "one.png").unlink()
    arrays = list(lf.predict(model, torch.from_numpy(pixels).permute(0, 3, 1, 2), device="cpu"))
    for source in (f"pack:{tmp_path}/set_", tmp_path, f"{tmp_path}/*.npz"):
        rows = list(lf.predict(model, source, device="cpu", workers=0))
        assert same_rows(rows, arrays, paths=False)
    assert rows[6]["path"] == f"{tmp_path}/set_1.npz[0]"


def test_images_of_several_sizes_in_a_pack_are_answered_one_like_the_other(model, tmp_path):
    write_pack(tmp_path / "set.npz", [encoded(index) for index in range(COUNT)], [0] * COUNT)
    together = list(lf.predict(model, tmp_path / "set.npz", device="cpu", workers=0))
    for index in (0, 3):
        write_pack(tmp_path / "one.npz", [encoded(index)], [0])
        alone = next(iter(lf.predict(model, tmp_path / "one.npz", device="cpu", workers=0)))
        assert alone["class"] == together[index]["class"]
        assert alone["score"] == pytest.approx(together[index]["score"], rel=1e-5)


def test_folders_are_read_in_natural_order_with_all_below_them_and_nothing_twice(tmp_path):
    write_pictures(tmp_path / "b" / "c", 11)
    write_pictures(tmp_path / "a", 2)
    (tmp_path / "b" / "notes.md").write_text("no picture")
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    records = lf.prediction.open_records(tmp_path)
    names = [os.path.relpath(records.key(index), tmp_path) for index in range(len(records))]
    assert names == ["a/0.png", "a/1.png", *(f"b/c/{index}.png" for index in range(11))]


def test_pictures_are_turned_as_their_camera_says(model, tmp_path):
    upright = picture(4)
    exif = Image.Exif()
    exif[274] = 6  # the camera lay on its side
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    upright.save(tmp_path / "upright.png")
    first, second = lf.predict(model, tmp_path, workers=0, device="cpu")
    assert first["score"] == second["score"]


def test_a_line_of_pixels_is_a_row_with_its_reason(model, tmp_path):
    Image.new("RGB", (250_000, 1)).save(tmp_path / "line.png")
    assert "too narrow" in next(iter(lf.predict(model, tmp_path, workers=0, device="cpu")))["error"]


def _bad(root: Path) -> dict[str, tuple[Any, str]]:
    write_pictures(root / "mixed", 1), write_shard(root / "mixed" / "a.tar", 0, 1)
    (root / "empty").mkdir()
    (root / "text").mkdir(), (root / "text" / "a.md").write_text("")
    for name in ("no.tar", "no.npz", "no.parquet", "no.txt"):
        (root / name).write_bytes(b"\xff\xfenothing")
    (root / "blank.txt").write_text("\n# none\n")
    return {
        "missing": (root / "none", "does not exist"),
        "no match": (f"{root}/*.gif", "no file is at"),
        "empty": (root / "empty", "no file is at"),
        "text": (root / "text", "holds no pictures: there are files with .md"),
        "mixed": (root / "mixed", "holds 1 pictures and 1 shards"),
        "tar": (root / "no.tar", "is not a whole tar file"),
        "npz": (root / "no.npz", "is not a pack"),
        "parquet": (root / "no.parquet", "is not a Parquet file"),
        "list": (root / "no.txt", "is not a text file with one path a line"),
        "blank": (root / "blank.txt", "holds no pictures"),
        "hfds": (f"hfds/{root}/empty", "is not a data set that `datasets` saved"),
        "protocol": ("nowhere://a/b.jpg", "cannot be reached"),
        "pack": (f"pack:{root}/none", "no pack is at"),
        "nothing": ("", "the source has no name"),
        "number": (7, "cannot be taken from a int"),
        "list of numbers": ([1, 2], "holds paths or open pictures alone"),
        "floats": (torch.zeros(2, 3, 8, 8), "images must be uint8"),
        "no list": ([], "holds no pictures"),
    }


def test_sources_that_hold_no_pictures_are_refused_in_one_line(model, tmp_path):
    for name, (source, says) in _bad(tmp_path).items():
        with pytest.raises(ValueError, match=says.replace("(", r"\(")) as refusal:
            lf.predict(model, source, device="cpu")
        assert "\n" not in str(refusal.value), name


def test_a_split_is_a_folder_within_the_folder_or_refused(model, tmp_path):
    for split, count in (("train", 3), ("val", 2)):
        write_pictures(tmp_path / "photos" / split / "a", count)
    assert len(lf.predict(model, tmp_path / "photos", device="cpu")) == 5
    assert len(lf.predict(model, tmp_path / "photos", split="val", device="cpu")) == 2
    write_pack(tmp_path / "val.npz", [encoded(0)], [0])
    write_shard(tmp_path / "a.tar", 0, 1)
    pixels = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    for source in (tmp_path / "photos" / "val", f"pack:{tmp_path}/val.npz", tmp_path / "a.tar", pixels):
        with pytest.raises(ValueError, match="leave split out"):
            lf.predict(model, source, split="val", device="cpu")


def test_a_column_is_refused_where_there_is_no_table(model, tmp_path):
    write_pack(tmp_path / "set.npz", [encoded(0)], [0])
    write_shard(tmp_path / "a.tar", 0, 1)
    (tmp_path / "list.txt").write_text("a.png")
    for source in (tmp_path / "set.npz", tmp_path / "a.tar", tmp_path / "list.txt", [picture(0)]):
        with pytest.raises(ValueError, match="so it has no column 'image'; leave column out"):
            lf.predict(model, source, column="image", device="cpu")


def test_a_data_set_of_one_split_has_no_other(model, tmp_path):
    saved = make("hugging face", tmp_path)
    with pytest.raises(ValueError, match="has no split 'val'; it holds one alone"):
        lf.predict(model, saved, split="val", device="cpu")


def test_tables_without_a_column_of_pictures_name_those_they_have(model, tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"size": [1], "photo": [encoded(0)]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"has the columns size, photo: say which one"):
        lf.predict(model, tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"no column 'size' of bytes or paths"):
        lf.predict(model, tmp_path / "t.parquet", column="size")
    assert len(list(lf.predict(model, tmp_path / "t.parquet", column="photo", workers=0, device="cpu"))) == 1


def test_a_container_that_ends_early_gives_rows_with_reasons(model, tmp_path):
    path = write_shard(tmp_path / "a.tar", 0, 4)
    answers = lf.predict(model, path, workers=0, device="cpu")
    shutil.copy(path, tmp_path / "whole.tar")
    os.truncate(path, 3 * 512 + 2048)
    errors = [row["error"] for row in answers]
    assert len(errors) == 4
    assert errors[-1]
