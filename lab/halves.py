"""python -m lab halves: the two halves of the labelled photographs as packs, so that any command can judge by one."""

import io
from pathlib import Path

from torch import Tensor
from torchvision.transforms.v2 import functional as pictures

from leanformer.data import write_pack
from leanformer.measure import console

from .photographs import photographs


def halves(judge: str, output: Path) -> None:
    """Write the photographs for choosing and those for judging as packs, pixel by pixel the same (PNG).

    Example: python -m lab halves --judge pack:imagenet5k --output halves
             leanformer eval model.safetensors --data pack:halves/judge

    Args:
        judge: The labelled photographs of `python -m lab imagenet`.
        output: A folder for the packs choose_val.npz and judge_val.npz.
    """
    output.mkdir(parents=True, exist_ok=True)
    for name, part in photographs(judge).items():
        files = (_png(image) for image in part.images)
        path = write_pack(output / f"{name}_val.npz", files, part.labels.tolist(), part.classes)
        console().print(f"{len(part)} photographs in {path}")


def _png(image: Tensor) -> bytes:
    with io.BytesIO() as file:
        pictures.to_pil_image(image).save(file, "PNG", compress_level=1)
        return file.getvalue()
