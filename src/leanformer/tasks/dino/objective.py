"""DINO: a student learns, without labels, what a moving average of itself says about other crops of an image.

    crops → student backbone → head → s          global crops → teacher backbone → head → t          loss(s, t), ∂ for s
    teacher ← λ teacher + (1 − λ) student        centre ← m centre + (1 − m) mean(t)

It is an objective of the one training loop: crops, loss, averages and the judging by neighbours are its own, and all
that it remembers is part of the checkpoint. The teacher's batch norms normalise by the global crops that the teacher
sees, and their running statistics are of those alone: the student's, which local crops go into as well, are not mixed
in. All other weights and buffers of the teacher are averages of the student's.

Nothing in an update waits for the device. Compiled are, beside the student, the teacher, the colours of each kind of
crop, and everything behind the backbones in one.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...core import Objective, Step, input_of
from ...data.kinds import Data
from ...data.rand_augment import constant
from ...train.evaluation import Conditions
from ...train.judging import Neighbours, judge_by_neighbours
from .colours import DRAWS, colours
from .config import Config
from .head import Head
from .maths import cosine, dino_loss, entropy, moved_centre, targets
from .momentum import Momentum

GLOBALS = 2
MEMORY = 0.9
"""How much of the averages by which a collapse is noticed stays at each update."""
LEAST_INFORMATION, LEAST_DEVIATION = 0.05, 0.01
"""Below these, after the first epoch, a collapse is said: nats by which answers tell images apart, and the deviation
of features of length one."""


class DINO(Objective):
    """The objective: it owns the student's head, the teacher with its head, and the centre.

    Args:
        config: DINO's settings.
        bank: Labelled images among which neighbours are looked for, as `train.judging.judge_by_neighbours` takes them.
        compile: Whether to compile what is the objective's own.
    """

    decays_vectors = False
    centre: Tensor
    mean_answer: Tensor
    spread: Tensor
    often: Tensor

    def __init__(self, config: Config, bank: Data | None = None, compile: bool = False):
        super().__init__()
        self.config, self.bank, self.compile_own = config, bank, compile
        self.temperature, self.momentum = config.warmup_teacher_temp, config.momentum
        self.epoch, self.said = 0.0, False

    def prepare(self, student: nn.Module) -> None:
        """Make heads and teacher for this student.

        Args:
            student: A backbone without a classifier.
        """
        known, view = self.config, input_of(student)
        self.view = view
        sizes = [tuple(view["input_size"][1:])] + [(known.local_size,) * 2] * bool(known.local_crops)
        channels = _channels(student, view, sizes)
        self.head = Head(channels, known.prototypes, known.hidden, known.bottleneck, known.head_norm)
        self.teacher = copy.deepcopy(student).requires_grad_(False)
        _channels(self.teacher, view, sizes[:1])  # the last size that it saw is the one that it will see
        self.teacher_head = copy.deepcopy(self.head).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(known.prototypes))
        self.register_buffer("mean_answer", torch.zeros(known.prototypes))  # zeros: nothing was answered yet
        self.register_buffer("spread", torch.zeros(2))  # entropy of an answer in nats, deviation of features
        self.register_buffer("often", _often(known), persistent=False)  # (3, V)
        for part in ("_coloured", "_taught", "_learnt") if self.compile_own else ():
            setattr(self, part, torch.compile(getattr(self, part), dynamic=False))
        self.train(self.training)

    def needs_labels(self) -> bool:
        return False

    def train(self, mode: bool = True) -> "DINO":
        """In training the teacher's batch norms see their batch; nothing else of the teacher is in training mode."""
        super().train(mode)
        if hasattr(self, "teacher"):
            self.teacher.eval()
            for module in self.teacher.modules():
                if isinstance(module, _BatchNorm):
                    module.train(mode)
        return self

    def crops(self, recipe: Any, config: dict[str, Any]) -> Sequence[tuple[Any, tuple[int, int]]]:
        """Two global crops of the model's own size, and the local ones."""
        known, own = self.config, tuple(config["input_size"][1:])
        globals_ = recipe.replace(crop_scale=known.global_scale), own
        locals_ = recipe.replace(crop_scale=known.local_scale), (known.local_size, known.local_size)
        return [globals_] * GLOBALS + [locals_] * known.local_crops

    def answer(self, student: Callable[[Any], Any], images: tuple[Tensor, ...]) -> Any:
        """The student's features of all crops (V B, C), and the global crops as it saw them (G B, C, H, W)."""
        draws = torch.rand(DRAWS, len(images), len(images[0]), device=images[0].device)  # (4, V, B)
        kinds = [part for part in (slice(GLOBALS), slice(GLOBALS, None)) if images[part]]
        crops = [self._coloured(images[part], draws[:, part], self.often[:, part], part.start or 0) for part in kinds]
        return torch.cat([student(crop) for crop in crops]), crops[0]

    def forward(self, step: Step) -> dict[str, Tensor]:
        features, seen = step.student.output
        taught = self._taught(seen)  # (G B, C)
        temperature = self.centre.new_full((), self.temperature)  # as a number it would be compiled in
        # a copy, since the centre moves before compiled code, on its way back, asks for it again
        loss, *found = self._learnt(features, taught, self.centre.clone(), temperature)
        if self.training:
            self._remember(*found)
        return {"dino": loss}

    def _coloured(self, crops: tuple[Tensor, ...], draws: Tensor, often: Tensor, first: int) -> Tensor:
        """Crops of one kind, normalised as they came, in one batch (n B, C, S, S) with DINO's colours.

        Args:
            crops: n of each image, each (B, C, S, S).
            draws: Uniform numbers, (4, n, B).
            often: How often each crop is grey, blurred, solarised, (3, n).
            first: The number of the first of these crops.
        """
        images, known = torch.cat(crops), self.config  # (n B, C, S, S)
        blurs = any(known.blur[min(first + index, GLOBALS)] for index in range(len(crops)))
        solarises = bool(known.solarise) and first == 0
        if not (known.grey or blurs or solarises):
            return images
        grey, blurred, solarised = often.repeat_interleave(len(crops[0]), 1, output_size=len(images))  # (n B,) each
        mean, std = (constant(tuple(self.view[key]), images.device) for key in ("mean", "std"))
        pixels = (images * std + mean).clamp(0, 1)
        pixels = colours(pixels, grey, blurred if blurs else 0.0, solarised if solarises else 0.0, draws.flatten(1))
        return (pixels - mean) / std

    def _taught(self, seen: Tensor) -> Tensor:
        """The teacher's features of the global crops: (G B, C, H, W) → (G B, C)."""
        with torch.no_grad():
            return self.teacher(seen)

    def _learnt(
        self, features: Tensor, taught: Tensor, centre: Tensor, temperature: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The loss; and to be remembered: the teacher's scores, its mean answer (K,), entropy and deviation (2,).

        Args:
            features: The student's of all crops, (V B, C).
            taught: The teacher's of the global crops, (G B, C).
            centre: What is subtracted from the teacher's scores, (K,).
            temperature: The teacher's.
        """
        with torch.no_grad():
            teacher = self.teacher_head(taught).float().unflatten(0, (GLOBALS, -1))  # (G, B, K)
            target = targets(teacher, centre, temperature)  # (G, B, K)
        scores = self.head(features).float().unflatten(0, (-1, teacher.shape[1]))  # (V, B, K)
        loss = dino_loss(scores, target, self.config.student_temp)
        with torch.no_grad():
            seen = features[: len(taught)].detach().float()  # (G B, C)
            deviation = F.normalize(seen, dim=1).std(0).norm()
            return loss, teacher, target.mean((0, 1)), torch.stack([entropy(target).mean(), deviation])

    def advance(self, update: int, total: int, updates_per_epoch: int, groups: list[dict[str, Any]]) -> None:
        """Temperature, momentum, weight decay and frozen prototypes of this update."""
        known, epoch, progress = self.config, update / updates_per_epoch, update / max(1, total - 1)
        self.epoch = epoch
        warm = min(1.0, epoch / known.warmup_teacher_temp_epochs) if known.warmup_teacher_temp_epochs else 1.0
        self.temperature = known.warmup_teacher_temp + (known.teacher_temp - known.warmup_teacher_temp) * warm
        self.momentum = cosine(known.momentum, 1.0, progress)
        self.head.frozen = epoch < known.freeze_prototypes_epochs
        for group in groups:
            first = group.setdefault("first_weight_decay", group["weight_decay"])
            if first:
                group["weight_decay"] = cosine(first, known.final_weight_decay, progress)

    def average(self, student: nn.Module) -> Momentum:
        """The teacher, as the loop's moving average of the student."""
        return Momentum(self)

    def figures(self) -> dict[str, float]:
        """Entropy of the teacher's answers, and the information on the image that an answer holds, both in nats."""
        each, information, _ = self._health()
        return {"entropy": each, "information": information}

    def notices(self) -> list[str]:
        """Tells once that answers or features have become the same for all images."""
        each, information, deviation = self._health()
        healthy = information > LEAST_INFORMATION and deviation > LEAST_DEVIATION
        if self.said or self.epoch < 1 or healthy:
            return []
        self.said = True
        return [
            f"DINO may have collapsed: answers tell images apart by {information:.3f} nats, their entropy is "
            f"{each:.2f} of at most {math.log(self.config.prototypes):.2f}, features deviate by "
            f"{deviation:.2g} of their length; head_norm=true, a lower teacher_temp or learning rate may help"
        ]

    def _health(self) -> tuple[float, float, float]:
        """Entropy and information in nats, and how much features deviate, read from the device in one go."""
        each, deviation, whole = torch.stack([*self.spread, entropy(self.mean_answer)]).tolist()
        return each, whole - each, deviation

    def judge(self, model: nn.Module, data: Data, config: dict[str, Any], how: Conditions) -> Neighbours:
        """k-NN accuracy of the features, called as `train.evaluation.measure` is."""
        return judge_by_neighbours(model, data, self.bank, self.config.neighbours, config, how)

    @torch.no_grad()
    def _remember(self, teacher: Tensor, mean_answer: Tensor, spread: Tensor) -> None:
        """Move the centre, and the averages by which a collapse is noticed; these begin as the first answers are.

        Answers that are no numbers move nothing: the update is skipped, and what they leave here would stay for good.
        """
        share = torch.where(self.mean_answer.any(), 1 - MEMORY, 1.0)
        moved = {
            self.spread: self.spread.lerp(spread, share),
            self.mean_answer: self.mean_answer.lerp(mean_answer, share),
            self.centre: moved_centre(self.centre, teacher, self.config.centre_momentum),
        }
        for kept, new in moved.items():
            kept.copy_(torch.where(new.isfinite().all(), new, kept))


def _often(config: Config) -> Tensor:
    """How often each crop is made grey, blurred, solarised: (3, V)."""
    count = GLOBALS + config.local_crops
    solarised = [config.solarise if index == 1 else 0.0 for index in range(count)]
    return torch.tensor([[config.grey] * count, [config.blur[min(i, GLOBALS)] for i in range(count)], solarised])


@torch.no_grad()
def _channels(student: nn.Module, view: dict[str, Any], sizes: list[tuple[int, int]]) -> int:
    """The width of the student's features; refuses one that does not take the crops' sizes."""
    weight, was_training = next(student.parameters()), student.training
    student.eval()
    try:
        for size in sizes:
            found = student(torch.zeros(1, view["input_size"][0], *size, device=weight.device, dtype=weight.dtype))
    except (AssertionError, RuntimeError) as error:
        told = str(error).partition("\n")[0]
        raise ValueError(
            f"{type(student).__name__} does not take crops of {size[0]} x {size[1]} pixels ({told}); create it with "
            "dynamic_img_size=True, or set another local_size, or local_crops=0"
        ) from error
    finally:
        student.train(was_training)
    if not isinstance(found, Tensor) or found.ndim != 2:
        raise ValueError(f"{type(student).__name__} does not answer with one feature an image, so DINO cannot train it")
    return found.shape[1]
