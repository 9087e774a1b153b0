"""python -m lab dense: latency a picture of the detectors and segmenters of RePaFormer's Table 6, and of PoolFormers.

    eager               the whole model, from the picture to boxes or logits
    backbone            its backbone alone, on the picture as the network sees it
    compiled backbone   the whole model with that part compiled
    optimised           the whole model after lf.optimize for this picture; of a detector, its backbone

Models of one kind are timed in turn in one run. Their weights are fresh: an R-CNN passes its usual 1000 regions on, but
a RetinaNet finds nothing, so that suppression costs it less than it would after training.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import leanformer as lf
from leanformer.core import fold
from leanformer.measure import Timing, choose, console, count, interleave, record, write_result
from leanformer.papers.repa.dense import ADE20K, COCO, SIZES, TABLE6, build_dense
from leanformer.tasks.pyramid import features_of, with_features

from .arguments import device_of

FORMS = ("eager", "backbone", "compiled backbone", "optimised")
POOLFORMERS = ("PoolFormer-S12", "RIFormer-S12", "PoolFormer-S24", "RIFormer-S24")
KINDS = {"RetinaNet": "retinanet", "Mask R-CNN": "mask_rcnn", "Semantic FPN": "fpn"}


@dataclass(frozen=True)
class Entry:
    """A model to time."""

    kind: str
    backbone: str
    build: Callable[[], nn.Module]
    size: tuple[int, int, int]
    paper: str = ""
    """Milliseconds a picture as the paper prints them."""
    unchanged: str = ""
    """The label of the model with the unchanged backbone, where the ratio over it is wanted."""
    picture: Tensor | None = None
    """What is looked at instead of noise: (3, H, W), between 0 and 1."""

    @property
    def label(self) -> str:
        return f"{self.kind}, {self.backbone}"


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Under which models are timed."""

    device: torch.device
    dtype: str = "float32"
    forms: tuple[str, ...] = FORMS
    repeats: int = 7
    search: bool = True
    """Whether `lf.optimize` times its steps, or takes those that are known to pay."""


@dataclass(frozen=True)
class Timed:
    """What was found for a model: milliseconds a picture by form, and half their range as a share."""

    label: str
    kind: str
    backbone: str
    size: tuple[int, ...]
    dtype: str
    parameters: float
    macs: float
    milliseconds: dict[str, float] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    paper: str = ""
    over_unchanged: float | None = None
    """How many times faster, optimised, than the model with the unchanged backbone, optimised; turn by turn."""
    over_unchanged_spread: float | None = None


def entries() -> Iterator[Entry]:
    """The twelve models of Table 6, then PoolFormers and RIFormers; lean ones fused."""
    for kind, backbones in TABLE6.items():
        for backbone, (paper, _) in backbones.items():
            yield Entry(kind, backbone, partial(build_dense, kind, backbone), SIZES[kind], paper)
    for kind in KINDS:
        for backbone in POOLFORMERS:
            size = (3, 512, 512) if kind == "Semantic FPN" else SIZES[kind]
            yield Entry(kind, backbone, partial(_around_poolformer, kind, backbone), size)


def _around_poolformer(kind: str, backbone: str) -> nn.Module:
    name = backbone.lower().replace("-", "_")
    body = lf.create(name)
    body = fold(body) if name.startswith("riformer") else body
    if kind == "Semantic FPN":
        return lf.tasks.segmenter(KINDS[kind], body, ADE20K)
    return lf.tasks.detector(KINDS[kind], body, COCO)


