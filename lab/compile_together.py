"""Compile side by side, measure one after another.

Compiling takes a core for many seconds and the device hardly ever; timing needs the device for itself. So each job runs
in a process of its own up to the point where only its timing is left, and waits there until it is called.

    python -m lab suite gpu --workers 8 --go runs/quiet

Several commands, and trainings beside them, share a device like this: each compiles at once, and times when its own
file is there.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from leanformer.measure import console

Each = TypeVar("Each")
Job = Callable[..., Any]
"""A picklable call that returns its result; given `ready`, it calls that once when all but the timing is done."""
PAUSE = 0.1
"""Seconds between two looks for the file that lets timing begin."""
PATIENCE = 20.0
"""Seconds that a process with its result told may take to end before the next one is timed."""


def compile_together(jobs: Sequence[Job], workers: int, go: Path | None = None) -> Iterator[tuple[Job, Any]]:
    """Run jobs, so many compiling at a time and one timing at a time; yields each with its result.

    Args:
        jobs: what to run. A job that fails in a process of its own has the result None.
        workers: processes at a time. One is this process: its jobs run one after the other, and what they raise is
            raised.
        go: a file; jobs in processes of their own are timed when it is there.

    >>> list(compile_together([], workers=2))
    []
    """
    if workers <= 1:
        yield from ((job, job()) for job in jobs)
        return
    for first in range(0, len(jobs), workers):
        yield from _in_processes(jobs[first : first + workers], go)


def _in_processes(jobs: Sequence[Job], go: Path | None) -> Iterator[tuple[Job, Any]]:
    """All jobs prepare at the same time; when none is preparing any more, they finish one by one."""
    context = multiprocessing.get_context("spawn")
    lines: list[Connection] = []
    processes = []
    try:
        for job in jobs:
            mine, theirs = context.Pipe()
            process = context.Process(target=_child, args=(job, theirs))
            process.start()
            theirs.close()  # so that a child that dies ends the line
            lines.append(mine)
            processes.append(process)
        heard = [_hear(line) for line in lines]
        if any(word == "ready" for word, _ in heard):
            wait_for(go)
        for job, line, process, (word, result) in zip(jobs, lines, processes, heard, strict=True):
            yield job, _finished(line) if word == "ready" else result  # which says why, where nothing was left to time
            process.join(PATIENCE)
    finally:  # also where this is interrupted, or its caller wants no more
        for process in processes:
            process.terminate()
            process.join()


def told(results: Iterable[tuple[Each, Any]], total: int, name: Callable[[Each], str]) -> Iterator[tuple[Each, Any]]:
    """The results as they come, and a printed line behind each once it was taken in, also where no terminal listens.

    Args:
        results: what `compile_together` yields.
        total: how many there will be.
        name: what to call a job.

    >>> list(told([(len, 3)], 1, lambda job: job.__name__))
    1 of 1 after 0 s: len
    [(<built-in function len>, 3)]
    """
    began = time.monotonic()
    for number, (job, result) in enumerate(results, 1):
        yield job, result
        line = f"{number} of {total} after {time.monotonic() - began:.0f} s: {name(job)}"
        console().print(line, highlight=False, markup=False)


def wait_for(go: Path | None) -> None:
    """Return when the device may be timed.

    Args:
        go: the file whose being there says so; None: at once.

    >>> wait_for(None)
    """
    if go is None or go.exists():
        return
    console().print(f"compiled; timing waits for {go}", highlight=False, markup=False)
    while not go.exists():
        time.sleep(PAUSE)


def _child(job: Job, line: Connection) -> None:
    def ready() -> None:
        line.send(("ready", None))
        line.recv()

    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        line.send(("done", job(ready)))
    except Exception:
        traceback.print_exc()
        line.send(("failed", None))


def _end_with_parent() -> None:
    """Ends this process when the one that started it is gone, however that ended: what still compiled would disturb the
    timing of the next run."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _finished(line: Connection) -> Any:
    """The result of a job that is told to go on."""
    with contextlib.suppress(OSError):  # of a process that died while it waited; the line then ends
        line.send("go")
    return _hear(line)[1]


def _hear(line: Connection) -> tuple[str, Any]:
    try:
        return line.recv()
    except (EOFError, OSError):
        return "failed", None
