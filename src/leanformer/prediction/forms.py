"""The form in which a model runs here: fused, on its device, optimised where that pays, with or without its head."""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core import card_json, card_of, classes_of, fuse, input_of
from ..core.optimised import plain_of
from ..speed import Optimized, optimize
from ..tasks.fitting import task_of
from ..train.evaluation import default_batch
from ..train.objectives import logits_of
from ..visualise.names import class_names_of
from .answers import HALVES, Classification, require_tokens
from .records import digest

WORTH_OPTIMISING = 20_000
"""Pictures from which on a GPU makes up for the minutes that the search for the fastest form takes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What is asked of a model; what of it changes rows is part of a run's manifest."""

    top: int = 5
    probabilities: bool = False
    embed: str | None = None
    kept: bool = False
    classes: tuple[str, ...] | None = None
    batch_size: int | None = None
    device: str | None = None
    dtype: str | None = None
    optimized: bool | None = None
    crop: float | None = None

    def __post_init__(self) -> None:
        if self.top < 0:
            raise ValueError(f"top must be 0 or more, not {self.top}")
        if not (self.asks_classes or self.embed or self.kept):
            raise ValueError("top=0 leaves out the classes, and nothing else is asked for; add embed, for example")
        if self.embed is not None and self.embed not in HALVES:
            raise ValueError(f"embed must be {' or '.join(HALVES)}, not '{self.embed}'")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {self.batch_size}")
        if self.crop is not None and not 0 < self.crop <= 1:
            raise ValueError(f"crop must be above 0 and at most 1, not {self.crop}")
        if self.dtype not in (None, "float32", "bfloat16", "float16"):
            raise ValueError(f"unknown dtype '{self.dtype}'; known: float32, bfloat16, float16")

    @property
    def asks_classes(self) -> bool:
        """Whether rows name classes."""
        return self.top > 0 or self.probabilities

    def on(self) -> torch.device:
        """The device, the fastest there is unless one was named."""
        name = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            return torch.zeros(1, device=name).device
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"there is no device '{name}' here") from error

    def resolved(self, model: nn.Module, rows: int) -> "Settings":
        """The same with nothing left open, but for the device: whoever computes it computes the same rows."""
        device = self.on()
        batch = self.batch_size or tuned_batch(model) or default_batch(device)
        dtype = self.dtype or ("bfloat16" if device.type == "cuda" else "float32")
        worth = device.type == "cuda" and rows >= WORTH_OPTIMISING and not self.kept
        return dataclasses.replace(
            self,
            batch_size=min(batch, rows) if tuned_batch(model) is None else batch,
            dtype=dtype,
            optimized=worth if self.optimized is None else self.optimized,
        )


def tuned_batch(model: nn.Module) -> int | None:
    """The batch size that an optimised model was made for; None for a plain model."""
    return model.choice.batch if isinstance(model, Optimized) else None


def input_config(model: nn.Module, settings: Settings) -> dict[str, Any]:
    """Size, normalisation and crop of what the model sees, with the crop that was asked for."""
    config = input_of(model)
    return config if settings.crop is None else {**config, "crop_pct": settings.crop}


def require_classifier(model: nn.Module) -> None:
    """Refuse a detector or a segmenter, whose answers are no classes of whole images.

    Args:
        model: Any model.
    """
    task = task_of(plain_of(model)).name
    if task != "classification":
        raise ValueError(f"this is a model for {task}; predict and serve answer with classifiers alone so far")


def prepare(model: nn.Module, settings: Settings) -> Classification:
    """The task of a classifier, ready to compute on its device.

    Args:
        model: Any classifier; one made by `lf.optimize` is used as it is.
        settings: What is asked of it, resolved.
    """
    device, plain = settings.on(), plain_of(model)
    names = class_names(plain, settings.classes) if settings.asks_classes else ()
    patches = require_tokens(plain) if settings.kept else 0
    without, classifier = headless(plain, bool(names)) if settings.embed else (None, None)
    if isinstance(model, Optimized) and without is None and not settings.kept:
        forward: Any = _Cast(model)
    else:
        forward = _form(without if without is not None else plain, device, settings)
    length = 0 if without is None else _length(without)
    return Classification(
        forward=forward,
        classes=names,
        top=settings.top,
        probabilities=settings.probabilities,
        embedding=(length, settings.embed) if settings.embed else None,
        classifier=None if classifier is None else _Cast(classifier.to(device, forward.like.dtype)),
        traced=forward.model if settings.kept else None,
        patches=patches,
    )


