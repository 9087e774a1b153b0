"""The same run on many machines, as a pipeline of Ray Data.

    numbers of batches → read and decode (tasks) → model (actors, one a GPU or CPU) → rows, in order, to the writer

Ray holds back readers that are ahead of the model, starts more actors while there is work for them, and computes again
what a lost machine held. Source and model travel to each machine once; the rows are written by the process that asked.
"""

import contextlib
import copy
import dataclasses
import importlib.util
import logging
import pickle
import socket
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..core.optimised import plain_of
from .forms import prepare
from .reading import read_batch
from .running import Clock, ResultBatch, Runner
from .settings import Settings
from .storage import reason

if TYPE_CHECKING:
    from .predictions import Cluster, Predictions


MOST_BLOCKS = 4096
"""Pieces of work that Ray keeps account of; each is one batch or more."""
READING = 0.25
"""Of a CPU, where models compute on CPUs too: a reader and a model share one, so that one CPU is enough for both."""


def require_ray() -> None:
    """Refuse to go on without Ray, with the line that installs it."""
    if importlib.util.find_spec("ray") is None:
        raise ValueError("the engine ray needs ray; install with: pip install 'leanformer[scale]'")


@dataclasses.dataclass(frozen=True)
class _Job:
    """What every machine needs: the source, the rows of each batch, how pictures are seen."""

    records: Any
    rows: list[range]
    view: Any
    resize: bool


@lru_cache(maxsize=2)
def _fetched(reference: "_Shared") -> Any:
    import ray

    return ray.get(reference.held[0])


@dataclasses.dataclass(frozen=True)
class _Shared:
    """An object in Ray's store, fetched once a process."""

    held: tuple[Any, ...]

    def get(self) -> Any:
        return _fetched(self)


class _Read:
    """Numbers of batches → batches of pixels, pickled."""

    def __init__(self, job: _Shared):
        self.job = job

    def __call__(self, given: dict[str, Any]) -> dict[str, Any]:
        job: _Job = self.job.get()
        batches = [read_batch(job.records, job.rows[number], job.view, job.resize) for number in given["data"].tolist()]
        return {"batch": [pickle.dumps(batch) for batch in batches]}


class _Answer:
    """Batches of pixels → batches of rows, pickled, by a model of its own."""

    def __init__(self, model: _Shared, settings: Settings, job: _Shared, threads: int):
        torch.set_num_threads(threads)
        answers = prepare(pickle.loads(model.get()), settings)
        self.runner = Runner(answers, job.get().view, settings.on(), settings.batch_size or 1)

    def __call__(self, given: dict[str, Any]) -> dict[str, Any]:
        found = []
        for data in given["batch"]:
            batch, clock = pickle.loads(data), Clock()
            result = self.runner.one(batch, clock)
            clock.seconds["reading"] += batch.reading
            clock.seconds["decoding"] += batch.decoding
            found.append(pickle.dumps((result, clock.seconds)))
        return {"result": found}


def ray_batches(predictions: "Predictions", rows: list[range], clock: Clock) -> Iterator[ResultBatch]:
    """The rows of these batches in their order, computed by a Ray cluster.

    Args:
        predictions: What is asked of which model and source.
        rows: The rows of each batch.
        clock: Where the time is noted; waits are divided as the stages took on all machines.
    """
    require_ray()
    if not rows:
        return
    with _connected(predictions.cluster) as ray:
        resize = predictions.settings.wanted().type == "cpu"
        job = _Shared((ray.put(_Job(predictions.records, rows, predictions.view, resize)),))
        model = _Shared((ray.put(pickle.dumps(copy.deepcopy(plain_of(predictions.model)).cpu())),))
        data = _pipeline(ray, predictions, job, model, len(rows))
        clock.restart()
        start = time.perf_counter()
        for found in data.iter_batches(batch_size=None, prefetch_batches=1):
            for each in found["result"]:
                result, seconds = pickle.loads(each)
                clock.split(time.perf_counter() - start, seconds)
                clock.rows += len(result)
                clock.failed += sum(error is not None for error in result.errors)
                yield result
                start = time.perf_counter()


def _pipeline(ray: Any, predictions: "Predictions", job: _Shared, model: _Shared, count: int) -> Any:
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    resources = ray.cluster_resources()
    wanted = predictions.settings.wanted().type == "cuda"
    gpus = int(resources.get("GPU", 0)) if wanted else 0
    if wanted and not gpus and predictions.settings.device is not None:
        raise ValueError("no machine of the Ray cluster has a GPU; give the device cpu")
    cluster = predictions.cluster
    most = (cluster.actors if cluster else None) or gpus or max(1, int(resources.get("CPU", 1)))
    pool = ray.data.ActorPoolStrategy(min_size=1, max_size=min(most, count))
    settings = dataclasses.replace(predictions.settings, device="cuda" if gpus else "cpu")
    numbers = np.array_split(np.arange(count), min(count, MOST_BLOCKS))
    return (
        ray.data.from_numpy(numbers)
        .map_batches(_Read(job).__call__, batch_size=1, num_cpus=1 if gpus else READING)
        .map_batches(
            _Answer,
            fn_constructor_args=(model, settings, job, 1 if not gpus else torch.get_num_threads()),
            batch_size=1,
            compute=pool,
            num_gpus=1 if gpus else 0,
            num_cpus=0 if gpus else 1 - READING,
        )
    )


@contextlib.contextmanager
def _connected(cluster: "Cluster | None") -> Iterator[Any]:
    """Ray, connected to the cluster; one that was started here is stopped again."""
    import ray
    import ray.data

    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    ours = not ray.is_initialized()
    if ours:
        address = cluster.address if cluster else None
        _knock(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ValueError(f"no Ray cluster answers at {address or 'this machine'}: {reason(error)}") from error
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def _knock(address: str | None) -> None:
    """Refuse an address HOST:PORT at which nobody listens; Ray itself would wait there for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ValueError(f"no Ray cluster answers at {address}: {reason(error)}") from error
