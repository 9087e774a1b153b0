"""Bytes from anywhere become what the model sees, or a refusal that says why.

    bytes → format by content → size from the header → pixels → upright → resize, centre crop, normalise

Sizes are checked before any pixel is decoded. S is the input size, scale = max(S_h / h, S_w / w) / crop_pct.
"""

import contextlib
import dataclasses
import io
from collections.abc import Iterator
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from ..data.view import EvaluationView

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
"""What browsers show and cameras write; every further decoder would be one more thing to attack."""


JPEGS = ("JPEG", "MPO")
"""What Pillow calls a JPEG: MPO where its header says that more pictures follow."""
SCANS = 10
"""Scans of a progressive JPEG that cost no more than one of a plain one."""


class Refused(ValueError):
    """A request that cannot be answered, with the HTTP status that says whose fault it is."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Seen:
    """An image as the model sees it, and which part of the upright picture that is."""

    pixels: Tensor  # (C, H, W)
    box: tuple[float, float, float, float]
    """Left, top, width and height, as shares of the picture's width and height."""


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    """Whatever a decoder trips over is a refusal: they fail in every way there is on bytes made to break them."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        raise Refused(422, f"the image is damaged: {type(error).__name__}") from error


class Decoder:
    """Turns the bytes of one image into the input of a model with this `input_of`.

    >>> file = io.BytesIO()
    >>> Image.new("RGB", (60, 40)).save(file, "PNG")
    >>> decode = Decoder({"input_size": (3, 32, 32), "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 1.0})
    >>> seen = decode(file.getvalue())
    >>> seen.pixels.shape, [round(side, 2) for side in seen.box]
    (torch.Size([3, 32, 32]), [0.17, 0.0, 0.67, 1.0])
    """

    def __init__(self, config: dict[str, Any], max_pixels: int = 50_000_000) -> None:
        self.view = EvaluationView(config)
        self.channels, self.size = self.view.channels, self.view.size
        if self.channels not in (1, 3):
            raise ValueError(f"a model with {self.channels} channels does not take pictures; 1 or 3 would do")
        self.crop = float(config.get("crop_pct") or 1.0)
        self.max_pixels = max_pixels

    def __call__(self, data: bytes) -> Seen:
        with _damage():
            upright = ImageOps.exif_transpose(self._open(data))
            image = upright.convert("RGB" if self.channels == 3 else "L")
            return Seen(self.view(image), self._box(*image.size))

    def cost(self, data: bytes) -> int:
        """Pixels that decoding this image takes, by its header alone; refuses what is too large or no image.

        A progressive JPEG is decoded once for each of its scans, of which a few bytes each suffice: every ten, which
        is what cameras and browsers write, count as the picture once more.
        """
        with _damage():
            image = self._open(data)
            scans = data.count(b"\xff\xda") if image.format in JPEGS else 1
            return image.width * image.height * max(1, -(-scans // SCANS))

    def _open(self, data: bytes) -> Image.Image:
        """The image with its header read and its size checked; no pixel is decoded yet."""
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        except UnidentifiedImageError as error:
            raise Refused(415, f"not an image of a known format; known: {', '.join(FORMATS)}") from error
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise Refused(413, f"the image has more than {self.max_pixels} pixels") from error
        width, height = image.size
        if width * height > self.max_pixels:
            raise Refused(413, f"the image has {width} x {height} pixels; up to {self.max_pixels} are taken")
        self._refuse_narrow(width, height)
        return image

    def _refuse_narrow(self, width: int, height: int) -> None:
        # a line one pixel high would grow without bound when its short side is brought to the model's size
        if width * height * self._scale(width, height) ** 2 > self.max_pixels:
            raise Refused(422, f"an image of {width} x {height} pixels is too narrow")

    def _scale(self, width: int, height: int) -> float:
        return max(self.size[0] / height, self.size[1] / width) / self.crop

    def _box(self, width: int, height: int) -> tuple[float, float, float, float]:
        scale = self._scale(width, height)
        tall, wide = min(1.0, self.size[0] / scale / height), min(1.0, self.size[1] / scale / width)
        return (1 - wide) / 2, (1 - tall) / 2, wide, tall
