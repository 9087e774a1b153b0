"""DINO: a student learns, without labels, what a moving average of itself says about other crops of an image.

    crops → student backbone → head → s          global crops → teacher backbone → head → t          loss(s, t), ∂ for s
    teacher ← λ teacher + (1 − λ) student        centre ← m centre + (1 − m) mean(t)

It is an objective of the one training loop: crops, loss, averages and the judging by neighbours are its own, and all
that it remembers is part of the checkpoint. The teacher's batch norms normalise by the global crops that the teacher
sees, and their running statistics are of those alone: the student's, which local crops go into as well, are not mixed
in. All other weights and buffers of the teacher are averages of the student's.
"""

import copy
import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core import Objective, Step, input_of
from ..data.sources import Data, Source, Stream, check_channels, check_labelled, open_data
from ..fields import Count, Share, Within, check_fields
from ..train import Evaluation, Features, Recipe, Result, Settings, plain
from ..train.engine import Job, carry_out, source_names
from ..train.features import collect
from ..train.neighbours import judged, neighbour_votes
from .dino_parts import Head, colours, cosine, dino_loss, entropy, moved_centre

Temperature = Annotated[float, Within(0, 100, "(]")]
GLOBALS = 2
MEMORY = 0.9
"""Of the averages by which a collapse is noticed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """DINO's own settings; the defaults are the published ones of ViT-S/16.

    >>> Config(local_crops=6).local_crops
    6
    """

    prototypes: Count = 65536
    hidden: Count = 2048
    bottleneck: Count = 256
    local_crops: Annotated[int, Within(0, 100)] = 8
    local_size: Count = 96
    global_scale: tuple[Share, Share] = (0.4, 1.0)
    local_scale: tuple[Share, Share] = (0.05, 0.4)
    student_temp: Temperature = 0.1
    teacher_temp: Temperature = 0.04
    warmup_teacher_temp: Temperature = 0.04
    warmup_teacher_temp_epochs: Annotated[float, Within(0, 10**6)] = 0
    momentum: Share = 0.996
    """Of the teacher, at the first update; at the last it is 1."""
    centre_momentum: Share = 0.9
    final_weight_decay: Annotated[float, Within(0, 100)] = 0.4
    """The recipe's is that of the first update."""
    freeze_prototypes_epochs: Annotated[float, Within(0, 10**6)] = 1
    grey: Share = 0.2
    blur: tuple[Share, Share, Share] = (1.0, 0.1, 0.5)
    """How often the first, the second global crop and local crops are blurred."""
    solarise: Share = 0.2
    """How often the second global crop is."""
    neighbours: Count = 20
    """How many vote when the features are judged."""

    def __post_init__(self) -> None:
        check_fields(self)


def recipe(**settings: Any) -> Recipe:
    """The published recipe of ViT-S/16 (100 epochs, 1024 images an update); the settings override it.

    >>> recipe(epochs=3).weight_decay
    0.04
    """
    return plain(
        epochs=100, batch_size=1024, learning_rate=2e-3, min_learning_rate=1e-6, warmup_epochs=10,
        warmup_learning_rate=1e-6, weight_decay=0.04, clip_grad=3.0, drop_path=0.1, flip=0.5, color_jitter=0.4,
        crop_ratio=(3 / 4, 4 / 3),
    ).replace(**settings)  # fmt: skip