def dense(
    device: str | None = None,
    dtype: str = "float32",
    size: tuple[int, int] | None = None,
    forms: tuple[str, ...] = FORMS,
    repeats: int = 7,
    search: bool = True,
    only: str = "",
    output: Path | None = None,
) -> None:
    """Latency a picture of the detectors and segmenters of RePaFormer's Table 6, and of PoolFormers and RIFormers.

    Example: python -m lab dense --only "RetinaNet, " --output results/dense_h200.json

    Args:
        device: cpu or cuda; by default the GPU if there is one.
        dtype: float32, or bfloat16 or float16 by autocast.
        size: Height and width of the picture instead of 800 x 1280 (detectors) and 512 x 512 (segmenters).
        forms: eager, backbone, compiled backbone, optimised.
        repeats: How often each form is timed, in turn with the others.
        search: Let lf.optimize time its steps on the model; without it, it takes those that are known to pay.
        only: Only the rows whose name contains this text, as "Mask R-CNN, Swin"; several texts are parted by |.
        output: Write the result as JSON after each kind.
    """
    unknown = [form for form in forms if form not in FORMS]
    if unknown:
        raise ValueError(f"unknown form '{unknown[0]}'; known: {', '.join(FORMS)}")
    place = device_of(device)
    every = {entry.label: entry for entry in entries()}
    chosen = [every[label] for label in choose(every, only)]
    how = Conditions(device=place, dtype=dtype, forms=forms, repeats=repeats, search=search)
    rows: list[Timed] = []
    for kind in track(list(dict.fromkeys(entry.kind for entry in chosen)), description="dense"):
        group = [entry for entry in chosen if entry.kind == kind]
        rows += time_group([entry if size is None else replace(entry, size=(3, *size)) for entry in group], how)
        if output is not None:
            write_result(record("dense", [asdict(row) for row in rows], place), output)
    console().print(_table(rows, forms))


def time_group(group: list[Entry], how: Conditions, ready: Callable[[], None] | None = None) -> list[Timed]:
    """Time all forms of some models in turn.

    Args:
        group: the models.
        how: device, dtype, forms, ….
        ready: called when all is compiled and only the timing is left.
    """
    calls, found = {}, []
    for entry in group:
        torch.manual_seed(0)
        with torch.device(how.device):
            model = entry.build().eval()
        drawn = torch.rand(entry.size, generator=torch.Generator().manual_seed(0))
        picture = (drawn if entry.picture is None else entry.picture).to(how.device)
        counted = count(model, tuple(picture.shape))
        found.append(
            Timed(
                entry.label, entry.kind, entry.backbone, tuple(picture.shape), how.dtype, counted.parameters / 1e6,
                counted.macs / 1e9, paper=entry.paper,
            )
        )  # fmt: skip
        calls |= {(entry.label, form): _call(model, picture, form, how) for form in how.forms}
    timings = interleave(calls, how.device, how.repeats, ready=ready)
    return [_filled(row, entry, timings, how.forms) for row, entry in zip(found, group)]


def _filled(row: Timed, entry: Entry, timings: dict[tuple[str, str], Timing], forms: tuple[str, ...]) -> Timed:
    """A row with its times, and the ratio over the unchanged backbone where that was timed too."""
    for form in forms:
        row.milliseconds[form] = 1e3 * timings[row.label, form].median
        row.spread[form] = timings[row.label, form].spread
    theirs = timings.get((entry.unchanged, "optimised"))
    if theirs is None:
        return row
    ratio, spread = timings[row.label, "optimised"].speedup(theirs)
    return replace(row, over_unchanged=ratio, over_unchanged_spread=spread)


def _call(model: Any, picture: Tensor, form: str, how: Conditions) -> Callable[[], Any]:
    """A call that runs a form of a model on one picture; a detector resizes it to its own size."""
    detector = hasattr(model, "transform")
    features = features_of(model)
    seen = model.transform([picture])[0].tensors if detector else picture[None]
    if form == "compiled backbone":
        compiled: Any = torch.compile(features, dynamic=False)
        model = with_features(model, compiled)
    elif form == "optimised":
        size = (seen.shape[1], seen.shape[2], seen.shape[3])
        model = lf.optimize(model, device=how.device, batch=1, dtype=how.dtype, size=size, search=how.search)
    if form == "backbone":
        run: Callable[[], Any] = partial(features, seen)
    else:
        run = partial(model, [picture] if detector else picture[None])

    def call() -> Any:
        low = how.dtype != "float32"
        context = torch.autocast(how.device.type, getattr(torch, how.dtype)) if low else contextlib.nullcontext()
        with torch.inference_mode(), context:
            return run()

    return call


def _table(rows: list[Timed], forms: tuple[str, ...]) -> Table:
    table = Table(title="latency a picture in ms, one at a time", title_justify="left")
    for name in ("model", "picture", "M parameters", "G MACs", *forms, "paper"):
        table.add_column(name, justify="left" if name in ("model", "picture") else "right")
    for row in rows:
        times = (f"{row.milliseconds[form]:.1f} ± {100 * row.spread[form]:.0f}%" for form in forms)
        size = " x ".join(str(side) for side in row.size[1:])
        table.add_row(row.label, size, f"{row.parameters:.1f}", f"{row.macs:.1f}", *times, row.paper)
    return table
