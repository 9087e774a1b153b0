"""A recipe is everything that decides the numbers of a training run but the model, the teacher and the data."""

import dataclasses
from typing import Annotated, Any, Literal, Self

from ..fields import Count, Share, Within, check_fields, shown

Length = Annotated[float, Within(0, 10**6)]
Rate = Annotated[float, Within(0, 1000)]
Strength = Annotated[float, Within(0, 100)]
Part = Annotated[float, Within(0, 1, "(]")]
Ratio = Annotated[float, Within(0, 100, "(]")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a training run; the defaults are DeiT's, as all five papers start from them.

    `batch_size` is that of one update, over all processes and accumulation steps, and the learning rates are the
    ones used, never scaled behind your back.

    >>> Recipe(epochs=30, learning_rate=1e-4).replace(batch_size=256).batch_size
    256
    """

    epochs: Annotated[int, Within(1, 10**6)] = 300
    cooldown_epochs: Annotated[int, Within(0, 10**6)] = 0
    """Further epochs at the lowest learning rate."""
    batch_size: Count = 1024
    optimizer: str = "adamw"
    """Any name of timm.optim.list_optimizers()."""
    learning_rate: Annotated[float, Within(0, 1000, "(]")] = 1e-3
    min_learning_rate: Rate = 1e-5
    warmup_epochs: Length = 5
    warmup_learning_rate: Rate = 1e-6
    schedule: Literal["cosine", "constant"] = "cosine"
    schedule_per_epoch: bool = False
    """Change the learning rate once an epoch instead of every update."""
    weight_decay: Strength = 0.05
    layer_decay: Part | None = None
    """Learning rate of a layer = that of the next one times this."""
    clip_grad: Annotated[float, Within(0, 10**9, "(]")] | None = None
    ema: Annotated[float, Within(0, 1, "()")] | None = None
    """Decay of the moving average of the weights."""
    drop_path: Annotated[float, Within(0, 1, "[)")] | None = None
    """Stochastic depth of the last block, growing linearly from 0; None leaves the model's own."""
    drop_path_grows: bool = True
    """False: every block has the stochastic depth of the last."""
    frozen_statistics: bool = False
    """Train in evaluation mode: no drop path, no dropout, running statistics of batch norms fixed."""
    method_schedules: bool = True
    """Follow the methods' schedules (a keep rate that falls over epochs); False: their final settings throughout."""
    objective: str = "auto"
    """Terms as in `cross_entropy + soft:temperature=2`; auto: the methods' own with a teacher, else cross-entropy."""
    crop_scale: tuple[Part, Part] = (0.08, 1.0)
    crop_ratio: tuple[Ratio, Ratio] = (3 / 4, 4 / 3)
    flip: Share = 0.5
    color_jitter: Strength = 0.4
    auto_augment: str | None = "rand-m9-mstd0.5-inc1"
    interpolation: Literal["bicubic", "bilinear", "nearest", "lanczos", "box", "hamming", "random"] = "bicubic"
    """Of the training crops; `random` picks bilinear or bicubic."""
    erasing: Share = 0.25
    mixup: Strength = 0.8
    cutmix: Strength = 1.0
    mixup_switch: Share = 0.5
    label_smoothing: Annotated[float, Within(0, 1, "[)")] = 0.1
    repeats: Annotated[int, Within(1, 1000)] = 1
    """Repeated augmentation: so many differently augmented copies of an image, of fewer images an epoch."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("crop_scale", "crop_ratio"):
            smallest, largest = getattr(self, name)
            if smallest > largest:
                raise ValueError(f"{name} goes from the smallest to the largest, not from {smallest} to {largest}")

    def replace(self, **changes: Any) -> Self:
        """A copy with other settings; an unknown one is refused."""
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise ValueError(f"a recipe has no setting '{name}'; its settings: {', '.join(known)}")
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """All settings as plain JSON values."""
        return {"version": 1, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The recipe that `to_json` wrote."""
        if not isinstance(data, dict):
            raise ValueError(f"a recipe is written as its settings by name, not as {shown(data)}")
        settings = dict(data)
        if settings.pop("version", 1) != 1:
            raise ValueError(f"the recipe is of version {shown(data['version'])}; this leanformer reads version 1")
        return cls().replace(**{k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()})


def plain(**settings: Any) -> Recipe:
    """A recipe without any augmentation, for small data and for tests; the settings override it.

    >>> plain(epochs=2).mixup
    0.0
    """
    nothing = Recipe(
        crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0), flip=0.0, color_jitter=0.0, auto_augment=None, erasing=0.0,
        mixup=0.0, cutmix=0.0, label_smoothing=0.0, warmup_epochs=0,
    )  # fmt: skip
    return nothing.replace(**settings)
