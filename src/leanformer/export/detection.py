"""Detectors as ONNX: one image's whole way, from pixels to boxes, in one graph.

    image (C, H, W), 0 to 1 → resize, normalise, pad → features, heads → suppression → boxes in the image's pixels

torchvision writes its detectors so that TorchScript can trace them, suppression and pasting of masks among it; the
program that `torch.export` makes of a model cannot hold what they decide by what they see. So this is the one format
that goes through torch's older exporter. The file is compared with the model on images of two sizes: each box above a
score must be there, with its label.

C channels, H x W the image, n boxes found.
"""

import contextlib
import copy
import io
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from ..core import card_json, input_of
from ..core.files import check_file
from .onnx_export import ONNX, is_detector, open_session
from .parity import Drift, Parity
from .rewrite import at_one_size, resampling
from .source import Exported, quiet, source_of
from .target import file_size, staged

Boxes = dict[str, Tensor]
SCORE = 0.3
"""Boxes below it are not compared: rounding may tip which of them stays."""
OFF = 1e-3
"""The share of an image's longer side by which a box may be off, and the score by which it may differ."""


class ExactResize(GeneralizedRCNNTransform):
    """Resizes images in a graph to the very sizes that they have in the model.

    torchvision computes these sizes in float64, but in graphs in float32, where the longer side of every tenth size of
    images comes out a pixel short.
    """

    def resize(self, image: Tensor, target: Any = None) -> tuple[Tensor, Any]:
        if not torch.jit.is_tracing():
            return super().resize(image, target)
        given: Any = self
        sides = torch._shape_as_tensor(image)[-2:].double()  # (2,)
        most = [torch.tensor([side], dtype=torch.float64) for side in (given.min_size[-1], given.max_size)]
        ends = sides.amin(0, keepdim=True), sides.amax(0, keepdim=True)  # (1,); the exporter makes numbers float32
        scale = torch.min(most[0] / ends[0], most[1] / ends[1])
        height, width = (sides * scale).floor().long().unbind()
        size: Any = (height, width)
        return F.interpolate(image[None], size, mode="bilinear", align_corners=False)[0], target


def _exact(given: Any) -> ExactResize:
    new = ExactResize(
        min(given.min_size), given.max_size, given.image_mean, given.image_std, size_divisible=given.size_divisible
    )
    new.min_size = given.min_size
    return new.train(given.training)


class NothingCompared(UserWarning):
    """There was no box to compare an exported detector by."""


def detector_to_onnx(
    model: nn.Module,
    path: Path,
    *,
    opset: int,
    fused: bool = True,
    size: tuple[int, int] | Literal["any"] | None = None,
    images: Sequence[Tensor] | None = None,
    score: float = SCORE,
) -> Exported:
    """Write a detector as ONNX and compare it with the model in ONNX Runtime.

    Args:
        model: a detector of `lf.tasks.detector`.
        path: the file, called something.onnx.
        opset: the operator set.
        fused: fuse first.
        size: height and width of the images; None, or "any": any.
        images: real ones (C, H, W), 0 to 1, for the comparison; best of several sizes. By default random ones.
        score: boxes above it are compared.

    Raises:
        Drift: if a box above the score is missing, moved, or of another label; no file is left.
    """
    size = None if size == "any" else size
    _check_dtype(model)
    if images is not None and not len(images):
        raise ValueError("images for the comparison are none; give some, or leave images out for random ones")
    given: Any = copy.deepcopy(model).cpu().eval()
    source: Any = source_of(given, fused)
    shown = list(images) if images is not None else _random(given, size)
    if size is None and resampling(source):
        raise ValueError(
            f"onnx cannot take this {type(model).__name__} for images of any size: its ViT resamples positions with an "
            "antialiasing that this exporter lacks; give one size=(height, width)"
        )
    if size is not None:
        source = at_one_size(source, tuple(given.transform(shown[:1])[0].tensors.shape[2:]))
    source.transform = _exact(source.transform)
    names = list(source([shown[0]])[0])
    axes = {name: {0: "boxes"} for name in names}
    axes |= {"image": {1: "height", 2: "width"}} if size is None else {}
    axes |= {"masks": {0: "boxes", 2: "height", 3: "width"}} if size is None and "masks" in names else {}
    names_of: dict[str, Any] = {"input_names": ["image"], "output_names": names, "dynamic_axes": axes}
    with staged(path) as temporary, quiet("onnx", type(model).__name__):
        with contextlib.redirect_stdout(io.StringIO()):  # where it fails, it prints the whole graph
            torch.onnx.export(source, ([shown[0]],), str(temporary), dynamo=False, opset_version=opset, **names_of)
        _describe(temporary, source, {"format": "onnx", "size": size, "opset": opset})
        error, boxes = compare(given, open_detector(temporary), shown, score)
    if not boxes:
        warnings.warn(
            f"{path}: the model found no box above {score} on the images, so the file was compared by none; give real "
            "images, or a lower score",
            NothingCompared,
            stacklevel=3,
        )
    notes = {"boxes": boxes, "score": score, "sizes": sorted({tuple(x.shape[1:]) for x in shown})}
    counts = (0, len(shown)) if images is not None else (len(shown), 0)
    return Exported(path, "onnx", Parity(error, *counts), file_size(path), notes)