class DINO(Objective):
    """The objective: it owns the student's head, the teacher with its head, and the centre.

    Args:
        config: DINO's settings.
        bank: Labelled images among which neighbours are looked for; None: every other image of the validation data.
    """

    decays_vectors = False
    centre: Tensor
    mean_answer: Tensor
    spread: Tensor

    def __init__(self, config: Config, bank: Data | None = None):
        super().__init__()
        self.config, self.bank = config, bank
        self.temperature, self.momentum = config.warmup_teacher_temp, config.momentum
        self.said = False

    def prepare(self, student: nn.Module) -> None:
        """Make heads and teacher for this student.

        Args:
            student: A backbone without a classifier.
        """
        known, view = self.config, input_of(student)
        self.view = view
        channels = _channels(student, view, known)
        self.head = Head(channels, known.prototypes, known.hidden, known.bottleneck)
        self.teacher = copy.deepcopy(student).requires_grad_(False)
        self.teacher_head = copy.deepcopy(self.head).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(known.prototypes))
        self.register_buffer("mean_answer", torch.full((known.prototypes,), 1 / known.prototypes))
        self.register_buffer("spread", torch.ones(2))  # entropy of an answer / log K, deviation of features
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
        warm = min(1.0, epoch / known.warmup_teacher_temp_epochs) if known.warmup_teacher_temp_epochs else 1.0
        self.temperature = known.warmup_teacher_temp + (known.teacher_temp - known.warmup_teacher_temp) * warm
        self.momentum = cosine(known.momentum, 1.0, progress)
        self.head.frozen = epoch < known.freeze_prototypes_epochs
        for group in groups:
            first = group.setdefault("first_weight_decay", group["weight_decay"])
            if first:
                group["weight_decay"] = cosine(first, known.final_weight_decay, progress)

    def average(self, student: nn.Module) -> "Momentum":
        """The teacher, as the loop's moving average of the student."""
        return Momentum(self)

    def notices(self) -> list[str]:
        """Tells once that answers or features have become the same for all images."""
        alike, deviation = self.spread.tolist()
        used = entropy(self.mean_answer).exp().item()
        if self.said or (alike < 0.999 and deviation > 0.01 and used > 1.5):
            return []
        self.said = True
        return [
            f"DINO may have collapsed: an answer has {alike:.1%} of the largest entropy, {used:.1f} of "
            f"{self.config.prototypes} prototypes are used, features deviate by {deviation:.2g} of their length"
        ]

    @torch.no_grad()
    def judge(
        self,
        model: nn.Module,
        data: Data,
        config: dict[str, Any],
        device: torch.device,
        batch_size: int | None,
        precision: str = "no",
        workers: int | None = None,
        accelerator: Any = None,
    ) -> Evaluation:
        """k-NN accuracy of the features, called as `train.evaluation.measure` is; `loss` is of the votes' shares."""
        start, was_training = time.perf_counter(), model.training
        model.eval()
        test = collect(model, data, config, device, batch_size, precision, workers)
        if self.bank is not None:
            known = collect(model, self.bank, config, device, batch_size, precision, workers)
        else:
            known, test = (Features(test.vectors[i::2], test.labels[i::2], test.classes) for i in (0, 1))
        model.train(was_training)
        classes, k = max(known.num_classes, test.num_classes), min(self.config.neighbours, len(known.labels))
        votes = neighbour_votes(test.vectors, known.vectors, known.labels, classes, k)  # (q, K)
        found = judged(votes.masked_fill(votes == 0, -math.inf), test.labels, len(known.labels))
        shares = (votes / votes.sum(1, keepdim=True).clamp_min(1e-30)).clamp_min(1e-6)
        loss = F.nll_loss(shares.log(), test.labels).item()
        return Evaluation(
            found.top1, found.top5, loss, found.images, time.perf_counter() - start, test.labels.cpu(),
            votes.argmax(1).cpu(), data.classes, test.damaged,
        )  # fmt: skip

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
        alike = entropy(answers).mean() / math.log(max(2, self.config.prototypes))
        deviation = F.normalize(features, dim=1).std(0).norm()
        self.spread.lerp_(torch.stack([alike, deviation]), 1 - MEMORY)
        self.mean_answer.lerp_(answers.mean((0, 1)), 1 - MEMORY)
        self.centre.copy_(moved_centre(self.centre, teacher, self.config.centre_momentum))


class Momentum:
    """The teacher in the place of the loop's moving average; `module` is its backbone."""

    def __init__(self, objective: DINO):
        self.objective, self.module = objective, objective.teacher

    @torch.no_grad()
    def update(self, student: nn.Module, step: int) -> None:
        """Move teacher and head towards the student; running statistics of batch norms are the teacher's own."""
        mine, decay = self.objective, self.objective.momentum
        for slow, fast in ((mine.teacher, student), (mine.teacher_head, mine.head)):
            own = {id(b) for m in slow.modules() if isinstance(m, _BatchNorm) for b in m.buffers()}
            pairs = zip(slow.state_dict(keep_vars=True).values(), fast.state_dict().values(), strict=True)
            for average, now in pairs:
                if id(average) in own:
                    continue
                average.lerp_(now, 1 - decay) if average.is_floating_point() else average.copy_(now)


