"""The form in which a model runs here: fused, on its device, optimised where that pays, with or without its head."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core import card_json, card_of, classes_of, fuse, input_of
from ..core.optimised import plain_of
from ..speed import Optimized, optimize
from ..tasks.detection import finds_masks
from ..tasks.detection_metrics import require_coco
from ..tasks.pyramid import features_of, random_images
from ..train.evaluation import Conditions
from ..train.objectives import logits_of
from ..visualise.names import class_names_of
from .answers import Answers, Classification, require_tokens
from .dense import Objects, Regions
from .records import digest
from .settings import Settings, task_name
from .views import LONGEST, MiddleView, View, WholeView

PRECISIONS = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}
"""dtype → what evaluation calls it."""


def input_config(model: nn.Module, settings: Settings) -> dict[str, Any]:
    """Size, normalisation and crop of what the model sees, with the crop that was asked for."""
    config = input_of(model)
    return config if settings.crop is None else {**config, "crop_pct": settings.crop}


def view_of(model: nn.Module, settings: Settings) -> View:
    """How the model sees pictures.

    Args:
        model: Any model.
        settings: What is asked of it.
    """
    config, task = input_config(model, settings), task_name(model)
    if task == "classification":
        return MiddleView(config)
    transform: Any = getattr(plain_of(model), "transform", None)  # a detector resizes pictures by itself
    return WholeView(config["input_size"][0], transform.max_size if task == "detection" else LONGEST)


def prepare(model: nn.Module, settings: Settings) -> Answers:
    """The task of a model, ready to compute on its device.

    Args:
        model: Any model; a classifier made by `lf.optimize` is used as it is, of others the plain form.
        settings: What is asked of it, resolved.
    """
    makers = {"classification": _classes_of, "detection": _objects_of, "segmentation": _regions_of}
    return makers[task_name(model)](model, settings)


def _objects_of(model: nn.Module, settings: Settings) -> Objects:
    names, device = class_names(plain_of(model), settings.classes), settings.on()
    plain: Any = _fused(plain_of(model))
    detector = plain.answering_above(settings.score or 0.0)
    if finds_masks(detector):
        require_coco("masks are encoded")
    detector = copy.deepcopy(detector).to(device).eval()
    if not all(map(_is_finite, detector.backbone(random_images(features_of(detector))).values())):
        raise ValueError("the model's maps are not finite numbers; its weights are broken")

    how = Conditions(device, precision=PRECISIONS[settings.dtype or "float32"])

    @torch.inference_mode()
    def run(images: list[Tensor]) -> list[dict[str, Tensor]]:
        with how.judging(detector):
            return detector.found(images) if images else []

    return Objects(run, names, finds_masks(detector))


def _regions_of(model: nn.Module, settings: Settings) -> Regions:
    names, device = class_names(plain_of(model), settings.classes), settings.on()
    segmenter, config = copy.deepcopy(_fused(plain_of(model))).to(device).eval(), input_of(model)

    how = Conditions(device, precision=PRECISIONS[settings.dtype or "float32"])

    @torch.inference_mode()
    def run(images: Tensor) -> Tensor:
        with how.judging(segmenter):
            return segmenter(images)

    return Regions(run, names, config["mean"], config["std"])


@torch.no_grad()
def _is_finite(maps: Tensor) -> bool:
    return bool(maps.isfinite().all())


def _classes_of(model: nn.Module, settings: Settings) -> Classification:
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
    fused = _fused(model)
    if settings.optimized:
        if settings.kept:
            raise ValueError("kept: an optimised model does not tell which tokens it drops; leave optimized out")
        assert settings.batch_size is not None and settings.dtype is not None, "settings are resolved"
        return _Cast(optimize(fused, device=device, batch=settings.batch_size, dtype=settings.dtype))
    return _Cast(copy.deepcopy(fused).to(device, getattr(torch, settings.dtype or "float32")))


def _fused(model: nn.Module) -> nn.Module:
    return model if getattr(getattr(model, "card", None), "fused", True) else fuse(model, verify=False)


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
