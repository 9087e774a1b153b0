"""What DINO can be told: its own settings, and the published recipe beside them."""

import dataclasses
from typing import Annotated, Any, Self

from ...core.spec import parse_spec
from ...fields import Count, Share, Within, check_fields
from ...train import Recipe, plain

Temperature = Annotated[float, Within(0, 100, "(]")]
Epochs = Annotated[float, Within(0, 10**6)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """DINO's own settings; the defaults are the published ones of ViT-S/16.

    >>> Config(local_crops=6).local_crops
    6
    """

    prototypes: Count = 65536
    hidden: Count = 2048
    bottleneck: Count = 256
    head_norm: bool = False
    """Batch norms in the projection head. Small backbones begin with nearly the same feature for every image; the
    norms pull those apart, so that the teacher has something to say before it has learnt anything."""
    local_crops: Annotated[int, Within(0, 100)] = 8
    local_size: Count = 96
    global_scale: tuple[Share, Share] = (0.4, 1.0)
    local_scale: tuple[Share, Share] = (0.05, 0.4)
    student_temp: Temperature = 0.1
    teacher_temp: Temperature = 0.04
    warmup_teacher_temp: Temperature = 0.04
    warmup_teacher_temp_epochs: Epochs = 0
    momentum: Share = 0.996
    """Of the teacher, at the first update; at the last it is 1."""
    centre_momentum: Share = 0.9
    final_weight_decay: Annotated[float, Within(0, 100)] = 0.4
    """Weight decay at the last update; the recipe's is that of the first."""
    freeze_prototypes_epochs: Epochs = 1
    grey: Share = 0.2
    blur: tuple[Share, Share, Share] = (1.0, 0.1, 0.5)
    """How often the first, the second global crop and local crops are blurred."""
    solarise: Share = 0.2
    """How often the second global crop is."""
    neighbours: Count = 20
    """How many vote when the features are judged."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("global_scale", "local_scale"):
            smallest, largest = getattr(self, name)
            if not 0 < smallest <= largest:
                raise ValueError(
                    f"{name} goes from the smallest to the largest, both above 0, not {(smallest, largest)}"
                )

    def replace(self, **changes: Any) -> Self:
        """A copy with other settings; an unknown one is refused."""
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise ValueError(f"DINO has no setting '{name}'; its settings: {', '.join(known)}")
        return dataclasses.replace(self, **changes)

    def text(self) -> str:
        """As the command line and a run folder write it: `dino:setting=value,…`, without what is the default.

        >>> Config(prototypes=256, local_scale=(0.1, 0.4)).text()
        'dino:prototypes=256,local_scale=(0.1, 0.4)'
        """
        chosen = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        options = ",".join(f"{name}={value}" for name, value in chosen.items() if value != usual[name])
        return f"dino:{options}" if options else "dino"

    def with_text(self, text: str) -> Self:
        """A copy with the settings that `dino:setting=value,…` names.

        Args:
            text: As `text` writes it.

        >>> Config().with_text("dino:prototypes=256,local_scale=(0.1,0.4)").local_scale
        (0.1, 0.4)
        """
        name, options = parse_spec(text)
        if name != "dino":
            raise ValueError(f"DINO's settings are written as dino:setting=value, not as '{text}'")
        return self.replace(**options)


def recipe(epochs: int = 100, **settings: Any) -> Recipe:
    """The published recipe of ViT-S/16 (100 epochs, 1024 images an update); the settings override it.

    Args:
        epochs: How long; the learning rate grows during a tenth of it, ten epochs at most.
        settings: Any settings of a recipe.

    >>> recipe(epochs=30, learning_rate=1e-3).warmup_epochs
    3.0
    """
    return plain(
        epochs=epochs, batch_size=1024, learning_rate=2e-3, min_learning_rate=1e-6, warmup_epochs=min(10, epochs / 10),
        warmup_learning_rate=1e-6, weight_decay=0.04, clip_grad=3.0, drop_path=0.1, flip=0.5, color_jitter=0.4,
        crop_ratio=(3 / 4, 4 / 3),
    ).replace(**settings)  # fmt: skip