def fit(
    model: nn.Module,
    *,
    recipe: Recipe,
    data: Source,
    val: Source | None = None,
    dino: Config | None = None,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    settings: Settings | None = None,
    **options: Any,
) -> Result:
    """Pre-train a backbone without labels; `Result.ema` is the teacher, the better of the two.

    Args:
        model: A backbone without a classifier (num_classes=0) that takes images of several sizes, for a ViT
            dynamic_img_size=True; it is changed itself. Methods such as RePa may be on it.
        recipe: Epochs, rates, batch; `tasks.dino.recipe` gives the published one.
        data: Images to learn from; labels, if there are any, are only used to judge the features by neighbours.
        val: Labelled images to judge the features on; by default the split val, where `data` has labels.
        dino: DINO's own settings.
        output: The run folder; without one nothing is written.
        resume: Let a run found in `output` go on, as if it had never stopped.
        settings: How the run is carried out.
        options: Further settings by name.

    >>> import leanformer as lf
    >>> sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 8, "depth": 1, "num_heads": 1, "num_classes": 0}
    >>> model = lf.create("vit", dynamic_img_size=True, **sizes)
    >>> small = Config(prototypes=16, hidden=8, bottleneck=4, local_crops=2, local_size=8)
    >>> images = torch.zeros(8, 3, 16, 16, dtype=torch.uint8)
    >>> quick = recipe(epochs=1, batch_size=4, warmup_epochs=0)
    >>> fit(model, recipe=quick, data=images, dino=small, device="cpu", quiet=True).updates
    2
    """
    settings, config = (settings or Settings()).replace(**options), dino or Config()
    folder = Path(output) if output is not None else None
    if resume and folder is None:
        raise ValueError("resume needs the run's folder: give output")
    _check(model, recipe, settings)

    def prepare() -> Job:
        train_data, val_data = _open(data, val, settings, recipe)
        for each in (train_data, *([val_data] if val_data is not None else [])):
            check_channels(model, each)
        torch.manual_seed(settings.seed)  # the head's first weights are part of what the seed decides
        objective = DINO(config, train_data if train_data.labelled else None)
        objective.prepare(model)
        unlabelled = dataclasses.replace(train_data, labelled=False)
        return Job(unlabelled, val_data, objective, f"dino {dataclasses.asdict(config)}", source_names(data, val))

    return carry_out(model, recipe, settings, folder, resume, prepare)


def _open(data: Source, val: Source | None, settings: Settings, recipe: Recipe) -> tuple[Data, Data | None]:
    remote = settings.allow_remote
    train_data = open_data(data, "train", settings.seed, recipe.batch_size // settings.accumulate, remote)
    train_data.damage.limit = settings.damage_limit
    named = isinstance(data, str | os.PathLike) and settings.evaluate_every and train_data.labelled
    if val is None and not named:
        return train_data, None
    if isinstance(train_data, Stream) and train_data.labelled:
        raise ValueError("features are judged beside images that can be read again; a stream cannot: evaluate_every=0")
    val_data = open_data(data if val is None else val, "val", remote=remote)
    check_labelled(val_data)
    val_data.damage.limit = settings.damage_limit
    return train_data, val_data


def _check(model: nn.Module, recipe: Recipe, settings: Settings) -> None:
    if getattr(model, "num_classes", None) != 0:
        raise ValueError("DINO trains a backbone without a classifier: create it with num_classes=0")
    if settings.shard:
        raise ValueError("DINO's teacher is not spread over processes: leave shard out")
    for name in ("mixup", "cutmix", "erasing", "ema"):
        if getattr(recipe, name):
            raise ValueError(f"DINO has no {name}: set {name}={None if name == 'ema' else 0} in the recipe")


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
