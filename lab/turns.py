"""Compile side by side, measure one after another.

Compiling takes a core for many seconds and the device hardly ever; timing needs the device for itself. So each job runs
in a process of its own up to the point where only its timing is left, and waits there for its turn.
"""

import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from leanformer.measure.timing import share_kernels

Job = Callable[..., Any]
"""A picklable call that returns its result; given `ready`, it calls that once when all but the timing is done."""


def in_turn(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, Any]]:
    """Run jobs in so many processes at a time; yields each with its result, or None where it failed.

    One worker is this process: its jobs run one after the other, and what they raise is raised.

    >>> list(in_turn([], workers=2))
    []
    """
    if workers <= 1:
        yield from ((job, job()) for job in jobs)
        return
    for first in range(0, len(jobs), workers):
        yield from _wave(jobs[first : first + workers])


def _wave(jobs: Sequence[Job]) -> Iterator[tuple[Job, Any]]:
    """All jobs prepare at the same time; when none is preparing any more, they finish one by one."""
    context = multiprocessing.get_context("spawn")
    lines, processes = [], []
    for job in jobs:
        mine, theirs = context.Pipe()
        process = context.Process(target=_child, args=(job, theirs))
        process.start()
        theirs.close()  # so that a child that dies ends the line
        lines.append(mine)
        processes.append(process)
    prepared = [_hear(line)[0] == "ready" for line in lines]
    for job, line, process, fine in zip(jobs, lines, processes, prepared, strict=True):
        if fine:
            line.send("go")
        yield job, _hear(line)[1] if fine else None
        process.join()


def _child(job: Job, line: Connection) -> None:
    def ready() -> None:
        line.send(("ready", None))
        line.recv()

    try:
        share_kernels()
        line.send(("done", job(ready)))
    except Exception:
        traceback.print_exc()
        line.send(("failed", None))


def _hear(line: Connection) -> tuple[str, Any]:
    try:
        return line.recv()
    except EOFError:
        return "failed", None
