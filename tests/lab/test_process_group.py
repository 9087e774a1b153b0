"""Processes do not outlive the one that started them, whether it ends, is interrupted, terminated or killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKER = """
import subprocess, sys, time
from lab.process_group import end_with_starter
end_with_starter()
child = subprocess.Popen(["sleep", "300"])
print(child.pid, flush=True)
time.sleep(300)
"""
STARTER = """
import os, signal, sys
from pathlib import Path
from lab.process_group import process_group
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background are started with it ignored
logs = [Path(path) for path in sys.argv[2:]]
with process_group([[sys.executable, "-c", sys.argv[1]]] * len(logs), logs, [dict(os.environ)] * len(logs)) as started:
    print(*(process.pid for process in started), flush=True)
    for process in started:
        process.wait()
"""


def alive(pid):
    """Whether a process runs; one that has ended and waits to be asked for its code does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def start(worker, logs):
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, worker, *map(str, logs)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert starter.stdout is not None
    return starter, [int(pid) for pid in starter.stdout.readline().split()]


def test_a_process_that_watches_its_starter_can_end_before_it(tmp_path):
    done = WORKER.partition("child =")[0] + "print('done')"
    starter, _ = start(done, [tmp_path / "log"])
    assert starter.wait(60) == 0
    assert (tmp_path / "log").read_text().strip() == "done"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see which processes run")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_however_the_starter_ends(tmp_path, number):
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    starter, workers = start(WORKER, logs)
    assert until(lambda: all(log.exists() and log.read_text().strip() for log in logs))
    children = [int(log.read_text()) for log in logs]
    assert all(map(alive, [*workers, *children]))
    starter.send_signal(number)
    starter.wait(60)
    assert until(lambda: not any(map(alive, workers)))
    assert until(lambda: not any(map(alive, children)))
