"""The same run in one process and in two, for tests to compare."""

import os
import socket
from pathlib import Path
from typing import Any

import torch
from survival import arrays, processes, tiny

import leanformer as lf


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
    model, data = tiny(), arrays()
    options = {"max_updates": 1, **options}
    result = lf.train.fit(
        model, recipe=recipe, data=data, val=data, teacher=tiny(1), objective="cross_entropy + soft",
        output=folder, device="cpu", quiet=True, **options,
    )  # fmt: skip
    assert result.evaluation is not None
    assert result.evaluation.images == 32
    if process == 0:
        torch.save(result.model.state_dict(), Path(folder) / "weights.pt")


def _member(environment: dict[str, str], folder: str, options: dict[str, Any]) -> None:
    os.environ.update(environment)
    one_step(folder, int(environment["RANK"]), **options)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def together(folder: str, count: int = 2, environment: dict[str, str] | None = None, **options: Any) -> None:
    """`one_step` in several processes over gloo."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    members = []
    for rank in range(count):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
        members.append(processes.Process(target=_member, args=(common | own | (environment or {}), folder, options)))
    for member in members:
        member.start()
    for member in members:
        member.join(180)
    assert [member.exitcode for member in members] == [0] * count
