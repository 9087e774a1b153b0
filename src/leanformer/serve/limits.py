"""How much of everything a service takes before it refuses."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request and all of them together may cost.

    >>> Limits(images=4).images
    4
    """

    body: int = 16 * 2**20
    """Bytes of one request."""
    pixels: int = 50_000_000
    """Pixels of one image, as it is sent and as it is after resizing."""
    request_pixels: int = 200_000_000
    """Pixels of all images of one request together: sixteen photographs of twelve megapixels."""
    decoding: int = 64_000_000
    """Pixels of large images that are decoded at a time, over all requests; a pixel takes four bytes and more."""
    images: int = 16
    """Images in one request."""
    seconds: float = 30.0
    """From the first byte of a request to its answer."""
    queue: int = 256
    """Images that wait for the model, and requests that are being worked on."""
    waiting: int = 2**30
    """Bytes of decoded images that wait for a model; a request that is alone is taken whatever it has."""
    connections: int = 512
    """Connections that are open; beyond it one without a request gives way."""
    headers: float = 10.0
    """Seconds that a connection may take until the headers of its next request are whole."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not value > 0 or not math.isfinite(value):
                raise ValueError(f"the limit {field.name}={value} limits nothing or refuses all; give a number above 0")
        if self.queue < self.images:
            raise ValueError(f"a queue of {self.queue} cannot hold one request of {self.images} images; give more")
