"""Users who send one picture after the other to a service: `locust -f lab/locust_images.py --host URL --headless`."""

import io
import random

from locust import FastHttpUser, constant, task
from PIL import Image

SIZES = ((224, 224), (320, 240), (500, 375), (375, 500))
"""Widths and heights of the pictures that are sent."""


def pictures() -> list[bytes]:
    """JPEG files of smooth random colours, the same in every run."""
    files, draws = [], random.Random(0)
    for size in SIZES:
        few = Image.frombytes("RGB", (16, 16), draws.randbytes(16 * 16 * 3))
        file = io.BytesIO()
        few.resize(size, Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


class Sender(FastHttpUser):
    """One client with a connection of its own; a request fails if its answer is not 200 or names no class."""

    wait_time = constant(0)
    files = pictures()

    @task
    def classify(self) -> None:
        """Send one picture."""
        sent = random.choice(self.files)
        with self.client.post(
            "/classify", data=sent, headers={"Content-Type": "image/jpeg"}, catch_response=True
        ) as told:
            if told.status_code == 200 and not told.json()["images"][0]["classes"]:
                told.failure("empty answer")
