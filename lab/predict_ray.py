"""predict on two local Ray nodes: the rows of one process though a node dies, and what a second worker gains.

    one process                                             → rows A
    two nodes of one CPU each, one killed in the middle     → rows B = A, to the last bit
    one worker, two workers, in turn                        → pictures a second of each

A node is a set of processes on this machine; each worker computes with one thread.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import leanformer as lf
from leanformer.measure import LoadByOthers, record, write_result
from leanformer.prediction import Cluster, Predictions

from .predict_kills import write_packs

STORE = 150 * 2**20
"""Bytes of a node's object store."""


@contextmanager
def local_cluster(nodes: int) -> Iterator[Any]:
    """A Ray cluster of so many nodes with one CPU each on this machine."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": STORE})
    try:
        for _ in range(nodes - 1):
            made.add_node(num_cpus=1, object_store_memory=STORE)
        made.wait_for_nodes()
        yield made
    finally:
        made.shutdown()


def on_cluster(model: Any, source: Path, cluster: Any, actors: int) -> Predictions:
    """Predictions that the cluster computes with so many copies of the model."""
    place = Cluster(address=cluster.address, actors=actors)
    return lf.predict(model, source, embed=True, device="cpu", engine="ray", cluster=place)


def with_a_node_killed(answers: Predictions, cluster: Any, behind: float) -> tuple[list[dict[str, Any]], int]:
    """All rows, though a node is killed behind this share of them; and how many rows there were then."""
    rows, killed = [], 0
    for batch in answers.batches():
        rows += batch.rows()
        if not killed and len(rows) >= behind * len(answers):
            cluster.remove_node(next(node for node in cluster.worker_nodes), allow_graceful=False)
            killed = len(rows)
    return rows, killed


def same_rows(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> bool:
    """Whether rows are equal to the last bit.

    >>> same_rows([{"path": "a", "score": 0.5}], [{"path": "a", "score": 0.25}])
    False
    """
    return len(first) == len(second) and all(
        one.keys() == other.keys() and all(np.array_equal(np.asarray(one[key]), np.asarray(other[key])) for key in one)
        for one, other in zip(first, second)
    )


def rate(model: Any, source: Path, nodes: int) -> tuple[float, dict[str, float]]:
    """Pictures a second of as many workers as nodes, behind the first third of them; and what the time went to."""
    with local_cluster(nodes) as cluster:
        answers, first, begun = on_cluster(model, source, cluster, nodes), 0, 0.0
        for batch in answers.batches():
            if not first and batch.first > len(answers) / 3:  # by now all workers have their models
                first, begun = batch.first + len(batch), time.perf_counter()
        return (len(answers) - first) / (time.perf_counter() - begun), answers.report.shares


def predict_ray(
    images: int = 4000,
    model: str = "vit_tiny_patch16_224",
    timed: int = 1200,
    turns: int = 3,
    output: Path | None = None,
) -> int:
    """Rows of a Ray cluster that loses a node, against one process; and two workers against one.

    Example: python -m lab predict-ray --output results/predict_ray_cpu.json

    Args:
        images: Small pictures for the comparison of rows.
        model: The model whose workers are timed; the comparison of rows has a small one.
        timed: Pictures for each timing.
        turns: How often one and two workers are timed in turn.
        output: A JSON file for the figures.
    """
    torch.set_num_threads(1)
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # for the nodes' processes
    others = LoadByOthers()
    with tempfile.TemporaryDirectory() as place:
        photos, few = Path(place) / "photos", Path(place) / "few"
        write_packs(photos, images)
        write_packs(few, timed, bad=0)
        small = lf.create("vit", img_size=32, patch_size=8, embed_dim=64, depth=4, num_heads=2, num_classes=10)
        alone = list(lf.predict(small, photos, embed=True, device="cpu"))
        with local_cluster(2) as cluster:
            rows, killed = with_a_node_killed(on_cluster(small, photos, cluster, 2), cluster, 0.3)
        same, large = same_rows(alone, rows), lf.create(model)
        times = [(rate(large, few, 1), rate(large, few, 2)) for _ in range(turns)]
    share = others.share()
    gains = [two[0] / one[0] for one, two in times]
    row = {
        "rows": len(rows), "rows_equal": same, "node_killed_behind": killed, "model": model,
        "one_worker": [round(one[0], 2) for one, _ in times], "two_workers": [round(two[0], 2) for _, two in times],
        "gain_of_two": round(statistics.median(gains), 3), "shares": times[-1][1][1],
        "load_beside_this_process": None if share is None else round(share, 2),
    }  # fmt: skip
    print({key: value for key, value in row.items() if key != "shares"})
    if output is not None:
        write_result(record("predict ray", [row]), output)
    return 0 if same else 1
