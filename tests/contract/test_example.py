"""The file that shows how to add a method: short, run as it stands, and serving every family.

The contract itself runs over it in test_contract.
"""

import subprocess
import sys
from pathlib import Path

import add_a_method
import pytest
from contract_example import Gain
from contract_models import refusal
from families import BACKBONES, backbone

EXAMPLE = Path(add_a_method.__file__)


def test_the_example_is_short():
    assert EXAMPLE.parent.name == "examples"
    assert len(EXAMPLE.read_text().splitlines()) < 120


def test_the_example_runs_as_a_program_and_fuses_exactly():
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=120, check=True)
    assert float(done.stdout.split()[-1]) < 1e-5


@pytest.mark.parametrize("family", BACKBONES)
def test_the_example_serves_every_family(family):
    assert refusal(Gain(), backbone(family)) is None
