"""The workspace that recorded products write to lies in a pool that no graph takes along when it goes."""

import contextlib
import types

import pytest
import torch

from leanformer.measure import graphs


@pytest.fixture
def recorded(monkeypatch):
    """(graph, pool, stream) of what is recorded, in order; graphs are plain objects, on any machine."""
    told = []

    class Graph:
        def pool(self):
            return ("pool of", self)

    @contextlib.contextmanager
    def graph(each, pool=None, stream=None):
        told.append((each, pool, stream))
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(graphs, "_STAYING", {})
    return told


def test_every_workspace_is_made_in_the_pool_of_the_first_recording_which_stays(recorded):
    stream = types.SimpleNamespace(device=torch.device("cpu"))
    for _ in range(3):
        graphs._keep_workspace(stream)
    first, pools = recorded[0][0], [pool for _, pool, _ in recorded]
    assert pools == [None, first.pool(), first.pool()]
    assert graphs._STAYING[stream.device] == [first, recorded[2][0]]  # the one between made room for the last
    assert all(used is stream for *_, used in recorded)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graph_answers_after_an_older_one_is_gone_and_the_workspaces_are_cleared():
    weight = torch.randn(4096, 64, device="cuda")
    images = torch.randn(1, 4096, device="cuda")  # few rows and a long sum: computed in parts, with a workspace
    older, younger = (graphs.capture(lambda: images @ weight) for _ in range(2))
    truth = younger().clone()
    del older
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    noise = [torch.full((2**20,), 7.0, device="cuda") for _ in range(32)]
    assert torch.equal(younger(), truth)
    torch.cuda.synchronize()
    assert all(bool((each == 7).all()) for each in noise)
