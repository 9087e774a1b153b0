"""One way from a model to a file of any format: fuse, rewrite, trace once with torch.export, write, compare."""

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..core import Fusible, card_json, card_of, fuse, input_of, plain_of
from ..tasks.fitting import task_of
from ..tasks.pyramid import features_of
from .parity import Parity, check
from .preprocess import Preprocessed
from .rewrite import without_fft
from .target import Target, file_size, staged

TRACE_BATCH = 2
"""A batch of one would be taken for a constant."""


class Unfused(UserWarning):
    """An export of a model that could still be fused."""


@dataclass(frozen=True)
class Exported:
    """An exported file and how well it agrees with its model."""

    path: Path
    format: str
    parity: Parity
    size: int
    notes: dict[str, Any] = field(default_factory=dict)


def export(
    model: nn.Module,
    path: str | Path,
    target: Target,
    *,
    fused: bool = True,
    preprocess: tuple[int, int] | None = None,
    images: Tensor | None = None,
    max_batch: int | None = None,
    size: tuple[int, int] | Literal["any"] | None = None,
    **options: Any,
) -> Exported:
    """Write `model` in a target's format and prove that the file answers as the model does.

    `fused`: fuse first. `preprocess`: take uint8 images of this height and width instead of normalised ones.
    `images`: real ones for the comparison, as the file takes them. `max_batch`: the largest batch there will be.
    `size`: height and width of a segmenter's images, or "any" (ONNX alone); by default those on its card.
    """
    target.require()
    model, path = plain_of(model), Path(path)
    target.check_name(path)
    dtype = next(model.parameters()).dtype
    if dtype not in target.dtypes:
        known = ", ".join(str(d).removeprefix("torch.") for d in target.dtypes)
        raise ValueError(f"{target.name} takes models in {known}, not {dtype}; convert with model.float()")
    given = copy.deepcopy(model).cpu().eval()
    shapes = shapes_of(given, size, target, preprocess)
    source, shape = source_of(given, fused), shapes[0]
    if preprocess is not None:
        given, source, shape = (
            Preprocessed(given, preprocess),
            Preprocessed(source, preprocess),
            (shape[0], *preprocess),
        )
        shapes = [shape]
    metadata = _metadata(source, target, preprocess, options)
    with staged(path) as temporary:
        with quiet(target.name, type(model).__name__):
            program = trace(source, shape, max_batch or target.max_batch, any_size=len(shapes) > 1)
            target.write(program, temporary, metadata, **options)
            run = target.open(temporary)
            found = [check(given, run, target.name, tuple(each), images) for each in shapes]
        del run
    notes = {} if size is None else {"sizes": [tuple(each[1:]) for each in shapes]}
    return Exported(path, target.name, max(found, key=lambda each: each.error), file_size(path), notes)


def shapes_of(model: nn.Module, size: Any, target: Target, preprocess: Any) -> list[tuple[int, ...]]:
    """The shapes (C, H, W) of images on which a file is compared: one, or several where it takes any.

    Args:
        model: The model.
        size: What was asked for: height and width, "any", or None for the model's own.
        target: The format.
        preprocess: Height and width of raw images, where those are taken.
    """
    own = tuple(input_of(model)["input_size"])
    if size is None:
        return [own]
    if task_of(model).name != "segmentation" or preprocess is not None:
        raise ValueError("size is for detectors and segmenters without preprocessing; leave it out")
    if size != "any":
        return [(own[0], *size)]
    if target.name != "onnx":
        raise ValueError(f"{target.name} takes images of one size; give it as size=(height, width)")
    pools = [each.output_size for each in model.modules() if isinstance(each, nn.AdaptiveAvgPool2d)]
    if any(places not in (1, (1, 1)) for places in pools):
        raise ValueError(
            f"this {type(model).__name__} pools a map to so many places, {pools}, which ONNX can write for one size of "
            "images alone; give it as size=(height, width)"
        )
    step = features_of(model).multiple  # none of these is as high as it is wide, but for the last
    return [(own[0], *each) for each in ((3 * step, 5 * step), (3 * step - 5, 2 * step + 3), (4 * step, 4 * step))]


def trace(
    source: nn.Module, shape: tuple[int, ...], max_batch: int | None = None, any_size: bool = False
) -> ExportedProgram:
    """The model as an ExportedProgram for any batch size and, if asked for, images of any size.

    >>> import leanformer as lf
    >>> tiny = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2).eval()
    >>> len(trace(tiny, (3, 32, 32)).graph_signature.user_inputs)
    1
    """
    weights = (weight.dtype for weight in source.parameters())  # none where a token mixer was all that a part had
    pixels = torch.uint8 if isinstance(source, Preprocessed) else next(weights, torch.float32)
    example = torch.zeros(TRACE_BATCH, *shape, dtype=pixels)
    batch = Dim("batch", min=1, max=max_batch) if max_batch else Dim("batch", min=1)
    with torch.no_grad():
        output = source(example)
        if not isinstance(output, Tensor):
            raise ValueError(f"the model answers with a {type(output).__name__}; only one tensor can be exported")
        sides: dict[int, Any] = {2: Dim.DYNAMIC, 3: Dim.DYNAMIC} if any_size else {}
        return torch.export.export(source, (example,), dynamic_shapes=({0: batch, **sides},))


def source_of(model: nn.Module, fused: bool) -> nn.Module:
    """The model to trace: fused unless told otherwise, and free of operators that targets lack."""
    if not card_of(model).fused:
        if fused:
            model = fuse(model)
        elif any(isinstance(module, Fusible) for module in model.modules()):
            warnings.warn(
                "this model is exported as it is trained, with modules that lf.fuse would fold away",
                Unfused,
                stacklevel=4,
            )
    return without_fft(model).eval()


def _metadata(source: nn.Module, target: Target, preprocess: Any, options: dict[str, Any]) -> dict[str, str]:
    """What every file says of itself: the card, and how it was exported."""
    model = source.model if isinstance(source, Preprocessed) else source
    how = {"format": target.name, "preprocess": preprocess, **options}
    try:
        card: dict[str, Any] = card_json(model)  # type: ignore[arg-type]
    except ValueError as error:  # it runs all the same, it can only not be rebuilt from its name
        card = {"backbone": None, "reason": str(error)}
    return {"leanformer": json.dumps(card), "leanformer_export": json.dumps(how)}


@contextmanager
def quiet(name: str, model: str) -> Iterator[None]:
    """Exporters talk a lot and fail in many ways: one refusal that names the target and the reason."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (ValueError, OSError, KeyboardInterrupt):
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        telling = [line for line in lines if "No conversion rule" in line or "not support" in line.lower()]
        reason = " ".join((telling or lines)[:3])[:400]
        raise ValueError(f"{name} cannot take this {model}: {type(error).__name__}: {reason}") from error
    finally:
        logging.disable(level)
