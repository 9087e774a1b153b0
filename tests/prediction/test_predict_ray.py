"""The engine ray on two local nodes: the same rows, whatever happens to one of the nodes."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import randomise, tiny
from pictures import SlowPaths, same_rows, write_pictures

import leanformer as lf

pytest.importorskip("ray")
pytestmark = pytest.mark.exhaustive


@pytest.fixture
def cluster(monkeypatch) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))  # for the nodes' processes
    small = {"num_cpus": 1, "object_store_memory": 150 * 2**20}
    made = Cluster(initialize_head=True, head_node_args=small)
    made.spare = made.add_node(**small)  # type: ignore[attr-defined]
    made.wait_for_nodes()
    yield made
    made.shutdown()


def test_two_nodes_give_the_rows_of_one_process_even_if_one_of_them_dies(cluster, tmp_path):
    model = randomise(tiny()).eval()
    paths = [str(path) for path in write_pictures(tmp_path / "photos", 400, bad=(5, 300))]
    torch.set_num_threads(1)
    expected = list(lf.predict(model, paths, embed=True, device="cpu", workers=0))
    place = lf.prediction.Cluster(address=cluster.address, actors=2)
    whole = list(lf.predict(model, paths, embed=True, device="cpu", engine="ray", cluster=place))
    slow = SlowPaths("slow", paths)
    answers, rows = lf.predict(model, slow, embed=True, device="cpu", engine="ray", cluster=place), []
    assert same_rows(whole, expected)
    for number, batch in enumerate(answers.batches()):
        if number == 3:
            cluster.remove_node(cluster.spare, allow_graceful=False)
        rows += batch.rows()
    assert same_rows(rows, expected)
    assert answers.report.failed == 2


def test_a_run_that_ray_began_is_finished_by_one_process(cluster, tmp_path):
    model = randomise(tiny()).eval()
    write_pictures(tmp_path / "photos", 100)
    place = lf.prediction.Cluster(address=cluster.address)
    lf.predict(model, tmp_path / "photos", device="cpu", engine="ray", cluster=place).save(tmp_path / "v")
    parts = sorted((tmp_path / "v").glob("part-*"))
    assert len(parts) == 1
    again = lf.predict(model, tmp_path / "photos", device="cpu", workers=0).save(tmp_path / "v")
    assert (again.rows, again.total) == (0, 100)


def test_a_cluster_that_is_not_there_is_one_line(tmp_path):
    write_pictures(tmp_path / "photos", 2)
    place = lf.prediction.Cluster(address="127.0.0.1:1")
    with pytest.raises(ValueError, match="no Ray cluster answers at"):
        list(lf.predict(tiny(), tmp_path / "photos", device="cpu", engine="ray", cluster=place))
