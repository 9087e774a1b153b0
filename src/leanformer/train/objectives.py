"""Objectives that need nothing but a teacher: cross-entropy, distillation of logits, features and relations.

    soft      tau² KL(softmax(t / tau) ‖ softmax(s / tau))        hard      CE(s, argmax t)
    features  mean (S - T)²                                        relations mean (S~ S~ᵀ - T~ T~ᵀ)²

s, t logits of student and teacher; S, T inner outputs (B, N, C); S~ has rows of unit length. Objectives add up with +.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import Block, Objective, Step, Sum
from ..core.spec import parse_spec, refuse_unknown
from ..layers.layout import to_tokens
from ..layers.losses import Distillation, distil, relation_loss

OBJECTIVES: dict[str, Callable[..., Objective]] = {}


def objective(name: str) -> Callable[[Any], Any]:
    """Class decorator: make an objective known to recipes and to the command line under `name`."""

    def register(cls: Any) -> Any:
        OBJECTIVES[name] = cls
        return cls

    return register


def parse_objective(spec: str) -> Objective:
    """Objectives written as `name:option=value,option=value + name`.

    >>> [type(part).__name__ for part in parse_objective("cross_entropy + soft:temperature=2").parts]
    ['CrossEntropy', 'SoftDistillation']
    """
    parts = [_parse_one(part.strip()) for part in spec.split("+")]
    return parts[0] if len(parts) == 1 else Sum(*parts)


def _parse_one(spec: str) -> Objective:
    name, options = parse_spec(spec)
    if name not in OBJECTIVES:
        raise ValueError(f"unknown objective '{name}'; known: {', '.join(sorted(OBJECTIVES))}")
    _check_options(name, options)
    try:
        return OBJECTIVES[name](**options)
    except TypeError as error:
        raise ValueError(f"objective {name}: {error}") from error


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    """Say which option an objective does not have, or needs."""
    every = inspect.signature(OBJECTIVES[name]).parameters.values()
    known = {each.name: each for each in every if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
    if not any(each.kind is each.VAR_KEYWORD for each in every):
        refuse_unknown(f"objective {name}", options, known)
    missing = [each.name for each in known.values() if each.default is each.empty and each.name not in options]
    if missing:
        raise ValueError(f"objective {name} needs {' and '.join(missing)}, as in {name}:{missing[0]}=…")


def logits_of(output: Any) -> Tensor:
    """The class logits in a model's output: the output itself, or the first of several."""
    return output if isinstance(output, Tensor) else output[0]


def distillation_logits_of(output: Any) -> Tensor:
    """The logits of the distillation token, the second of a model's two outputs in training."""
    if isinstance(output, Tensor) or len(output) < 2:
        raise ValueError("the student has no distillation token; create a *_distilled model")
    return output[1]


@objective("cross_entropy")
class CrossEntropy(Objective):
    """Cross-entropy with labels, hard or soft.

    >>> CrossEntropy(weight=0.5).weight
    0.5
    """

    def __init__(self, weight: float = 1.0):
        super().__init__()
        self.weight = weight

    def forward(self, step: Step) -> dict[str, Tensor]:
        loss = F.cross_entropy(logits_of(step.student.output).float(), step.targets)
        return {"cross_entropy": self.weight * loss}


class FromTeacher(Objective):
    """Base of the objectives that learn from what a teacher says, and need no labels."""

    def __init__(self, weight: float = 1.0, teacher: str = "teacher"):
        super().__init__()
        self.weight, self.teacher = weight, teacher

    def needs_labels(self) -> bool:
        return False

    def teacher_taps(self) -> dict[str, frozenset[str]]:
        return {self.teacher: frozenset()}


@objective("soft")
class SoftDistillation(FromTeacher):
    """The teacher's whole distribution, at a temperature.

    >>> SoftDistillation(temperature=2.0) + CrossEntropy(weight=0.1)  # doctest: +ELLIPSIS
    Sum(...
    """

    def __init__(self, temperature: float = 1.0, weight: float = 1.0, teacher: str = "teacher"):
        super().__init__(weight, teacher)
        self.temperature = temperature

    def forward(self, step: Step) -> dict[str, Tensor]:
        student, teacher = (view.logits() for view in (step.student, step.teacher(self.teacher)))
        return {"soft": self.weight * distil(student, teacher, "soft", self.temperature)}


@objective("hard")
class HardDistillation(FromTeacher):
    """The teacher's first choice as label.

    >>> HardDistillation(weight=0.5).teacher_taps()
    {'teacher': frozenset()}
    """

    def forward(self, step: Step) -> dict[str, Tensor]:
        student, teacher = (view.logits() for view in (step.student, step.teacher(self.teacher)))
        return {"hard": self.weight * distil(student, teacher, "hard")}


