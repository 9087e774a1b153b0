"""`lf.predict`: the answers of a model to many pictures, computed as they are asked for."""

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ..core import versions
from ..data.batches import worker_count
from ..speed import load
from .answers import Answers, Field
from .formats import Format, format_of, is_folder, require_pyarrow
from .forms import model_card, model_fingerprint, prepare, view_of
from .parts import Parts
from .reading import batch_rows, pixel_batches
from .records import Records, digest
from .running import Clock, Report, ResultBatch, Runner
from .settings import Settings, refuse_unfit
from .sources import Source, open_records

if TYPE_CHECKING:
    import pandas

ENGINES = ("local", "ray")
LOCAL_SHARE = 4
"""On a CPU one core in so many reads pictures; the model takes all of them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """How the engine `ray` runs.

    Attributes:
        address: Of the cluster; None: the one this process is in, or a new one on this machine.
        actors: Copies of the model at most; None: one for each GPU, or for each CPU where there are none.
    """

    address: str | None = None
    actors: int | None = None


class Predictions:
    """The answers to a source, row by row; nothing is computed before they are asked for.

    >>> import torch, leanformer as lf
    >>> model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=5)
    >>> answers = lf.predict(model, torch.zeros(6, 3, 32, 32, dtype=torch.uint8), device="cpu")
    >>> len(answers), [row["path"] for row in answers][:2]
    (6, ['0', '1'])
    """

    def __init__(
        self,
        model: nn.Module,
        records: Records,
        settings: Settings,
        workers: int | None = None,
        cluster: Cluster | None = None,
    ):
        self.model, self.records, self.cluster = model, records, cluster
        self.settings = settings.resolved(model, len(records))
        if cluster is None:
            self.settings.on()  # refuses a device that is not here before any work is done
        self.view = view_of(model, self.settings)
        self.workers = workers
        self.report = Report()
        self._answers: Answers | None = None

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            yield from batch.rows()

    @property
    def answers(self) -> Answers:
        """The task, its model ready on the device; made once.

        A cluster prepares models of its own, so that this one tells the fields alone and stays on the CPU.
        """
        if self._answers is None:
            settings = self.settings
            if self.cluster is not None:
                settings = dataclasses.replace(settings, device="cpu", optimized=False)
            self._answers = prepare(self.model, settings)
        return self._answers

    @property
    def fields(self) -> list[Field]:
        """The columns between `path` and `error`."""
        return list(self.answers.fields)

    def batches(self, missing: Sequence[range] | None = None, clock: Clock | None = None) -> Iterator[ResultBatch]:
        """Batches of rows, in the order of the source.

        Args:
            missing: The rows that are wanted, beginning at multiples of the batch size; all by default.
            clock: Where the time is noted; by default in `report`.
        """
        clock = clock or Clock()
        wanted = [range(len(self))] if missing is None else list(missing)
        rows = batch_rows(wanted, self.settings.batch_size or 1)
        yield from self._run(rows, clock)
        self.report = clock.report(len(self))

    def _run(self, rows: list[range], clock: Clock) -> Iterator[ResultBatch]:
        if self.cluster is not None:
            from .ray_engine import ray_batches

            return ray_batches(self, rows, clock)
        device = self.settings.on()
        cores = worker_count(None)
        workers = self.workers if self.workers is not None else cores
        if self.workers is None and device.type == "cpu":
            workers = max(1, cores // LOCAL_SHARE)
        runner = Runner(self.answers, self.view, device, self.settings.batch_size or 1)
        clock.restart()
        return runner.run(pixel_batches(self.records, rows, self.view, workers, device.type == "cuda"), clock)

    def to_pandas(self) -> "pandas.DataFrame":
        """All rows as a data frame; vectors are arrays in their cells."""
        try:
            import pandas
        except ImportError as error:
            raise ValueError("to_pandas needs pandas; pip install pandas brings it") from error
        return pandas.DataFrame(list(self), columns=["path", *(field.name for field in self.fields), "error"])

    def to_arrow(self) -> Any:
        """All rows as a table of pyarrow."""
        from .formats import arrow_table

        require_pyarrow()
        return arrow_table(list(self.batches()), self.fields, self._about(self.job()))

    def to_parquet(self, path: str | os.PathLike[str], overwrite: bool = False) -> Report:
        """Write all rows to a Parquet file, or to parts in a folder; see `save`."""
        return self.save(path, "parquet", overwrite)

    def save(self, path: str | os.PathLike[str], format: str | None = None, overwrite: bool = False) -> Report:
        """Write all rows in parts, and join them where a file was asked for. A killed call is continued by the same.

        Args:
            path: A file that ends .parquet, .csv or .jsonl, or a folder for the parts: a name that ends with / or has
                no ending.
            format: parquet, csv or jsonl; by default what the name ends like, parquet for a folder.
            overwrite: Begin anew where there is an output already.

        Raises:
            ValueError: There is something else at `path`, or it cannot be written; what is whole is kept.
        """
        job = self.job()
        parts = Parts(path, self._style(path, format), job, self.fields, self._about(job), overwrite)
        clock = Clock()
        with parts:
            clock.restart()
            for batch in self.batches(parts.missing(), clock):
                with clock.during("writing"):
                    parts.add(batch)
            with clock.during("writing"):
                parts.flush()
            self.report = clock.report(len(self), str(path))
            parts.finish({"report": dataclasses.asdict(self.report)})
        return self.report

    def _style(self, path: str | os.PathLike[str], asked: str | None) -> Format:
        style = format_of(path, asked)
        ending = Path(path).suffix.lower()
        if asked and not is_folder(path) and ending != style.ending:
            raise ValueError(f"{path} ends {ending}, but {asked} is asked for; name it {Path(path).stem}{style.ending}")
        return style

    def job(self) -> dict[str, Any]:
        """What makes this run this one, as JSON values: a killed run is continued by one with the same."""
        settings = dataclasses.asdict(self.settings)
        settings["classes"] = digest(self.settings.classes or ())
        del settings["device"]
        return {
            "model": model_fingerprint(self.model),
            "source": self.records.fingerprint(),
            "rows": len(self),
            **json.loads(json.dumps(settings)),
        }

    def _about(self, job: dict[str, Any]) -> dict[str, str]:
        run = {"source": self.records.name, "versions": versions(), **job}
        return {"leanformer": json.dumps(model_card(self.model)), "leanformer.predict": json.dumps(run)}


def predict(
    model: nn.Module | str | os.PathLike[str],
    source: Source,
    *,
    top: int = 5,
    probabilities: bool = False,
    embed: bool | str = False,
    kept: bool = False,
    classes: Sequence[str] | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    optimized: bool | None = None,
    crop: float | None = None,
    score: float | None = None,
    workers: int | None = None,
    split: str | None = None,
    column: str | None = None,
    engine: str = "local",
    cluster: Cluster | None = None,
) -> Predictions:
    """The answers of a model to all pictures of a source, computed as they are asked for.

    Rows come in the order of the source, one for each picture; one that cannot be read is a row with its reason. A
    detector's rows have boxes (left, top, right, bottom in pixels), scores, classes and names, and masks where it gives
    them; a segmenter's a label map as PNG, and the classes that occur with their shares.

    Args:
        model: A classifier, detector or segmenter, or a leanformer checkpoint.
        source: A picture, folder, pattern, list of paths, pack, WebDataset shards, Parquet table, Hugging Face data set
            on disk, or pixels; files may lie behind any address that fsspec knows.
        top: How many classes a row names; 0 leaves the classes out.
        probabilities: Add the probabilities of all classes.
        embed: Add the features before the head, as float16 (True) or as the dtype that is named.
        kept: Add, for each patch, the number of the token that it is part of at the end, -1 where it was dropped.
        classes: The names of the classes; by default those on the model's card, or ImageNet's for 1000.
        batch_size: Images at a time; by default 8 on a CPU and 256 on a GPU, 2 and 8 for detectors and segmenters.
        device: cpu, cuda, …; the fastest there is on this machine by default. A cluster's machines must have it.
        dtype: In which the model computes; by default bfloat16 on a GPU and float32 on a CPU.
        optimized: Whether to search for the fastest form first; by default on a GPU, for many pictures.
        crop: The share of each picture that is looked at, instead of what the model's card states.
        score: A detector's rows have the boxes above it; by default the threshold that the detector was built with.
        workers: Processes that read and decode; 0: this one. By default one a core for a GPU, a quarter for a CPU.
        split: Which split of a Hugging Face data set, or which of the folders in a folder.
        column: Which column of a table holds the pictures.
        engine: local, or ray for many machines.
        cluster: Where and how wide the engine ray runs.

    Returns:
        Predictions: iterate over it for rows, over its `batches()`, or call `to_pandas` or `to_parquet`.

    >>> import leanformer as lf
    >>> lf.predict("lean.safetensors", "photos/").to_parquet("answers.parquet")  # doctest: +SKIP
    """
    if engine not in ENGINES:
        raise ValueError(f"unknown engine '{engine}'; known: {', '.join(ENGINES)}")
    if cluster is not None and engine != "ray":
        raise ValueError(f"a cluster is for the engine ray, not for {engine}; leave it out, or give engine='ray'")
    if workers is not None and workers < 0:
        raise ValueError(f"workers must be 0 or more, not {workers}")
    if engine == "ray":
        from .ray_engine import require_ray

        require_ray()
    settings = Settings(
        top=top,
        probabilities=probabilities,
        embed="float16" if embed is True else embed or None,
        kept=kept,
        classes=None if classes is None else tuple(map(str, classes)),
        batch_size=batch_size,
        device=device,
        dtype=dtype,
        optimized=optimized,
        crop=crop,
        score=score,
    )
    opened = model if isinstance(model, nn.Module) else load(model)
    refuse_unfit(opened, settings)
    records = open_records(source, split, column)
    return Predictions(opened, records, settings, workers, (cluster or Cluster()) if engine == "ray" else None)
