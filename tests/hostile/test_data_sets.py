"""Damaged packs and folders of odd files: read, counted as damage, or refused in one line; nothing hangs."""

import io
import os
import random
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import damaged_bytes
from PIL import Image
from time_limit import at_most

from leanformer.data.packs import write_pack
from leanformer.data.sources import UNREADABLE, open_data

SECONDS = 10
MODES = ["RGB", "L", "1", "P", "RGBA", "LA", "CMYK", "I", "I;16", "F", "YCbCr"]
KINDS = {"PNG": "png", "JPEG": "jpg", "GIF": "gif", "BMP": "bmp", "WEBP": "webp", "TIFF": "tiff"}


def encoded(draws: random.Random) -> tuple[bytes, str]:
    """A small picture of some mode, size and format, perhaps animated; and the ending of its name."""
    mode = draws.choice(MODES)
    size = draws.choice([(1, 1), (1, 40), (12, 8), (33, 33)])
    image = Image.new("RGB", size, (draws.randrange(256), 9, 200)).convert("L" if mode == "I;16" else mode)
    file, kind = io.BytesIO(), draws.choice(sorted(KINDS))
    more: dict[str, Any] = {}
    if kind in ("GIF", "WEBP", "PNG") and draws.random() < 0.3:
        more = {"save_all": True, "append_images": [image.rotate(90)] * 2}
    try:
        image.save(file, kind, **more)
    except (OSError, ValueError, KeyError):  # not every format has every mode
        file = io.BytesIO()
        image.convert("RGB").save(file, kind)
    return file.getvalue(), KINDS[kind]


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims a size."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"")),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


def odd_entry(folder: Path, name: str, draws: random.Random) -> None:
    """Something in a class's folder that is named like a picture."""
    kind = draws.randrange(8)
    path = folder / f"{name}.jpg"
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to(draws.choice(["nowhere", name + ".jpg", "/dev/zero", ".."]))
    elif kind == 3:
        path.write_bytes(draws.choice([b"", b"\xff\xd8\xff\xe0", b"text", bytes(100), draws.randbytes(200)]))
    elif kind == 4:
        path.write_bytes(bomb(*draws.choice([(60_000, 60_000), (2**31 - 1, 1), (0, 0), (20_000, 20_000)])))
    else:
        data, ending = encoded(draws)
        (folder / f"{name}.{ending}").write_bytes(data if kind == 5 else damaged_bytes(data, draws))


def refusal(error: BaseException) -> str:
    told = str(error)
    plain = isinstance(error, ValueError) and told and len(told) < 2000 and "Traceback" not in told
    # the first unreadable files are listed below each other
    plain = plain and ("\n" not in told or "cannot be read" in told)
    return "refused" if plain else f"bad: {type(error).__name__} {told[:200]!r}"


def read_folder(root: Path) -> str:
    """Open a folder as training and evaluation do, and look at every picture."""
    try:
        with at_most(SECONDS):
            data = open_data(root, "train")
            unreadable = 0
            for index in range(len(data)):
                try:
                    picture, label = data.picture(index)  # type: ignore[union-attr]
                except UNREADABLE:
                    unreadable += 1
                    assert data.filename(index)  # type: ignore[union-attr]
                    continue
                if picture.mode != "RGB" or not 0 <= label < data.num_classes:  # type: ignore[operator]
                    return f"bad: {picture.mode} with label {label}"
    except BaseException as error:
        return refusal(error)
    return "read with damage" if unreadable else "read"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cases", [60], indirect=True)
def test_folders(cases, seed, tally: Counter[str], tmp_path):
    wrong = []
    for number in range(cases):
        draws = random.Random(f"folders/{seed}/{number}")
        root = tmp_path / str(number)
        for label in range(draws.choice([0, 1, 2])):
            (root / "train" / f"class{label}").mkdir(parents=True)
            for index in range(draws.choice([0, 1, 3])):
                odd_entry(root / "train" / f"class{label}", f"{index}", draws)
        found = read_folder(root)
        tally[found[:40]] += 1
        if found.startswith("bad"):
            wrong.append(f"{number}: {found}")
    assert not wrong, wrong


ARRAYS: list[Any] = [
    np.zeros(0), np.zeros((2, 2), int), np.array([0, -1]), np.array([0, np.nan]), np.array([0, 10**12]),
    np.array(["a", "b"]), np.array([True, False]), np.array(3), np.array([1j, 2]), np.zeros(3, np.uint8),
    np.array([2**63 - 1] * 3), np.array([0, 5, 3]), np.array([b"x"]),
]  # fmt: skip


def odd_pack(path: Path, draws: random.Random) -> None:
    pictures = [encoded(random.Random(i))[0] if draws.random() < 0.2 else bomb(2, 2) for i in range(2)]
    square = io.BytesIO()
    Image.new("RGB", (8, 8)).save(square, "PNG")
    pictures = draws.choice([pictures, [square.getvalue()] * 2, [b"", b""], [square.getvalue(), bomb(60_000, 60_000)]])
    write_pack(path, pictures, draws.choice([[0, 1], [0, 1], None]), draws.choice([["a", "b"], None]))
    if draws.random() < 0.5:
        path.write_bytes(damaged_bytes(path.read_bytes(), draws))
    else:
        with np.load(path) as file:
            arrays = dict(file)
        name = draws.choice(["jpeg", "offsets", "labels", "classes"])
        arrays[name] = draws.choice(ARRAYS)
        if draws.random() < 0.2:
            del arrays[name]
        np.savez(path, **arrays)


def read_packed(path: Path) -> str:
    try:
        with at_most(SECONDS):
            data = open_data(f"pack:{path}", "train")
    except BaseException as error:
        return refusal(error)
    return "read" if len(data) else "bad: empty"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cases", [80], indirect=True)
def test_packs(cases, seed, tally: Counter[str], tmp_path):
    wrong, path = [], tmp_path / "train.npz"
    for number in range(cases):
        draws = random.Random(f"packs/{seed}/{number}")
        odd_pack(path, draws)
        found = read_packed(path)
        tally[found[:40]] += 1
        if found.startswith("bad"):
            wrong.append(f"{number}: {found}")
    assert not wrong, wrong
