"""Packs: what is written is read back, and damaged files are refused by name."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from leanformer.data.packs import check_labels, read_pack, write_pack
from leanformer.data.sources import open_data


def png(value: int, size: tuple[int, int] = (6, 4)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (value, 0, 255)).save(file, "PNG")
    return file.getvalue()


def test_a_pack_gives_back_images_labels_and_classes(tmp_path):
    pack = read_pack(write_pack(tmp_path / "set.npz", [png(10), png(20), png(30)], [2, 0, 1], ["a", "b", "c"]))
    assert len(pack) == 3
    assert pack.labels.tolist() == [2, 0, 1]
    assert pack.classes == ("a", "b", "c")
    images = pack.decode([2, 0])
    assert images.shape == (2, 3, 4, 6)
    assert images.dtype == torch.uint8
    assert images[:, 0, 0, 0].tolist() == [30, 10]


def test_images_of_several_sizes_make_no_tensor(tmp_path):
    pack = read_pack(write_pack(tmp_path / "set.npz", [png(1), png(2, (8, 8))], [0, 0]))
    assert pack.classes is None
    assert pack.image(1).size == (8, 8)
    with pytest.raises(ValueError, match="2 different sizes"):
        pack.decode()


def test_what_is_no_pack_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"gone\.npz does not exist"):
        read_pack(tmp_path / "gone.npz")
    (tmp_path / "text.npz").write_text("no zip")
    with pytest.raises(ValueError, match=r"text\.npz is not a pack"):
        read_pack(tmp_path / "text.npz")
    np.savez(tmp_path / "half.npz", jpeg=np.zeros(1, np.uint8), labels=np.zeros(1))
    with pytest.raises(ValueError, match="lacks offsets"):
        read_pack(tmp_path / "half.npz")
    np.savez(tmp_path / "short.npz", jpeg=np.zeros(1, np.uint8), labels=np.zeros(3), offsets=np.zeros(2, int))
    with pytest.raises(ValueError, match="3 labels, 2 offsets"):
        read_pack(tmp_path / "short.npz")


def test_real_packs_are_read(shared):
    pack = read_pack(shared / "data" / "tiny_imagenet_val.npz")
    assert len(pack) == 10_000
    assert pack.classes is not None
    assert len(pack.classes) == 200
    assert pack.decode(range(3)).shape == (3, 3, 64, 64)


GOOD = {"jpeg": np.frombuffer(png(1) + png(2), np.uint8), "offsets": np.array([0, len(png(1)), len(png(1) + png(2))])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": GOOD["offsets"].astype(float)}, "offsets are float64"),
        ({"offsets": GOOD["offsets"][None]}, "offsets are int64 of shape"),
        ({"offsets": GOOD["offsets"][::-1]}, "offsets do not rise"),
        ({"offsets": GOOD["offsets"] + 1}, "offsets do not rise"),
        ({"labels": np.array([0, -1])}, "image 1 has the label -1; labels count from 0"),
        ({"labels": np.array([0, np.nan])}, "labels are float64"),
        ({"labels": np.array([[0], [1]])}, "labels are int64 of shape"),
        ({"labels": np.array(["a", "b"])}, "labels are <U1"),
        ({"labels": np.array([0, 2])}, "image 1 has the label 2, but there are only 2 classes"),
        ({"labels": np.array([0])}, "1 labels, 3 offsets"),
        ({"jpeg": np.zeros(9)}, "jpeg is float64"),
        ({"classes": np.array([1, 2])}, "classes are int64"),
        ({"labels": np.array([object()] * 2, object)}, "Object arrays cannot be loaded"),
    ],
)
def test_arrays_that_are_no_pack_are_refused_in_one_line(tmp_path, change, message):
    np.savez(tmp_path / "bad.npz", **{**GOOD, "labels": np.array([0, 1]), "classes": np.array(["a", "b"]), **change})
    with pytest.raises(ValueError, match=message) as error:
        read_pack(tmp_path / "bad.npz")
    assert "bad.npz" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_pack_is_refused(tmp_path, share):
    path = write_pack(tmp_path / "set.npz", [png(1), png(2)], [0, 1])
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ValueError, match=r"set\.npz is not a pack of images: \S"):
        read_pack(path)


def test_an_array_alone_and_a_folder_are_no_packs(tmp_path):
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    with pytest.raises(ValueError, match=r"array\.npz is not a pack"):
        read_pack(tmp_path / "array.npz")
    with pytest.raises(ValueError, match="is a folder"):
        read_pack(tmp_path)


def test_a_pack_without_labels_is_unlabelled(tmp_path):
    pack = read_pack(write_pack(tmp_path / "set.npz", [png(1), png(2)], None))
    assert pack.labels.tolist() == [-1, -1]
    assert not pack.labelled
    assert read_pack(write_pack(tmp_path / "set.npz", [png(1)], [40_000])).labels.tolist() == [40_000]


def test_labels_beyond_a_models_head_are_refused():
    check_labels(torch.tensor([0, 4]), 5, "x")
    with pytest.raises(ValueError, match="x: image 1 has the label 5, but there are only 5 classes, 0 to 4"):
        check_labels(torch.tensor([0, 5]), 5, "x")


def test_a_webdataset_whose_description_is_an_empty_list_is_one_line(tmp_path):
    pytest.importorskip("webdataset", reason="the extra 'data' is not installed")
    (tmp_path / "_info.json").write_text("[]")
    with pytest.raises(ValueError, match="cannot be opened by timm") as error:
        open_data(f"wds/{tmp_path}")
    assert "\n" not in str(error.value)
