"""What differs between one process and many: the accelerator, sharding, and states gathered from all processes.

Copies of the model in every process (DDP) are accelerate's; shards (FSDP2) are made with torch's `fully_shard`, block
by block, since accelerate shards on accelerators alone and a run on CPUs should do what one on GPUs does.
"""

import contextlib
import importlib.util
import os
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn
from torch.distributed.checkpoint import state_dict as distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from ..core import blocks_of
from .runs import Settings

LARGE = 1_000_000
"""Parameters from which on a model gains by bf16 on a CPU: a ViT of 96 channels gains a seventh, of 192 two thirds."""
WHOLE = distributed.StateDictOptions(full_state_dict=True, cpu_offload=True)


def accelerator_for(settings: Settings, folder: Path | None) -> Accelerator:
    """An accelerator for these settings; how many processes there are it learns from its launcher."""
    AcceleratorState._reset_state()  # an earlier run in this process may have had another precision
    if settings.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ValueError("TensorBoard is not installed; pip install 'leanformer[track]' brings it")
    if settings.device and settings.device.startswith("cuda:"):
        torch.cuda.set_device(settings.device)
    tracking = {"log_with": "tensorboard", "project_dir": str(folder)} if settings.tensorboard and folder else {}
    # of processes that a launcher started where there is no GPU, each would take itself for the only one
    without_gpu = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.accelerator.is_available()
    accelerator = Accelerator(
        cpu=settings.device == "cpu" or without_gpu,
        mixed_precision=settings.precision,
        # some objectives leave a head without gradient in some epochs
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
        **tracking,  # type: ignore[arg-type]
    )
    if settings.precision == "fp16" and accelerator.device.type == "cpu":  # accelerate would train in float32
        raise ValueError("fp16 needs a GPU; on a CPU use bf16, or no for float32")
    if settings.shard and accelerator.num_processes == 1:
        raise ValueError("shard spreads a model over processes, but there is one; start several with torchrun")
    return accelerator


def quick_precision(model: nn.Module, device: torch.device) -> Literal["no", "bf16"]:
    """The precision in which a model is trained fastest: bf16 on GPUs and on CPUs with instructions for it.

    On a CPU rounding costs a small model more than its products gain.

    Args:
        model: what is trained.
        device: where.

    >>> quick_precision(nn.Linear(8, 8), torch.device("cpu"))
    'no'
    """
    if device.type != "cpu":
        return "bf16" if device.type == "cuda" else "no"
    can = getattr(torch.cpu, "get_capabilities", dict)()  # not every torch tells
    large = sum(parameter.numel() for parameter in model.parameters()) >= LARGE
    return "bf16" if large and (can.get("avx512_bf16") or can.get("amx_bf16")) else "no"


def shard(model: nn.Module, accelerator: Accelerator) -> None:
    """Spread a model over all processes, each of its blocks as a unit; its parameters become shards in place."""
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    for block in blocks_of(model).values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def spread(learner: nn.Module, average: nn.Module | None, settings: Settings, accelerator: Accelerator) -> nn.Module:
    """The learner, copied to or, with the moving average, sharded over the processes."""
    if not settings.shard:
        return accelerator.prepare_model(learner)
    shard(learner, accelerator)
    if average is not None:
        shard(average, accelerator)
    return learner


def is_sharded(model: nn.Module) -> bool:
    """Whether a model's parameters are spread over the processes."""
    return isinstance(model, FSDPModule)


def without_sync(accelerator: Accelerator, wrapped: nn.Module) -> Any:
    """A context whose backward passes add to the gradients without exchanging them between processes."""
    return _no_exchange(wrapped) if isinstance(wrapped, FSDPModule) else accelerator.no_sync(wrapped)


@contextlib.contextmanager
def _no_exchange(wrapped: FSDPModule):
    wrapped.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        wrapped.set_requires_gradient_sync(True)


def whole_state(model: nn.Module) -> dict[str, Any]:
    """The model's state with every tensor whole; all processes must ask for it."""
    return distributed.get_model_state_dict(model, options=WHOLE) if is_sharded(model) else model.state_dict()


def load_whole_state(model: nn.Module, state: dict[str, Any]) -> None:
    """The way back of `whole_state`."""
    if is_sharded(model):
        distributed.set_model_state_dict(model, state, options=WHOLE)
    else:
        model.load_state_dict(state)


def optimizer_state(learner: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state with every tensor whole; all processes must ask for it."""
    if is_sharded(learner):
        return distributed.get_optimizer_state_dict(learner, optimizer, options=WHOLE)
    return optimizer.state_dict()


def load_optimizer_state(learner: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """The way back of `optimizer_state`."""
    if is_sharded(learner):
        distributed.set_optimizer_state_dict(learner, optimizer, state, options=WHOLE)
    else:
        optimizer.load_state_dict(state)


def filled(empty: nn.Module, state: dict[str, Any], prefix: str = "") -> nn.Module:
    """`empty` with the weights in a whole state, of which only the first process has one."""
    if state:
        empty.load_state_dict({key.removeprefix(prefix): v for key, v in state.items() if key.startswith(prefix)})
    return empty