class _Cast:
    """A model as a function of images of any floating dtype, without gradients."""

    def __init__(self, model: nn.Module):
        self.model = model.eval()
        self.like = next(model.parameters())

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        return logits_of(self.model(images.to(self.like.device, self.like.dtype)))


def _form(model: nn.Module, device: torch.device, settings: Settings) -> _Cast:
    fused = model if getattr(getattr(model, "card", None), "fused", True) else fuse(model, verify=False)
    if settings.optimized:
        if settings.kept:
            raise ValueError("kept: an optimised model does not tell which tokens it drops; leave optimized out")
        assert settings.batch_size is not None and settings.dtype is not None, "settings are resolved"
        return _Cast(optimize(fused, device=device, batch=settings.batch_size, dtype=settings.dtype))
    return _Cast(copy.deepcopy(fused).to(device, getattr(torch, settings.dtype or "float32")))


def headless(model: Any, classes: bool) -> tuple[nn.Module, nn.Module | None]:
    """The model without its head, which gives embeddings, and the head, where classes are asked for as well.

    Args:
        model: A classifier; what comes back computes with its very weights.
        classes: Whether the head is wanted too.

    Raises:
        ValueError: No head can be taken off, or it is more than a layer behind the embedding.
    """
    if not hasattr(model, "reset_classifier") or not hasattr(model, "get_classifier"):
        raise ValueError(f"embed: {type(model).__name__} has no head that can be taken off")
    weights = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    without = copy.deepcopy(model, dict(weights)).eval()  # the modules are copied, the weights are not
    head = copy.deepcopy(without.get_classifier())
    without.reset_classifier(0)
    if not classes:
        return without, None
    like = next(model.parameters())
    images = torch.rand(1, *input_of(model)["input_size"], device=like.device, dtype=like.dtype)
    with torch.inference_mode():
        try:
            same = torch.allclose(
                head(without(images)), logits_of(copy.deepcopy(model, dict(weights)).eval()(images)), atol=1e-4
            )
        except (RuntimeError, TypeError):  # heads in a tuple, or of another shape
            same = False
    if not same:
        raise ValueError(
            f"embed: the head of {type(model).__name__} is more than a layer behind the embedding; give top=0 for "
            "embeddings alone"
        )
    return without, head.eval()


def _length(without: nn.Module) -> int:
    like = next(without.parameters())
    images = torch.zeros(1, *input_of(without)["input_size"], device=like.device, dtype=like.dtype)
    with torch.inference_mode():
        found = without(images)
    if found.ndim != 2:
        raise ValueError(f"embed: without its head the model gives {tuple(found.shape[1:])}, not one vector an image")
    return int(found.shape[1])


def class_names(model: nn.Module, given: Sequence[str] | None) -> tuple[str, ...]:
    """The names of a model's classes: those given, those on its card, ImageNet's for a thousand, or numbers.

    Args:
        model: The model; one without a head is refused.
        given: Names that the user gave, one for each output.
    """
    total = getattr(model, "num_classes", None) or 0
    if not total:
        raise ValueError("this model has no head, so it names no classes; give top=0 and embed for embeddings")
    if given is not None and len(given) != total:
        raise ValueError(f"{len(given)} names of classes were given, but the model has {total} classes")
    return class_names_of(total, classes_of(model) if given is None else given)


def model_card(model: nn.Module) -> dict[str, Any]:
    """The model's card as JSON values, or what is known of a model without one that could rebuild it."""
    try:
        return card_json(plain_of(model))
    except ValueError:
        card = getattr(model, "card", None)
        return {"backbone": card_of(model).backbone if card else "", "class": type(plain_of(model)).__name__}


def model_fingerprint(model: nn.Module) -> str:
    """A hash of a model's weights and structure."""
    plain = plain_of(model)
    texts: list[str | bytes] = [repr(plain)]
    for name, tensor in sorted(plain.state_dict().items()):
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        texts += [f"{name} {tensor.dtype} {tuple(tensor.shape)}", data]
    return digest(texts)
