"""Optimizer, learning rates and moving average, all timm's, for a student and the parameters of its objective."""

from typing import Any

import torch
from timm.optim import create_optimizer_v2, param_groups_layer_decay, param_groups_weight_decay
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from ..core import Objective
from .recipe import Recipe


def parameter_groups(student: nn.Module, objective: Objective, recipe: Recipe) -> list[dict[str, Any]]:
    """The student's parameters (no decay for vectors; layer decay if asked), then the objective's at their own rate.

    An objective sets the factor on its learning rate by the attribute `learning_rate_scale`.
    """
    no_decay = student.no_weight_decay() if hasattr(student, "no_weight_decay") else set()  # type: ignore[operator]
    if recipe.layer_decay is None:
        groups = param_groups_weight_decay(student, recipe.weight_decay, no_weight_decay_list=no_decay)
    else:
        groups = param_groups_layer_decay(
            student, recipe.weight_decay, no_weight_decay_list=no_decay, layer_decay=recipe.layer_decay
        )
    groups = [dict(group) for group in groups if group["params"]]
    for (scale, decays), parameters in _by_rate(objective).items():
        decay = recipe.weight_decay if decays else 0.0
        groups.append({"params": parameters, "weight_decay": decay, "lr_scale": scale})
    return groups


def _by_rate(objective: Objective) -> dict[tuple[float, bool], list[nn.Parameter]]:
    """The objective's parameters by learning-rate factor and whether they decay, as the innermost owner has it."""
    owner: dict[int, tuple[tuple[float, bool], nn.Parameter]] = {}
    for module in objective.modules():  # from the outside in: the inner one has the last word
        if isinstance(module, Objective):
            scale = float(getattr(module, "learning_rate_scale", 1.0))
            for parameter in module.parameters():
                if parameter.requires_grad:
                    decays = module.decays_vectors or parameter.ndim > 1
                    owner[id(parameter)] = ((scale, decays), parameter)
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for kind, parameter in owner.values():
        groups.setdefault(kind, []).append(parameter)
    return groups


def make_optimizer(groups: list[dict[str, Any]], recipe: Recipe, device: torch.device) -> torch.optim.Optimizer:
    """timm's optimizer of the recipe's name; the fused kernel where torch has one."""
    if not groups:
        raise ValueError("the model has no parameter that learns: switch them on with model.requires_grad_(True)")
    fused: dict[str, Any] = {"fused": True} if device.type == "cuda" and recipe.optimizer in ("adam", "adamw") else {}
    try:
        return create_optimizer_v2(
            groups, opt=recipe.optimizer, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, **fused
        )
    except (ValueError, AssertionError) as error:
        raise ValueError(f"no optimizer '{recipe.optimizer}': {error}") from error


class Rates:
    """Learning rates as a function of the update: nothing but the update's number has to be remembered."""

    def __init__(self, optimizer: torch.optim.Optimizer, recipe: Recipe, updates_per_epoch: int):
        self.per_epoch = recipe.schedule_per_epoch
        self.updates_per_epoch = updates_per_epoch
        self.scheduler: Scheduler
        self.scheduler, _ = create_scheduler_v2(  # type: ignore[assignment]
            optimizer,
            sched="cosine" if recipe.schedule == "cosine" else "step",
            num_epochs=recipe.epochs,
            decay_epochs=10**9,
            min_lr=recipe.min_learning_rate,
            warmup_lr=recipe.warmup_learning_rate,
            warmup_epochs=recipe.warmup_epochs,  # type: ignore[arg-type]
            cooldown_epochs=recipe.cooldown_epochs,
            step_on_epochs=self.per_epoch,
            updates_per_epoch=updates_per_epoch,
        )

    def set(self, update: int) -> None:
        """Write the rates of this update into the optimizer's groups."""
        if self.per_epoch:
            self.scheduler.step(update // self.updates_per_epoch)
        else:
            self.scheduler.step_update(update)


class Average(ModelEmaV3):
    """timm's moving average of all tensors, which are looked up once: that takes longer than to average them.

    >>> student = nn.Linear(2, 2)
    >>> average = Average(student, decay=0.5)
    >>> _ = nn.init.ones_(student.weight)
    >>> average.update(student, step=1)
    >>> average.module.weight.mean().item()
    1.0
    """

    _known: tuple[nn.Module, list[Tensor], list[Tensor], list[tuple[Tensor, Tensor]]] | None = None
    """The model that was averaged last, its numbers and their averages, and what is only copied."""

    def apply_update_(self, model: nn.Module, decay: float) -> None:
        if not self.foreach:
            return super().apply_update_(model, decay)
        if self._known is None or self._known[0] is not model:
            sides = (side.state_dict(keep_vars=True).values() for side in (self.module, model))
            pairs = list(zip(*sides, strict=True))
            averages, tensors = ([p[side] for p in pairs if p[0].is_floating_point()] for side in (0, 1))
            self._known = model, averages, tensors, [p for p in pairs if not p[0].is_floating_point()]
        _, averages, tensors, counters = self._known
        torch._foreach_lerp_(averages, tensors, weight=1.0 - decay)
        for mine, theirs in counters:
            mine.copy_(theirs)


def make_average(student: nn.Module, recipe: Recipe) -> Average | None:
    """The moving average of the student's weights, or None."""
    return None if recipe.ema is None else Average(student, decay=recipe.ema, use_warmup=True)
