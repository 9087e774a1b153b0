"""DINO: a student learns, without labels, what a moving average of itself says about other crops of an image.

    crops → student backbone → head → s          global crops → teacher backbone → head → t          loss(s, t), ∂ for s
    teacher ← λ teacher + (1 − λ) student        centre ← m centre + (1 − m) mean(t)

It is an objective of the one training loop: crops, loss, averages and the judging by neighbours are its own, and all
that it remembers is part of the checkpoint. The teacher's batch norms normalise by the global crops that the teacher
sees, and their running statistics are of those alone: the student's, which local crops go into as well, are not mixed
in. All other weights and buffers of the teacher are averages of the student's.
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
from ...train.evaluation import Conditions
from ...train.judging import Neighbours, judge_by_neighbours
from .colours import colours
from .config import Config
from .head import Head
from .maths import cosine, dino_loss, entropy, moved_centre
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
    """

    decays_vectors = False
    centre: Tensor
    mean_answer: Tensor
    spread: Tensor

    def __init__(self, config: Config, bank: Data | None = None):
        super().__init__()
        self.config, self.bank = config, bank
        self.temperature, self.momentum = config.warmup_teacher_temp, config.momentum
        self.epoch, self.said = 0.0, False

    def prepare(self, student: nn.Module) -> None:
        """Make heads and teacher for this student.

        Args:
            student: A backbone without a classifier.
        """
        known, view = self.config, input_of(student)
        self.view = view
        channels = _channels(student, view, known)
        self.head = Head(channels, known.prototypes, known.hidden, known.bottleneck, known.head_norm)
        self.teacher = copy.deepcopy(student).requires_grad_(False)
        self.teacher_head = copy.deepcopy(self.head).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(known.prototypes))
        self.register_buffer("mean_answer", torch.full((known.prototypes,), 1 / known.prototypes))
        self.register_buffer("spread", torch.ones(2))  # entropy of an answer in nats, deviation of features
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
        """Scores of all crops by the student (V, B, K), and the global crops as it saw them (G B, C, H, W)."""
        crops = [self._coloured(index, crop) for index, crop in enumerate(images)]
        seen = torch.cat(crops[:GLOBALS])  # (G B, C, H, W)
        features = [student(seen), *([student(torch.cat(crops[GLOBALS:]))] if len(crops) > GLOBALS else [])]
        scores = self.head(torch.cat(features))  # (V B, K)
        return scores.unflatten(0, (len(crops), -1)), seen, features[0].detach()

    def forward(self, step: Step) -> dict[str, Tensor]:
        student, seen, features = step.student.output
        with torch.no_grad():
            teacher = self.teacher_head(self.teacher(seen)).unflatten(0, (GLOBALS, -1)).float()  # (G, B, K)
        loss = dino_loss(student.float(), teacher, self.centre, self.config.student_temp, self.temperature)
        if self.training:
            self._remember(teacher, features.float())
        return {"dino": loss}

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
        each = self.spread[0].item()
        return {"entropy": each, "information": entropy(self.mean_answer).item() - each}

    def notices(self) -> list[str]:
        """Tells once that answers or features have become the same for all images."""
        found, deviation = self.figures(), self.spread[1].item()
        healthy = found["information"] > LEAST_INFORMATION and deviation > LEAST_DEVIATION
        if self.said or self.epoch < 1 or healthy:
            return []
        self.said = True
        return [
            f"DINO may have collapsed: answers tell images apart by {found['information']:.3f} nats, their entropy is "
            f"{found['entropy']:.2f} of at most {math.log(self.config.prototypes):.2f}, features deviate by "
            f"{deviation:.2g} of their length; head_norm=true, a lower teacher_temp or learning rate may help"
        ]

    def judge(self, model: nn.Module, data: Data, config: dict[str, Any], how: Conditions) -> Neighbours:
        """k-NN accuracy of the features, called as `train.evaluation.measure` is."""
        return judge_by_neighbours(model, data, self.bank, self.config.neighbours, config, how)

    def _coloured(self, index: int, images: Tensor) -> Tensor:
        """Crop number `index`, normalised as it came, with DINO's colours."""
        known, kind = self.config, min(index, GLOBALS)
        if not (known.grey or known.blur[kind] or (known.solarise and index == 1)):
            return images
        mean, std = (images.new_tensor(self.view[key])[:, None, None] for key in ("mean", "std"))
        pixels = (images * std + mean).clamp(0, 1)
        return (colours(pixels, known.grey, known.blur[kind], known.solarise if index == 1 else 0.0) - mean) / std

    @torch.no_grad()
    def _remember(self, teacher: Tensor, features: Tensor) -> None:
        """Move the centre, and the averages by which a collapse is noticed."""
        answers = ((teacher - self.centre) / self.temperature).softmax(-1)  # (G, B, K)
        deviation = F.normalize(features, dim=1).std(0).norm()
        self.spread.lerp_(torch.stack([entropy(answers).mean(), deviation]), 1 - MEMORY)
        self.mean_answer.lerp_(answers.mean((0, 1)), 1 - MEMORY)
        self.centre.copy_(moved_centre(self.centre, teacher, self.config.centre_momentum))


@torch.no_grad()
def _channels(student: nn.Module, view: dict[str, Any], config: Config) -> int:
    """The width of the student's features; refuses one that does not take the crops' sizes."""
    weight, was_training = next(student.parameters()), student.training
    student.eval()
    sizes = [tuple(view["input_size"][1:])] + [(config.local_size,) * 2] * bool(config.local_crops)
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
