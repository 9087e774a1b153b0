"""Features of a frozen model over a data set: what k-NN and linear probes judge, and what needs no classifier.

    image → forward_features → forward_head(pre_logits=True) → feature          what the classifier would read

n images, C channels of the feature.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core import plain_of
from ..data.kinds import same_images
from ..data.sources import Data, Source, check_channels, check_classes, check_labelled, open_data
from .evaluation import Conditions, as_wide, evaluation_batches, seen_by


@dataclass(frozen=True)
class Features:
    """Features (n, C) in float32 and labels (n,) of a data set, on the device that they were computed on."""

    vectors: Tensor
    labels: Tensor
    classes: tuple[str, ...] | None = None
    damaged: int = 0
    seconds: float = 0.0

    @property
    def num_classes(self) -> int:
        """How many classes there are: those that the data set names, and up to the largest label."""
        return max(len(self.classes or ()), int(self.labels.max()) + 1)


def feature_of(model: nn.Module, images: Tensor) -> Tensor:
    """The features of a batch, (B, C): what the model's classifier reads, whether there is a classifier or not.

    Args:
        model: Any backbone, with methods on it, fused or as it was trained.
        images: (B, C, H, W), normalised for the model.

    >>> import leanformer as lf
    >>> model = lf.create("vit", img_size=16, patch_size=8, embed_dim=8, depth=1, num_heads=1, num_classes=0)
    >>> feature_of(model, torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 8])
    """
    known: Any = model
    if not (hasattr(model, "forward_features") and hasattr(model, "forward_head")):
        raise ValueError(
            f"{type(model).__name__} has no forward_features and forward_head, so its features cannot be read; "
            "take a model that lf.create or lf.adopt made"
        )
    vectors = known.forward_head(known.forward_features(images), pre_logits=True)
    if not isinstance(vectors, Tensor) or vectors.ndim != 2:
        shape = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
        raise ValueError(f"a feature is one vector an image, but {type(model).__name__} pools to {shape}")
    return vectors


def extract_features(
    model: nn.Module,
    data: Source,
    *,
    split: str = "val",
    batch_size: int | None = None,
    device: str | None = None,
    precision: str = "no",
    compile: bool = False,
    workers: int | None = None,
    crop: float | None = None,
) -> Features:
    """The features of a labelled data set, seen as in evaluation; the classes need not be those of the model's head.

    Args:
        model: Any backbone; of an optimised model the plain form is used.
        data: A data set, as `open_data` takes it.
        split: Which part of it.
        batch_size: Images at a time; by default 8 on a CPU and else 256.
        device: cpu, cuda, …; the fastest there is by default.
        precision: no, bf16 or fp16; features are kept in float32.
        compile: Compile the model first.
        workers: Processes that read files; by default as many as there are cores.
        crop: The share of each picture that is looked at, instead of what the model's card states.

    >>> import leanformer as lf
    >>> model = lf.create("vit", img_size=16, patch_size=8, embed_dim=8, depth=1, num_heads=1, num_classes=0)
    >>> images, labels = torch.zeros(6, 3, 16, 16, dtype=torch.uint8), torch.arange(6) % 5
    >>> extract_features(model, (images, labels), device="cpu").vectors.shape
    torch.Size([6, 8])
    """
    opened = open_data(data, split)
    check_labelled(opened)
    how = Conditions.on(device, batch_size, precision, workers)
    model = plain_of(model).to(how.device)
    check_channels(model, opened)
    return collect(model, torch.compile(feature_of) if compile else feature_of, opened, seen_by(model, crop), how)


def collect(
    model: nn.Module,
    read: Callable[[nn.Module, Tensor], Tensor],
    data: Data,
    config: dict[str, Any],
    how: Conditions,
) -> Features:
    """The features of a whole data set.

    Args:
        model: A backbone.
        read: The model and images (B, C, H, W) → features (B, C).
        data: A labelled data set.
        config: What `core.input_of` gives of the model.
        how: Under which conditions; every process goes through all images.
    """
    start, found = time.perf_counter(), []
    with how.judging(model):
        for images, labels, names in evaluation_batches(data, config, replace(how, accelerator=None)):
            good = labels >= 0  # (b,)
            found.append((read(model, as_wide(images, model)).float()[good], labels[good]))
            for name in names:
                data.damage.add(name)
    if not any(len(part) for _, part in found):
        raise ValueError(f"none of the images of {data.name} can be read")
    vectors, labels = (torch.cat(parts) for parts in zip(*found))  # (n, C), (n,)
    return Features(vectors, labels, data.classes, data.damage.count, time.perf_counter() - start)


def check_apart(known: Data, asked: Data) -> None:
    """Refuse to judge a model on the very images that it may look up.

    Args:
        known: The data whose labels are known.
        asked: The data to be judged on.
    """
    if same_images(known, asked):
        raise ValueError(
            f"{asked.name} is both what is learnt from and what is judged, so every image would find itself; "
            "give two splits: a folder or pack with train and val, or others as --train-split and --split"
        )
    check_classes(known, asked)
