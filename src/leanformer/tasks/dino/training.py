"""dino.fit: the one training loop, told what DINO needs: crops of images, no labels, features judged by neighbours."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...data.sources import Data, Source, Stream, check_fit, check_labelled, open_data
from ...train import Recipe, Result, Settings, read_run
from ...train.checkpoint import NAMES
from ...train.engine import Job, carry_out, source_names
from .config import Config
from .objective import DINO
from .views import PreTraining


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
            dynamic_img_size=True; it is changed itself. Methods may be on it.
        recipe: Epochs, rates, batch; `tasks.dino.recipe` gives the published one.
        data: Images to learn from; labels, if there are any, are only used to judge the features by neighbours.
        val: Labelled images to judge the features on; by default the split val, where `data` has labels.
        dino: DINO's own settings.
        output: The run folder; without one nothing is written.
        resume: Let a run found in `output` go on, as if it had never stopped; one with other settings is refused.
        settings: How the run is carried out.
        options: Further settings by name.

    >>> import leanformer as lf
    >>> sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 8, "depth": 1, "num_heads": 1, "num_classes": 0}
    >>> model = lf.create("vit", dynamic_img_size=True, **sizes)
    >>> small = Config(prototypes=16, hidden=8, bottleneck=4, local_crops=2, local_size=8)
    >>> images = torch.zeros(8, 3, 16, 16, dtype=torch.uint8)
    >>> quick = lf.tasks.dino.recipe(epochs=1, batch_size=4, warmup_epochs=0)
    >>> fit(model, recipe=quick, data=images, dino=small, device="cpu", quiet=True).updates
    2
    """
    settings, config = (settings or Settings()).replace(**{"sync_bn": True, **options}), dino or Config()
    folder = Path(output) if output is not None else None
    if resume and folder is None:
        raise ValueError("resume needs the run's folder: give output")
    _check(model, recipe, settings)

    def prepare() -> Job:
        if folder is not None:
            _check_same(folder, config)
        train_data, val_data = _open(data, val, settings, recipe)
        check_fit(model, train_data, val_data)
        if val_data is not None:
            check_fit(model, val_data)
        torch.manual_seed(settings.seed)  # the head's first weights are part of what the seed decides
        # what several processes exchange in the middle of a module is left as it is
        alone = not (dist.is_initialized() and dist.get_world_size() > 1)
        objective = DINO(config, train_data if train_data.labelled else None, settings.compile and alone)
        objective.prepare(model)
        unlabelled = dataclasses.replace(train_data, labelled=False)
        named = source_names(data, val)
        return Job(unlabelled, val_data, objective, config.text(), named, task=PreTraining())

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


def _check_same(folder: Path, config: Config) -> None:
    """Refuse to go on with other settings than those that the run in a folder has had."""
    if not (folder / "run.json").exists() or not any((folder / name).exists() for name in NAMES):
        return
    objective = read_run(folder)["objective"]
    if objective.partition(":")[0] != "dino":
        raise ValueError(f"{folder} holds a run that learns by {objective}, not by DINO")
    theirs, mine = (dataclasses.asdict(each) for each in (Config().with_text(objective), config))
    changed = [f"{name} was {theirs[name]}, now {mine[name]}" for name in mine if mine[name] != theirs[name]]
    if changed:
        raise ValueError(f"the run in {folder} has other settings of DINO: {'; '.join(changed)}")


def _check(model: nn.Module, recipe: Recipe, settings: Settings) -> None:
    if getattr(model, "num_classes", None) != 0:
        raise ValueError("DINO trains a backbone without a classifier: create it with num_classes=0")
    if settings.shard:
        raise ValueError("DINO's teacher is not spread over processes: leave shard out")
    for name in ("mixup", "cutmix", "erasing", "ema"):
        if getattr(recipe, name):
            raise ValueError(f"DINO has no {name}: set {name}={None if name == 'ema' else 0} in the recipe")
