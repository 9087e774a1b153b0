"""Load on `leanformer serve`: users who each send one picture after the other, with locust (pip install locust).

PICTURES=photos/ locust -f examples/serve/locustfile.py --host http://127.0.0.1:8000 --headless -u 64 -r 64 -t 60s

A request fails if its answer is not 200 or names no class.
"""

import os
import random
from pathlib import Path

from locust import FastHttpUser, constant, task

FILES = [path.read_bytes() for path in sorted(Path(os.environ.get("PICTURES", "photos")).iterdir()) if path.is_file()]


class Sender(FastHttpUser):
    """One client, on a connection that it keeps."""

    wait_time = constant(0)

    @task
    def classify(self) -> None:
        """Send one picture."""
        with self.client.post("/classify", data=random.choice(FILES), catch_response=True) as told:
            if told.status_code == 200 and not told.json()["images"][0]["classes"]:
                told.failure("empty answer")
