"""Run predict in child processes and kill each at a random moment; the last one may finish.

    python killed.py MODEL SOURCE OUTPUT WORKERS KILLS

A process of its own, since children are forked from it: it has no threads that a fork would leave behind.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

import leanformer as lf
from leanformer.prediction import parts

parts.MOST_ROWS = 64


def run(model: torch.nn.Module, source: str, output: Path, workers: int) -> int:
    """The process id of a child that writes `output`."""
    child = os.fork()
    if child:
        return child
    try:
        lf.predict(model, source, embed="float32", device="cpu", workers=workers).save(output)
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)


def written(output: Path) -> int:
    """How many parts there are."""
    return len(list(Path(f"{output}.parts").glob("part-*")))


def kill_at_random(child: int, output: Path, draw: random.Random) -> bool:
    """Kill a child behind its next parts, or before them; False where it was done first."""
    enough, begun = written(output) + draw.randint(0, 2), time.monotonic()
    while written(output) < enough and time.monotonic() - begun < 60:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.001)
    time.sleep(draw.uniform(0, 0.1))
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def main(model: str, source: str, output: str, workers: str, kills: str) -> int:
    torch.set_num_threads(1)
    loaded, draw, killed = lf.load(model), random.Random(0), 0
    for _ in range(int(kills)):
        killed += kill_at_random(run(loaded, source, Path(output), int(workers)), Path(output), draw)
        if Path(output).exists():
            break
    if not Path(output).exists():
        os.waitpid(run(loaded, source, Path(output), int(workers)), 0)
    print(f"killed {killed}")
    return 0 if Path(output).exists() else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
