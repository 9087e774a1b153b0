"""Gradient checkpointing runs a block twice; its batch norms must count the batch once.

forward      block(x)  →  y, nothing kept            statistics move here
backward     block(x)  once more, then its gradient  statistics stay as they are
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def recomputing() -> bool:
    """Whether this forward pass runs inside a backward pass, which only gradient checkpointing does.

    Compiled code is never asked: there, what a recomputation would write is dropped by the compiler.

    >>> recomputing()
    False
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


@contextlib.contextmanager
def statistics_kept(module: nn.Module) -> Iterator[None]:
    """Within the context the batch norms of `module` write their running statistics to copies, which are dropped.

    Copies and not None: a recomputation has to keep as many tensors for the backward pass as the first run did.

    >>> norm = nn.BatchNorm1d(2)
    >>> with statistics_kept(norm):
    ...     _ = norm(torch.randn(4, 2))
    >>> int(norm.num_batches_tracked)
    0
    """
    norms = [norm for norm in module.modules() if isinstance(norm, _BatchNorm) and norm.training]
    kept = [dict(norm._buffers) for norm in norms]
    for norm in norms:
        norm._buffers.update({name: None if b is None else b.clone() for name, b in norm._buffers.items()})
    try:
        yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            norm._buffers.update(buffers)
