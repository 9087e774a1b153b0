"""The same run in one process and in two, for tests to compare."""

import os
import socket
from pathlib import Path
from typing import Any

import torch
from survival import arrays, processes, tiny

import leanformer as lf
from leanformer.layers.norms import BatchNormLast
from leanformer.train.sync_norm import SyncBatchNorm


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def one_step(folder: str, process: int = 0, **options: Any) -> None:
    """Train with plain gradient descent at rate 1: the change of the weights is the gradient."""
    torch.set_num_threads(1)
    recipe = lf.recipes.plain(
        epochs=options.pop("epochs", 1), batch_size=16, optimizer="momentum", learning_rate=1.0, schedule="constant",
        weight_decay=0.0,
    )  # fmt: skip
    recipe = recipe.replace(**options.pop("recipe", {}))
    methods = (lf.core.parse_method(spec) for spec in options.pop("methods", ()))
    model, data = lf.apply(tiny(), *methods), arrays()
    options = {"max_updates": 1, **options}
    result = lf.train.fit(
        model, recipe=recipe, data=data, val=data, teacher=tiny(1), objective="cross_entropy + soft",
        output=folder, device="cpu", quiet=True, **options,
    )  # fmt: skip
    assert result.evaluation is not None
    assert result.evaluation.images == 32
    if process == 0:
        torch.save(result.model.state_dict(), Path(folder) / "weights.pt")


def norm_step(folder: str, process: int | None = None, *, channels_last: bool) -> None:
    """A batch norm on all rows or on those of one process: outputs, gradients and statistics."""
    torch.manual_seed(0)
    x, weights = torch.randn(8, 5, 3, 2) + 2, torch.randn(8, 5, 3, 2)
    norm: Any = BatchNormLast(2) if channels_last else torch.nn.BatchNorm2d(5)
    torch.nn.init.normal_(norm.weight)
    if process is not None:
        torch.distributed.init_process_group("gloo")
        norm, x, weights = SyncBatchNorm(norm), x[process::2], weights[process::2]
    x.requires_grad_()
    y = norm(x)
    (y.square() * weights).sum().backward()
    found = {
        "y": y.detach(),
        "x": x.grad,
        "weight.grad": norm.weight.grad,
        "bias.grad": norm.bias.grad,
        **norm.state_dict(),
    }
    torch.save(found, Path(folder) / f"{process}.pt")


def _member(environment: dict[str, str], folder: str, options: dict[str, Any], step: Any) -> None:
    os.environ.update(environment)
    step(folder, int(environment["RANK"]), **options)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def together(
    folder: str, count: int = 2, environment: dict[str, str] | None = None, step: Any = one_step, **options: Any
) -> None:
    """`step` in several processes over gloo."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    members = []
    for rank in range(count):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
        members.append(
            processes.Process(target=_member, args=(common | own | (environment or {}), folder, options, step))
        )
    for member in members:
        member.start()
    for member in members:
        member.join(180)
    assert [member.exitcode for member in members] == [0] * count
