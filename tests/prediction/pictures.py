"""Small pictures in every kind of file that predict reads: `from pictures import write_pictures`."""

import io
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from leanformer.prediction.records import Paths


def picture(index: int) -> Image.Image:
    """Noise of its own for each number, 20 to 24 pixels high."""
    pixels = np.random.default_rng(index).integers(0, 256, (20 + index % 5, 24, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def encoded(index: int) -> bytes:
    """The same as the bytes of a PNG file."""
    file = io.BytesIO()
    picture(index).save(file, "PNG")
    return file.getvalue()


def write_pictures(folder: Path, count: int, bad: tuple[int, ...] = ()) -> list[Path]:
    """Files 0.png, 1.png, …; those that are `bad` hold no picture."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{index}.png" for index in range(count)]
    for index, path in enumerate(paths):
        path.write_bytes(b"no picture" if index in bad else encoded(index))
    return paths


class SlowPaths(Paths):
    """Files that take a while to read, so that something can happen in the meantime."""

    def read(self, index: int) -> bytes:
        time.sleep(0.03)
        return super().read(index)


def write_shard(path: Path, first: int, count: int) -> Path:
    """A WebDataset shard: each sample a picture with its label beside it."""
    with tarfile.open(path, "w") as shard:
        for index in range(first, first + count):
            for name, data in ((f"{index:04}.png", encoded(index)), (f"{index:04}.cls", b"3")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                shard.addfile(member, io.BytesIO(data))
    return path


def same_rows(first: list[dict[str, Any]], second: list[dict[str, Any]], paths: bool = True) -> bool:
    """Whether rows are equal to the last bit, their names included or not."""
    if len(first) != len(second):
        return False
    names = [name for name in first[0] if paths or name != "path"]
    return all(
        np.array_equal(np.asarray(one[name]), np.asarray(other[name]))
        for one, other in zip(first, second)
        for name in names
    )
