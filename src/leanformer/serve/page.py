"""The page for people at /: one HTML file with the sample pictures in it, so that it asks nobody but the service."""

import base64
import json
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
SAMPLES = {
    "flower.jpg": "image/jpeg",
    "temple.jpg": "image/jpeg",
    "officer.jpg": "image/jpeg",
    "digit.png": "image/png",
}
"""Pictures in `samples` in the order in which the page offers them; samples/README.md says whose they are."""
PLACE = "[]<!--samples-->"
"""Where the page wants them."""


@cache
def page_html() -> str:
    """The whole page.

    >>> page_html().count('"url": "data:')
    4
    """
    samples = [
        {"name": name, "url": f"data:{kind};base64,{base64.b64encode((HERE / 'samples' / name).read_bytes()).decode()}"}
        for name, kind in SAMPLES.items()
    ]
    page = (HERE / "page.html").read_text(encoding="utf-8")
    assert PLACE in page
    return page.replace(PLACE, json.dumps(samples))
