"""Which method serves which backbone: served.json pins it, so that none can refuse a family unnoticed.

`PYTHONPATH=src:tests python tests/contract/served.py` writes the file anew; the change then stands in the commit.
"""

import json
from pathlib import Path

from contract_models import refusal
from families import BACKBONES, backbone

from leanformer.core import METHODS

PINNED = Path(__file__).with_name("served.json")
SERVED = "served"
WORDS = 8
"""Words of a reason that are pinned: enough to tell reasons apart, and the wording behind them stays free."""


def served() -> dict[str, dict[str, str]]:
    """Method → family → "served", or the first words of why not, for methods with their default options."""
    return {method: {family: _answer(method, family) for family in BACKBONES} for method in sorted(METHODS)}


def pinned() -> dict[str, dict[str, str]]:
    """The same as it stands in the file."""
    return json.loads(PINNED.read_text())


def _answer(method: str, family: str) -> str:
    reason = refusal(METHODS[method](), backbone(family))
    return SERVED if reason is None else " ".join(reason.split()[:WORDS])


if __name__ == "__main__":
    PINNED.write_text(json.dumps(served(), indent=1) + "\n")
