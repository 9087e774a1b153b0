"""Packs: what is written is read back, and damaged files are refused by name."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from leanformer.data.packs import read_pack, write_pack


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
