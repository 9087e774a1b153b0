"""Calls recorded as CUDA graphs: one replay instead of many launches.

The matrix library computes with a workspace, of which torch keeps one for each stream: all graphs that are recorded on
one stream write to the same. It would lie in the pool of the first of them. Once that graph is gone and somebody clears
the workspaces, as `torch.compile(mode="reduce-overhead")` does, the memory goes back to the device, and replays of the
other graphs end in an illegal access. So some products are recorded before, in a pool that stays: the workspace lies
there.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Call = Callable[[], Any]
_STAYING: dict[torch.device, list[torch.cuda.CUDAGraph]] = {}
"""Device → recordings that are never replayed; the first one's pool has the workspaces of all graphs."""


def capture(call: Call, device: torch.device | None = None) -> Call:
    """Record a call into a CUDA graph; the result replays it and returns the output it wrote to.

    Args:
        call: what is recorded; it must read the same memory at each replay.
        device: where it computes; by default the current device.

    >>> replay = capture(lambda: model(images))  # doctest: +SKIP
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        warm_up, recording = _streams(torch.device("cuda", torch.cuda.current_device()))
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(warm_up)
        _keep_workspace(recording)
        with torch.cuda.graph(graph, stream=recording):
            output = call()

    def replay(recorded: Call = call) -> Any:  # who holds the replay holds the code, weights and inputs that it reads
        graph.replay()
        return output

    return replay


@functools.cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """The streams of a device on which calls are tried before they are recorded, and recorded."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


def _keep_workspace(recording: torch.cuda.Stream) -> None:
    """See to it that the workspace of graphs that are recorded on this stream is where no graph takes it along.

    Where it was cleared since the last time, the next one is made in the same pool.
    """
    staying = _STAYING.setdefault(recording.device, [])
    square = torch.zeros(64, 64, device=recording.device)

    def products() -> None:
        torch.mm(square, square)
        torch.addmm(square[0], square, square)

    products()  # the library is opened here, since it cannot be while something is recorded
    del staying[1:]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=staying[0].pool() if staying else None, stream=recording):
        products()
    staying.append(graph)


def graphed(run: Callable[[Tensor], Tensor], images: Tensor) -> Callable[[Tensor], Tensor]:
    """A model in a CUDA graph as its user calls it: the batch is copied in, the graph replayed, the output copied out.

    Args:
        run: the model, usually compiled.
        images: a batch of the shape, dtype and memory format of all later ones.

    >>> graphed(torch.compile(model), images)(images)  # doctest: +SKIP
    """
    buffer = images.clone()

    def call() -> Tensor:
        with torch.inference_mode():
            return run(buffer)

    return with_copies(capture(call, images.device), buffer)


def with_copies(replay: Call, inputs: Tensor) -> Callable[[Tensor], Tensor]:
    """A graph as its user calls it: the batch is copied to where the graph reads it, and the output is copied out.

    Args:
        replay: what `capture` gave.
        inputs: the tensor that it reads.
    """

    def answer(batch: Tensor) -> Tensor:
        inputs.copy_(batch)
        return replay().clone()

    return answer
