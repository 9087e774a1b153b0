"""What a call takes does not depend on what the process did before it was timed."""

import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from leanformer.measure.timing import interleave

def call():
    return [torch.ones(1 << 18) for _ in range(12)]  # blocks of 1 MiB, all freed together: 3,072 pages

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

interleave({"one": call}, torch.device("cpu"), repeats=1, seconds=0.01)
before = faults()
for _ in range(20):
    call()
print((faults() - before) / 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep freed memory in other ways")
def test_in_a_fresh_process_freed_memory_is_kept_from_the_first_timed_call_on():
    """A process of its own: in this one the allocator may have settled long ago."""
    found = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert float(found.stdout) < 400
