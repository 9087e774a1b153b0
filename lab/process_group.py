"""Processes that end with the one that started them, however that one ends.

Each is the leader of a group of its own, to which all that it starts belongs: the whole group is ended when the `with`
is left. Should the starter be killed before it can do that, each process finds its standard input closed and ends its
group itself.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SECONDS_TO_END = 15.0
"""How long a group has to end by itself once it is asked to: a training writes a checkpoint first."""


@contextlib.contextmanager
def process_group(
    commands: Sequence[Sequence[str]], logs: Sequence[Path], environments: Sequence[dict[str, str]]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start processes that do not outlive the `with`: not a finished one, an interrupted one, or a terminated one.

    Args:
        commands: the words of each command.
        logs: the file to which each writes.
        environments: the environment variables of each.

    >>> with process_group([["sleep", "60"]], [Path(os.devnull)], [{"PATH": os.environ["PATH"]}]) as processes:
    ...     processes[0].poll() is None
    True
    >>> processes[0].poll() is None
    False
    """
    started: list[subprocess.Popen[bytes]] = []
    with exit_on_terminate():
        try:
            for command, log, environment in zip(commands, logs, environments, strict=True):
                with open(log, "w") as file:
                    started.append(
                        subprocess.Popen(
                            command,
                            stdin=subprocess.PIPE,
                            stdout=file,
                            stderr=subprocess.STDOUT,
                            env=environment,
                            start_new_session=True,
                        )
                    )
            yield started
        finally:
            _end(started)


def end_with_starter() -> None:
    """Called in a process of a group: when its starter is gone, so is it, with all that it started."""
    threading.Thread(target=_wait_for_starter, daemon=True).start()


def _wait_for_starter() -> None:
    os.read(0, 1)  # returns when the other end is closed; a buffered read would hold up the end of the process
    os.killpg(os.getpgid(0), signal.SIGTERM)
    time.sleep(SECONDS_TO_END)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal_number)
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_END)
    for process in processes:
        if process.stdin is not None:
            process.stdin.close()


@contextlib.contextmanager
def exit_on_terminate() -> Iterator[None]:
    """Within this, a signal to terminate is raised as SystemExit, so that every `finally` is reached.

    >>> with exit_on_terminate():
    ...     pass
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what a signal does
        return

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
