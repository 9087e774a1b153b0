"""One way from a model to a file of any format: fuse, rewrite, trace once with torch.export, write, compare."""

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..core import Fusible, card_json, card_of, fuse, input_of, plain_of
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
    **options: Any,
) -> Exported:
    """Write `model` in a target's format and prove that the file answers as the model does.

    `fused`: fuse first. `preprocess`: take uint8 images of this height and width instead of normalised ones.
    `images`: real ones for the comparison, as the file takes them. `max_batch`: the largest batch there will be.
    """
    target.require()
    model, path = plain_of(model), Path(path)
    target.check_name(path)
    dtype = next(model.parameters()).dtype
    if dtype not in target.dtypes:
        known = ", ".join(str(d).removeprefix("torch.") for d in target.dtypes)
        raise ValueError(f"{target.name} takes models in {known}, not {dtype}; convert with model.float()")
    given = copy.deepcopy(model).cpu().eval()
    source = source_of(given, fused)
    shape = input_of(given)["input_size"]
    if preprocess is not None:
        given, source, shape = (
            Preprocessed(given, preprocess),
            Preprocessed(source, preprocess),
            (shape[0], *preprocess),
        )
    program = trace(source, shape, max_batch or target.max_batch)
    metadata = _metadata(source, target, preprocess, options)
    with staged(path) as temporary:
        with quiet(target.name, type(model).__name__):
            target.write(program, temporary, metadata, **options)
            run = target.open(temporary)
        parity = check(given, run, target.name, tuple(shape), images)
        del run
    return Exported(path, target.name, parity, file_size(path))


def trace(source: nn.Module, shape: tuple[int, ...], max_batch: int | None = None) -> ExportedProgram:
    """The model as an ExportedProgram for any batch size.

    >>> import leanformer as lf
    >>> tiny = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2).eval()
    >>> len(trace(tiny, (3, 32, 32)).graph_signature.user_inputs)
    1
    """
    pixels = torch.uint8 if isinstance(source, Preprocessed) else next(source.parameters()).dtype
    example = torch.zeros(TRACE_BATCH, *shape, dtype=pixels)
    batch = Dim("batch", min=1, max=max_batch) if max_batch else Dim("batch", min=1)
    with torch.no_grad():
        output = source(example)
        if not isinstance(output, Tensor):
            raise ValueError(f"the model answers with a {type(output).__name__}; only one tensor can be exported")
        return torch.export.export(source, (example,), dynamic_shapes=({0: batch},))


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
