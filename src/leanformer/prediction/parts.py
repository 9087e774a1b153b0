"""Output in parts, so that a run that was killed goes on where it was.

    vectors/                          answers.parquet.parts/  →  answers.parquet
      manifest.json                     the same, joined when all is there
      part-000000000000-000000016384.parquet

A part is written under another name and renamed when it is whole; its name says which rows it holds, so the files
themselves say what is done. The manifest says which model, source and settings they belong to. One part is written in a
thread of its own while the rows of the next are collected.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..core import write_atomically
from .answers import Field
from .formats import FORMATS, Format, is_folder
from .running import ResultBatch

PART = re.compile(r"part-(\d{12})-(\d{12})\.\w+")
MANIFEST = "manifest.json"
MOST_ROWS, MOST_SECONDS = 16_384, 30.0
"""A part ends when it has so many rows or took so long: what a kill costs at most."""

_WRITING: set[str] = set()
"""Folders that runs of this process are writing to; the lock on a file keeps only other processes away."""


class Parts:
    """The parts of one run, open for writing within `with`.

    Args:
        output: The file or folder that the user asked for, told apart by `is_folder`.
        style: The format of the parts.
        job: What makes the run this one: fingerprints, settings, number of rows. JSON values.
        fields: The columns of the task.
        about: Metadata of the files.
        overwrite: Begin anew, whatever is there.
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        style: Format,
        job: dict[str, Any],
        fields: Sequence[Field],
        about: dict[str, str],
        overwrite: bool = False,
    ):
        if "://" in str(output):
            raise ValueError(f"{output} is an address; rows are written to this machine's files alone")
        self.output, self.style, self.job, self.fields, self.about = Path(output), style, job, fields, about
        self.single = not is_folder(output)
        self.folder = self.output.with_name(self.output.name + ".parts") if self.single else self.output
        self.rows, self.overwrite = int(job["rows"]), overwrite
        self.held: list[ResultBatch] = []
        self.writer = ThreadPoolExecutor(1, "leanformer-writer")
        self.written: Future[None] | None = None
        self.since = time.monotonic()

    def __enter__(self) -> "Parts":
        """Make the folder, keep other runs away from it, and find out what is there."""
        if not self.single and self.output.exists() and not self.output.is_dir():
            raise ValueError(f"{self.output} is a file; give the name of a folder, or one that ends {_endings()}")
        if self.single and self.output.is_dir():
            raise ValueError(f"{self.output} is a folder; give the name of a file")
        known = (self.folder / MANIFEST).is_file()
        if self.single and self.output.exists() and not known and not self.overwrite:
            raise ValueError(f"{self.output} is there already; give another name, or overwrite it")
        if str(self.folder.absolute()) in _WRITING:
            raise ValueError(f"another run is writing to {self.folder}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = open(self.folder / ".lock", "w")
        except OSError as error:
            raise ValueError(f"cannot write {self.folder}: {error.strerror or error}") from error
        try:
            self._lock()
            self._begin()
        except BaseException:
            self.lock.close()
            raise
        _WRITING.add(str(self.folder.absolute()))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is KeyboardInterrupt:
            self.flush()
        self.writer.shutdown()
        _WRITING.discard(str(self.folder.absolute()))
        self.lock.close()
        with contextlib.suppress(OSError):  # where one file was asked for, it is gone with the folder
            os.unlink(self.lock.name)

    def _lock(self) -> None:
        try:
            fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # gone with this process, whatever its children do
        except OSError as error:
            raise ValueError(f"another run is writing to {self.folder}") from error

    def _begin(self) -> None:
        if self.overwrite:
            self._clear()
        known = self._known()
        for path in self.folder.glob(".*"):  # what a run was writing when it was killed
            if path.name.startswith((".part-", f".{MANIFEST}")):
                path.unlink()
        if known is None:
            others = [name for name in sorted(os.listdir(self.folder)) if not name.startswith(".")]
            if others:
                raise ValueError(f"{self.folder} holds other files, such as {others[0]}; give an empty or new folder")
            self._note(complete=False)
            return
        differing = [name for name, value in self.job.items() if known.get(name) != value]
        if any(PART.fullmatch(path.name) and path.suffix != self.style.ending for path in self.folder.iterdir()):
            differing.append("format")
        if differing:
            raise ValueError(
                f"{self.folder} holds parts of another run: {', '.join(differing)} differ; give another output, or "
                "overwrite it"
            )

    def _known(self) -> dict[str, Any] | None:
        path = self.folder / MANIFEST
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text())["job"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged, so it is not known what the parts beside it are: {error}") from error

    def _clear(self) -> None:
        if self.folder.is_dir() and (self.folder / MANIFEST).is_file():  # nothing but what a run wrote
            for path in self.folder.iterdir():
                if PART.fullmatch(path.name) or path.name == MANIFEST:
                    path.unlink()

    def _note(self, complete: bool, **more: Any) -> None:
        text = json.dumps({"format": 1, "complete": complete, "job": self.job, **more}, indent=1)
        write_atomically(self.folder / MANIFEST, lambda name: Path(name).write_text(text))

    def done(self) -> list[tuple[range, Path]]:
        """The rows that are written, part by part in their order."""
        found = []
        for path in self.folder.iterdir():
            match = PART.fullmatch(path.name)
            if match and path.suffix == self.style.ending:
                found.append((range(int(match[1]), int(match[2])), path))
        return sorted(found, key=lambda part: part[0].start)

    def missing(self) -> list[range]:
        """The rows that are not written yet.

        Raises:
            ValueError: Parts overlap, or hold rows that the source does not have.
        """
        gaps, at = [], 0
        for rows, path in self.done():
            if rows.start < at or rows.stop > self.rows:
                raise ValueError(f"{path} does not fit the parts beside it; remove it, and the run goes on without")
            if rows.start > at:
                gaps.append(range(at, rows.start))
            at = rows.stop
        return [*gaps, range(at, self.rows)] if at < self.rows else gaps

    def add(self, batch: ResultBatch) -> None:
        """Take the rows of a batch; they go to disk when the part is full, or a while has passed."""
        if self.held and self.held[-1].first + len(self.held[-1]) != batch.first:
            self._hand_over()  # rows between these are written already
        self.held.append(batch)
        if sum(map(len, self.held)) >= MOST_ROWS or time.monotonic() - self.since > MOST_SECONDS:
            self._hand_over()

    def flush(self) -> None:
        """Write what is held as one part, and wait until it is on disk."""
        self._hand_over()
        self._wait()

    def _hand_over(self) -> None:
        self.since = time.monotonic()
        self._wait()
        if self.held:
            self.written, self.held = self.writer.submit(self._write, self.held), []

    def _wait(self) -> None:
        """Until the part that is being written is whole; what went wrong with it is raised here."""
        written, self.written = self.written, None
        if written is not None:
            written.result()

    def _write(self, batches: list[ResultBatch]) -> None:
        first, stop = batches[0].first, batches[-1].first + len(batches[-1])
        path = self.folder / f"part-{first:012}-{stop:012}{self.style.ending}"
        try:
            write_atomically(path, lambda name: self.style.write(name, batches, self.fields, self.about))
        except ValueError as error:
            whole = sum(len(rows) for rows, _ in self.done())
            raise ValueError(
                f"{error}; {whole} of {self.rows} rows are whole in {self.folder}, and the same call goes on from there"
            ) from error

    def finish(self, summary: dict[str, Any]) -> Path:
        """Join the parts where one file was asked for, else note that all is there.

        Args:
            summary: What the manifest of a folder says of the run.
        """
        self.flush()
        assert not self.missing(), "all rows were added"
        if not self.single:
            counts = [{"file": path.name, "rows": len(rows)} for rows, path in self.done()]
            self._note(complete=True, parts=counts, **summary)
            return self.output
        paths = [path for _, path in self.done()]
        write_atomically(self.output, lambda name: self.style.join(name, paths, self.about))
        gone = self.folder.with_name(f".{self.folder.name}.{secrets.token_hex(4)}")
        os.replace(self.folder, gone)  # at once, so that a kill leaves no half of the parts behind
        shutil.rmtree(gone, ignore_errors=True)
        return self.output


def _endings() -> str:
    return ", ".join(FORMATS)
