"""What differs between one process and many: the accelerator, and gathering states that are spread over processes."""

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn
from torch.distributed.checkpoint import state_dict as distributed

from .runs import Settings

WHOLE = distributed.StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=False)


def accelerator_for(settings: Settings, folder: Path | None) -> Accelerator:
    """An accelerator for these settings; how many processes there are it learns from its launcher."""
    AcceleratorState._reset_state()  # an earlier run in this process may have had another precision
    if settings.device and settings.device.startswith("cuda:"):
        torch.cuda.set_device(settings.device)
    tracking = {"log_with": "tensorboard", "project_dir": str(folder)} if settings.tensorboard and folder else {}
    accelerator = Accelerator(
        cpu=settings.device == "cpu",
        mixed_precision=settings.precision,
        # some objectives leave a head without gradient in some epochs
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
        **tracking,  # type: ignore[arg-type]
    )
    if tracking:
        accelerator.init_trackers("tensorboard")
    return accelerator


def is_sharded(accelerator: Accelerator) -> bool:
    """Whether the parameters are spread over the processes (FSDP)."""
    return bool(getattr(accelerator, "is_fsdp2", False))


def states_of(accelerator: Accelerator, wrapped: nn.Module, optimizer: Any) -> dict[str, Any]:
    """Model and optimizer state, whole, in this process."""
    if is_sharded(accelerator):
        model, optim = distributed.get_state_dict(wrapped, optimizer.optimizer, options=WHOLE)
        return {"learner": model, "optimizer": optim}
    learner = accelerator.unwrap_model(wrapped)
    return {"learner": learner.state_dict(), "optimizer": optimizer.optimizer.state_dict()}


def load_states(accelerator: Accelerator, wrapped: nn.Module, optimizer: Any, state: dict[str, Any]) -> None:
    """The way back of `states_of`."""
    if is_sharded(accelerator):
        distributed.set_state_dict(
            wrapped, optimizer.optimizer, model_state_dict=state["learner"], optim_state_dict=state["optimizer"],
            options=WHOLE,
        )  # fmt: skip
        return
    accelerator.unwrap_model(wrapped).load_state_dict(state["learner"])
    optimizer.optimizer.load_state_dict(state["optimizer"])


def whole_model(accelerator: Accelerator, wrapped: nn.Module, model: nn.Module) -> nn.Module:
    """The student with all its weights in this process."""
    if not is_sharded(accelerator):
        return model
    weights = distributed.get_model_state_dict(wrapped, options=WHOLE)
    raise NotImplementedError(str(len(weights)))
