"""Checks of what a user gives, made before any work: each says which option is wrong and what would work.

Nothing heavy is imported here before a check needs it.
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16")
LARGEST = 2**31 - 1
"""Of a number of images, repeats, processes: more than that is a slip of the finger."""


def at_least(least: int, **options: int | Collection[int] | None) -> None:
    """Refuse numbers, or tuples of numbers, below `least`; None stands for an option that was not given.

    Args:
        least: The smallest number that works.
        **options: The values by the names of their options.

    >>> at_least(1, batch_size=0)
    Traceback (most recent call last):
    ValueError: --batch-size must be at least 1, not 0
    """
    for name, value in options.items():
        for each in () if value is None else (value,) if isinstance(value, int) else value:
            if each < least:
                raise ValueError(f"{_flag(name)} must be at least {least}, not {each}")
            if each > LARGEST:
                raise ValueError(f"{_flag(name)} must be at most {LARGEST}, not {each}")


def above_zero(**options: float | None) -> None:
    """Refuse numbers that are not finite and above 0; None stands for an option that was not given.

    Args:
        **options: The values by the names of their options.

    >>> above_zero(timeout=float("inf"))
    Traceback (most recent call last):
    ValueError: --timeout must be a finite number above 0, not inf
    """
    for name, value in options.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{_flag(name)} must be a finite number above 0, not {value}")


def share(**options: float | None) -> None:
    """Refuse numbers that are not above 0 and at most 1; None stands for an option that was not given.

    Args:
        **options: The values by the names of their options.

    >>> share(crop=float("nan"))
    Traceback (most recent call last):
    ValueError: --crop must be above 0 and at most 1, not nan
    """
    for name, value in options.items():
        if value is not None and not 0 < value <= 1:
            raise ValueError(f"{_flag(name)} must be above 0 and at most 1, not {value}")


def one_of(known: Collection[str], **options: Collection[str]) -> None:
    """Refuse texts that are not among those known.

    Args:
        known: The texts that work.
        **options: The given texts by the names of their options.

    >>> one_of(DTYPES, dtypes=("zz",))
    Traceback (most recent call last):
    ValueError: --dtypes: unknown 'zz'; known: float32, bfloat16, float16
    """
    for name, given in options.items():
        for each in given:
            if each not in known:
                raise ValueError(f"{_flag(name)}: unknown '{each}'; known: {', '.join(known)}")


def only_with(other: str, given: bool, **options: object) -> None:
    """Refuse options that mean nothing without another one; None and False stand for those that were not given.

    Args:
        other: The option that they need.
        given: Whether it was given.
        **options: The values by the names of their options.

    >>> only_with("--output", False, format="csv")
    Traceback (most recent call last):
    ValueError: --format means nothing without --output: give both or neither
    """
    for name, value in options.items():
        if not given and value is not None and value is not False:
            raise ValueError(f"{_flag(name)} means nothing without {other}: give both or neither")


def check_seed(seed: int) -> None:
    """Refuse a seed that no generator of random numbers takes.

    Args:
        seed: What was given as --seed.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"--seed must be a number from 0 to {2**32 - 1}, not {seed}")


def open_device(name: str | None) -> torch.device:
    """The device of that name, tried out; the fastest there is for None.

    Args:
        name: cpu, cuda, cuda:1, mps, …

    Raises:
        ValueError: The device is not there; the error names those that are.
    """
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it holds no numbers")
        torch.zeros(1, device=device).add_(1).item()
    except Exception as error:  # each kind of device says in its own way that it is not there
        there = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        there += ["mps"] if torch.backends.mps.is_available() else []
        raise ValueError(f"--device: there is no device '{name}' here; there is: {', '.join(there)}") from error
    return device


def output_files(*paths: Path | None, folders: bool = True) -> None:
    """Refuse files that cannot be written, before any work is done; None stands for one that was not asked for.

    Args:
        *paths: The files to write.
        folders: Whether missing folders will be made.
    """
    for path in paths:
        if path is not None:
            with _writing(path):
                if path.is_dir():
                    raise ValueError(f"cannot write {path}: it is a folder, give the name of a file")
                if path.exists() and not path.is_file():
                    raise ValueError(f"cannot write {path}: it is not a plain file")
                if not folders and not path.parent.exists():
                    raise ValueError(f"cannot write {path}: the folder {path.parent} does not exist")
                _try_out(path)


def check_picture(path: Path | None) -> None:
    """Refuse a picture that cannot be written, or is neither PNG nor SVG; None stands for one that was not asked for.

    Args:
        path: The file to write.
    """
    if path is not None and path.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"cannot write {path}: pictures are .png or .svg")
    output_files(path)


def output_folder(path: Path | None) -> None:
    """Refuse a folder that can neither be made nor written into, before any work is done.

    Args:
        path: The folder; None stands for one that was not asked for.
    """
    if path is not None:
        with _writing(path):
            if path.exists() and not path.is_dir():
                raise ValueError(f"cannot write into {path}: it is a file, give the name of a folder")
            _try_out(path / "file")


def input_files(**options: Path | Collection[Path] | None) -> None:
    """Refuse files that are not there or cannot be read; None stands for an option that was not given.

    Args:
        **options: The files by the names of their options.
    """
    from ..core.files import check_file

    for name, value in options.items():
        for path in () if value is None else (value,) if isinstance(value, Path) else value:
            check_file(path, f"{_flag(name)}: ")


def check_address(host: str, port: int) -> None:
    """Refuse an address that nothing can listen on, before a model is opened.

    Args:
        host: A name or a number of this machine.
        port: A free port.
    """
    import socket

    if not 0 <= port <= 65535:
        raise ValueError(f"--port must be a number from 0 to 65535, not {port}")
    try:
        kind, how, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind, how, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot listen on --host {host} --port {port}: {why}") from error


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from error


def _try_out(path: Path) -> None:
    """Make and remove a file beside `path`, or in the nearest folder above that is there already."""
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    trial = folder / f".{path.name}.{secrets.token_hex(4)}"  # as long as the names of files that are not yet whole
    with open(trial, "xb"):
        pass
    trial.unlink()


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