@objective("distillation_token")
class DistillationToken(Objective):
    """DeiT: the class token learns the labels, the distillation token what the teacher says.

    >>> DistillationToken(kind="hard").weight
    0.5
    """

    def __init__(
        self,
        kind: Distillation = "hard",
        temperature: float = 3.0,
        weight: float = 0.5,
        teacher: str = "teacher",
    ):
        super().__init__()
        if kind not in ("hard", "soft"):
            raise ValueError(f"kind is hard or soft, not '{kind}'")
        self.kind: Distillation = kind
        self.temperature, self.weight, self.teacher = temperature, weight, teacher

    def prepare(self, student: nn.Module) -> None:
        """Make the student return both tokens' logits in training."""
        if not hasattr(student, "set_distilled_training"):
            raise ValueError(f"{type(student).__name__} has no distillation token; create a *_distilled model")
        student.set_distilled_training(True)  # type: ignore[operator]

    def teacher_taps(self) -> dict[str, frozenset[str]]:
        return {self.teacher: frozenset()}

    def forward(self, step: Step) -> dict[str, Tensor]:
        logits = distillation_logits_of(step.student.output).float()
        distilled = distil(logits, step.teacher(self.teacher).logits(), self.kind, self.temperature)
        labels = F.cross_entropy(logits_of(step.student.output).float(), step.targets)
        return {"cross_entropy": (1 - self.weight) * labels, f"{self.kind}_token": self.weight * distilled}


class _Inner(FromTeacher):
    """Base of the objectives that compare inner outputs of student and teacher, path by path.

    Args:
        at: Paths of the student's modules.
        teacher_at: Paths of the teacher's modules; by default the same.
        weight: Of the loss.
        teacher: The teacher's name.
        layout: Where an output with four axes has its channels: NCHW or NHWC; auto: as the block at the path has them.
            Only `relations` reads it.
    """

    def __init__(
        self,
        at: Sequence[str] | str,
        teacher_at: Sequence[str] | str | None = None,
        weight: float = 1.0,
        teacher: str = "teacher",
        layout: str = "auto",
    ):
        super().__init__(weight, teacher)
        self.at = (at,) if isinstance(at, str) else tuple(at)
        other = self.at if teacher_at is None else teacher_at
        self.teacher_at = (other,) if isinstance(other, str) else tuple(other)
        if len(self.at) != len(self.teacher_at):
            raise ValueError(f"{len(self.at)} places in the student but {len(self.teacher_at)} in the teacher")
        if layout not in ("auto", "NCHW", "NHWC"):
            raise ValueError(f"layout is auto, NCHW or NHWC, not '{layout}'")
        self.layout = layout
        self.layouts: dict[str, str | None] = {}  # of each path, once the student is known

    def student_taps(self) -> frozenset[str]:
        return frozenset(self.at)

    def teacher_taps(self) -> dict[str, frozenset[str]]:
        return {self.teacher: frozenset(self.teacher_at)}

    def pairs(self, step: Step) -> list[tuple[Tensor, Tensor]]:
        """Outputs of student and teacher at each place, both of one shape."""
        found = []
        for here, there in zip(self.at, self.teacher_at):
            s, t = step.student.taps[here], step.teacher(self.teacher).taps[there]
            if s.shape != t.shape:
                raise ValueError(
                    f"{here} gives {tuple(s.shape)} in the student and {there} {tuple(t.shape)} in the teacher"
                )
            found.append((s, t))
        return found


@objective("features")
class FeatureDistillation(_Inner):
    """Mean squared difference of inner outputs, a mean over the places.

    >>> sorted(FeatureDistillation(["blocks.3", "blocks.7"]).student_taps())
    ['blocks.3', 'blocks.7']
    """

    def forward(self, step: Step) -> dict[str, Tensor]:
        losses = [F.mse_loss(s.float(), t.float()) for s, t in self.pairs(step)]
        return {"features": self.weight * torch.stack(losses).mean()}


@objective("relations")
class RelationDistillation(_Inner):
    """Mean squared difference of the tokens' cosines with each other, a mean over the places.

    Where outputs are maps, `layout` says where their channels are: NCHW or NHWC; auto: as the block at the path has
    them, and an output of anything else than a block or its slots is refused.

    >>> RelationDistillation("blocks.11", weight=10.0).weight
    10.0
    """

    def prepare(self, student: nn.Module) -> None:
        """Learn in which layout the student's blocks give their tokens.

        Args:
            student: The model that is trained.
        """
        self.layouts = {path: layout_at(student, path) for path in self.at}

    def forward(self, step: Step) -> dict[str, Tensor]:
        pairs = zip(self.at, self.pairs(step))
        losses = [relation_loss(*(self._tokens(path, x) for x in pair)) for path, pair in pairs]
        return {"relations": self.weight * torch.stack(losses).mean()}

    def _tokens(self, path: str, x: Tensor) -> Tensor:
        """The output of the module at a path as tokens (B, N, C)."""
        if x.ndim == 3:
            return x
        layout = self.layouts.get(path) if self.layout == "auto" else self.layout
        if x.ndim != 4 or layout is None:
            raise ValueError(
                f"{path} gives {tuple(x.shape)}, of which relations cannot tell tokens from channels: take a block, or "
                "say layout=NCHW or layout=NHWC for an output of four axes"
            )
        return to_tokens(x, layout)


def layout_at(model: nn.Module, path: str) -> str | None:
    """The layout of what a module of a model gives: its own, or that of the block that it is a slot of, or None.

    >>> import leanformer as lf
    >>> layout_at(lf.create("deit_tiny_patch16_224", depth=1), "blocks.0.mix")
    'NLC'
    """
    modules, (above, _, name) = dict(model.named_modules()), path.rpartition(".")
    block = modules.get(above)
    place = block if isinstance(block, Block) and name in block.slots else modules.get(path)
    return getattr(place, "layout", None)