def _check_dtype(model: nn.Module) -> None:
    """Refuse weights of another precision than float32, which the images of the file have."""
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    if dtype != "float32":
        raise ValueError(f"onnx takes detectors in float32, not {dtype}; convert with model.float()")


def open_detector(path: str | Path) -> Callable[[Tensor], Boxes]:
    """An exported detector in ONNX Runtime: an image (C, H, W), 0 to 1 → boxes, labels, scores and masks by name.

    Args:
        path: a file that `lf.export.onnx` wrote of a detector.

    Raises:
        ValueError: for a file that is damaged, or none of a detector.

    >>> open_detector("detector.onnx")(image)["boxes"]  # doctest: +SKIP
    """
    path = Path(path)
    check_file(path)
    ONNX.require()
    try:
        session = open_session(path)
    except Exception as error:  # the runtime's own, for a file that is damaged
        raise ValueError(f"onnxruntime cannot open {path}: {str(error)[:300]}") from error
    names = [output.name for output in session.get_outputs()]
    if not is_detector(session):
        raise ValueError(f"{path} is no detector's file: it answers {', '.join(names)}; lf.export.open_file opens it")

    def run(image: Tensor) -> Boxes:
        return {n: torch.from_numpy(x) for n, x in zip(names, session.run(None, {"image": image.numpy()}))}

    return run


@torch.no_grad()
def compare(
    model: nn.Module, run: Callable[[Tensor], Boxes], images: Sequence[Tensor], score: float
) -> tuple[float, int]:
    """The largest error of a box, as a share of its image, or of a score; and how many boxes were compared.

    Args:
        model: a detector.
        run: what answers in its place.
        images: (C, H, W), 0 to 1.
        score: boxes above it are compared.

    Raises:
        Drift: if the error is above what rounding explains.
    """
    worst, count = 0.0, 0
    for image in images:
        wanted, found = model([image])[0], run(image)
        for index in (wanted["scores"] > score).nonzero()[:, 0].tolist():
            error = _nearest(wanted, found, index, max(image.shape[1:]))
            if not error <= OFF:
                where = [round(x, 1) for x in wanted["boxes"][index].tolist()]
                raise Drift(f"onnx: the box {where} of an image of {tuple(image.shape[1:])} is off by {error:.1e}")
            worst, count = max(worst, error), count + 1
    return worst, count


def _nearest(wanted: Boxes, found: Boxes, index: int, side: int) -> float:
    """How far the box of the same label that is found nearest lies, in its place, its score and its mask."""
    same = found["labels"] == wanted["labels"][index]
    if not same.any():
        return float("inf")
    moved = (found["boxes"][same] - wanted["boxes"][index]).abs().amax(1) / side
    other = (found["scores"][same] - wanted["scores"][index]).abs()
    best = torch.maximum(moved, other).argmin()
    error = torch.maximum(moved, other)[best].item()
    if "masks" in wanted:
        masks = (found["masks"][same][best] - wanted["masks"][index]).abs()
        error = max(error, masks.mean().item())
    return error


def _random(model: nn.Module, size: tuple[int, int] | None) -> list[Tensor]:
    """Images that the network sees in two shapes, upright and lying, or of the one size."""
    chans, short, long = input_of(model)["input_size"]
    sizes = [size] if size is not None else [(short, long), (long, short)]
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(chans, *each, generator=generator) for each in sizes]


def _describe(path: Path, model: nn.Module, how: dict[str, Any]) -> None:
    import onnx

    written = onnx.load(str(path))
    written.producer_name = "leanformer"
    for key, value in {"leanformer": card_json(model), "leanformer_export": how}.items():
        written.metadata_props.add(key=key, value=json.dumps(value))
    onnx.save(written, str(path))
