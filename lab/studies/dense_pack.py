"""python -m lab.studies.dense_pack: Oxford Pets and CamVid small enough to travel, in the folders that the study reads.

    train   512 → 384 pixels        test   512 → 256, each the mean of 2 x 2: what a detector of 256 pixels sees of it
    trimaps and label maps          as they are, pixel by pixel

`dense_album.in_memory` brings pictures back to the size of their maps: twice as large by doubling pixels, so that
the detector sees the same 256 again and boxes and masks are judged at full size; other sizes by interpolation.
"""

import io
import itertools
import shutil
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from PIL import Image

TRAIN, TEST = (384, 75), (256, 85)
"""Side and quality of the pictures of Pets."""
SCENES = 90
"""Quality of CamVid's pictures."""
MOST = 44_000_000
"""Bytes of a part."""
FORMAT = "WEBP"
"""A fifth smaller than JPEG as good; Pillow tells formats by content, so that names stay."""


def smaller(job: tuple[Path, int | None, int]) -> bytes:
    """A picture scaled to a side and written again.

    Args:
        job: file, side (None: as it is) and quality.
    """
    path, side, quality = job
    with Image.open(path) as file:
        picture = file.convert("RGB")
    if side is not None and max(picture.size) > side:
        scale = side / max(picture.size)
        size = (round(picture.width * scale), round(picture.height * scale))
        halved = all(2 * new == old for new, old in zip(size, picture.size))
        picture = picture.resize(size, Image.Resampling.BOX if halved else Image.Resampling.LANCZOS)
    return _written(picture, FORMAT, quality=quality, method=4)


def plainer(path: Path) -> bytes:
    """A map of class numbers in as few bits a pixel as it needs.

    Args:
        path: the file.
    """
    with Image.open(path) as file:
        numbers = file.convert("L")
    highest: Any = numbers.getextrema()[1]
    bits = next(bits for bits in (1, 2, 4, 8) if highest < 2**bits)
    if bits == 8:
        return _written(numbers, "PNG", optimize=True)
    indexed = numbers.copy()
    indexed.putpalette([level for number in range(256) for level in (number,) * 3])  # numbers stay what they are
    return _written(indexed, "PNG", optimize=True, bits=bits)


def _written(picture: Image.Image, form: str, **how: int | bool) -> bytes:
    made = io.BytesIO()
    picture.save(made, form, **how)  # type: ignore[arg-type]
    return made.getvalue()


def pets(root: Path) -> Iterator[tuple[str, tuple[Path, int | None, int] | Path]]:
    """Names in the packs, and what is to be written there.

    Args:
        root: the folder of Pets, with images and annotations in it.
    """
    for split, (side, quality) in (("trainval", TRAIN), ("test", TEST)):
        for line in (root / "annotations" / f"{split}.txt").read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                name = line.split()[0]
                yield f"pets/images/{name}.jpg", (root / "images" / f"{name}.jpg", side, quality)
                yield f"pets/annotations/trimaps/{name}.png", root / "annotations" / "trimaps" / f"{name}.png"


def camvid(root: Path) -> Iterator[tuple[str, tuple[Path, int | None, int] | Path]]:
    """Names in the packs, and what is to be written there.

    Args:
        root: the folder of CamVid.
    """
    for split in ("train", "test"):
        for path in sorted((root / split).glob("*.png")):
            yield f"camvid/{split}/{path.name}", (path, None, SCENES)
            yield f"camvid/{split}annot/{path.name}", root / f"{split}annot" / path.name


def main(pets_root: Path, camvid_root: Path, output: Path, workers: int = 2) -> None:
    """Write dense_0.tar, dense_1.tar, … into a folder: CamVid first, then what Pets are learnt from, then the tests.

    Args:
        pets_root: the folder of Pets.
        camvid_root: the folder of CamVid.
        output: where to.
        workers: processes.
    """
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    wanted = [*camvid(camvid_root), *pets(pets_root)]
    lists = [(f"pets/annotations/{each}.txt", (pets_root / "annotations" / f"{each}.txt").read_bytes())
             for each in ("trainval", "test")]  # fmt: skip
    with ProcessPoolExecutor(workers) as pool:
        made = pool.map(_made, [job for _, job in wanted], chunksize=16)
        write([*lists, *zip([name for name, _ in wanted], made)], output)


def _made(job: tuple[Path, int | None, int] | Path) -> bytes:
    return plainer(job) if isinstance(job, Path) else smaller(job)


def write(files: list[tuple[str, bytes]], output: Path) -> None:
    """Files into as few parts as may be, of about the same size.

    Args:
        files: name and content.
        output: the folder of the parts.
    """
    sizes = [-(-len(content) // 512) * 512 + 512 for _, content in files]  # of a tar
    parts = -(-sum(sizes) // MOST)
    places = [before * parts // sum(sizes) for before in itertools.accumulate(sizes, initial=0)]
    for part in range(parts):
        with tarfile.open(output / f"dense_{part}.tar", "w") as tar:
            for (name, content), place in zip(files, places):
                if place == part:
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
