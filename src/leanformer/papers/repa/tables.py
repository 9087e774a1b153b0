"""RePaFormer's published figures: Tables 1 to 6 and 8, before and after fusing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from ...backbones import create
from ...core import apply, blocks_of, fold
from ...measure import Count, count_modules
from ...methods import SLAB, RePa
from ..table import Convention, PaperTables, Row, norm_elements
from . import dense
from .models import BACKBONES, VANILLA, idle_ratio_of

NORMS = (nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d)


def build(model: str, idle_ratio: float | None = None, fused: bool = False, **more: Any) -> nn.Module:
    """The vanilla backbone, or the RePaFormer in its trained or fused form; with more arguments of the backbone."""
    if idle_ratio is None:
        name, arguments = VANILLA[model]
        return create(name, **arguments, **more)
    name, arguments = BACKBONES[model]
    rounding = "floor" if model.startswith("PoolFormer") else "ceil"
    trained = apply(create(name, **arguments, **more), RePa(idle_ratio=idle_ratio, rounding=rounding))
    return fold(trained) if fused else trained


def slab(model: str, fused: bool = True) -> nn.Module:
    """The backbone with SLAB's batch norms, before attention too where that is plain."""
    name, arguments = VANILLA[model]
    trained = apply(create(name, **arguments), SLAB(attention=model.startswith("DeiT")))
    return fold(trained) if fused else trained


def without_attention(count: Count, model: nn.Module) -> tuple[float, float]:
    """Parameters in M and MACs in G without the products of attention, which are in no linear layer, and with norms.

    Two operations count for each element that a norm puts out.
    """
    modules = count_modules(model)
    products = 0
    for path in blocks_of(model):
        mixer = dict(model.get_submodule(f"{path}.mix").named_modules())
        linear = [name for name, module in mixer.items() if isinstance(module, nn.Linear | nn.Conv2d)]
        products += modules[f"{path}.mix"].macs - sum(modules[f"{path}.mix.{name}"].macs for name in linear)
    return count.parameters / 1e6, (count.macs - products + 2 * norm_elements(model, NORMS)) / 1e9


CONVENTIONS: dict[str, Convention | None] = {
    "Table 1": without_attention, "Table 2": None, "Table 3": without_attention, "Table 4": without_attention,
    "Table 5": without_attention, "Table 8": None,
}  # fmt: skip
"""How each table counts; None: as we do, with attention."""
LEFT_OUT = "counted without attention, unlike the rest of the table"
INCLUDED = "counted with attention, unlike the rest of the table"


@dataclass(frozen=True)
class Figures:
    """Parameters in M, MACs in G and images/s as printed, and why the MACs do not follow as the table counts, if so."""

    params: str
    macs: str
    speed: str
    differs: str = ""


ELEMENTWISE = "the paper has 5.0 for the vanilla model, which multiplies as much"
ROUNDED_UP = "the PoolFormer paper has 11.9 M and 1.8 G"

UNDER = "4.2 as the rest of the table counts"

TABLE1: dict[str, tuple[Figures, Figures, str]] = {
    "DeiT-Tiny": (Figures("5.7", "1.1", "2333.6"), Figures("3.5", "0.6", "4295.0"), "64.3"),
    "DeiT-Small": (Figures("22.1", "4.3", "1037.1"), Figures("13.2", "2.5", "1975.5"), "77.1"),
    "DeiT-Base": (Figures("86.6", "16.9", "336.6"), Figures("51.1", "10.6", "659.5", INCLUDED), "81.4"),
    "ViT-Large": (Figures("304.5", "59.8", "102.7"), Figures("178.4", "34.9", "207.2"), "82.0"),
    "ViT-Huge": (Figures("632.5", "124.4", "53.0"), Figures("369.9", "72.6", "103.8"), "81.4"),
    "Swin-Tiny": (Figures("28.3", "4.4", "611.8"), Figures("17.5", "2.6", "1026.5"), "78.5"),
    "Swin-Small": (Figures("49.7", "8.6", "367.6"), Figures("29.9", "5.1", "624.0"), "81.6"),
    "Swin-Base": (Figures("87.9", "15.2", "250.1"), Figures("52.8", "9.0", "456.0"), "82.6"),
    "LV-ViT-S": (Figures("26.2", "6.1", "725.4"), Figures("19.1", "4.7", "1110.9"), "81.6"),
    "LV-ViT-M": (Figures("55.9", "11.9", "396.6"), Figures("40.1", "8.8", "640.6"), "83.6"),
    "PoolFormer-s12": (Figures("11.9", "1.8", "1882.2"), Figures("6.0", "0.8", "3973.9"), "70.5"),
    "PoolFormer-s24": (Figures("21.4", "3.4", "957.6"), Figures("9.6", "1.4", "2078.4"), "75.4"),
    "PoolFormer-s36": (
        Figures("30.9", "5.1", "642.1", ELEMENTWISE), Figures("13.1", "2.0", "1401.6"), "76.8",
    ),
    "MLPMixer-b16": (Figures("59.9", "12.7", "420.9"), Figures("24.4", "5.7", "968.4"), "72.1"),
    "MLPMixer-l16": (Figures("208.4", "44.7", "129.7"), Figures("82.2", "20.0", "302.7"), "72.6"),
}  # fmt: skip
TABLE2: dict[str, tuple[Figures, str]] = {
    "DeiT-Tiny": (Figures("5.7", "1.3", ""), "72.1"),
    "DeiT-Small": (Figures("22.1", "4.6", "1279.1"), "79.8"),
    "DeiT-Base": (Figures("86.6", "17.6", "393.8"), "81.8"),
    "ViT-Large": (Figures("304.3", "59.7", "124.2", LEFT_OUT), "80.3"),
    "ViT-Huge": (Figures("632.2", "124.3", "61.5", LEFT_OUT), "80.3"),
    "Swin-Tiny": (Figures("28.3", "4.5", "751.9"), "81.2"),
    "Swin-Small": (Figures("49.6", "8.7", "441.8"), "83.0"),
    "Swin-Base": (Figures("87.8", "15.2", "304.9", LEFT_OUT), "83.5"),
    "LV-ViT-S": (Figures("26.2", "6.1", "866.6", LEFT_OUT), "81.4"),
    "LV-ViT-M": (Figures("55.8", "11.9", "457.6", LEFT_OUT), "83.6"),
    "PoolFormer-s12": (Figures("12.0", "1.9", "2531.5", ROUNDED_UP), "77.2"),
    "PoolFormer-s24": (Figures("21.4", "3.4", "1240.6"), "80.3"),
    "PoolFormer-s36": (Figures("30.9", "5.0", "785.3"), "81.4"),
    "MLPMixer-b16": (Figures("59.9", "12.6", "554.1"), "76.6"),
    "MLPMixer-l16": (Figures("208.2", "44.6", "160.0"), "72.3"),
}
DEIT_WITH_ATTENTION = {"DeiT-Tiny": "0.8", "DeiT-Small": "2.9", "DeiT-Base": "10.6"}
"""Table 2's fused DeiT rows, which count attention; its other fused rows are those of Table 1."""
SENSITIVITY: dict[str, dict[str, dict[float | None, tuple[Figures, str]]]] = {
    "Table 4": {
        "DeiT-Base": {
            1.0: (Figures("37.0", "7.1", "858.2"), "73.7"),
            0.75: (Figures("51.1", "10.6", "657.0", INCLUDED), "81.4"),
            0.5: (Figures("65.3", "12.7", "544.4"), "81.4"),
            0.25: (Figures("79.5", "15.5", "452.2"), "81.1"),
            None: (Figures("86.6", "17.6", "408.8", INCLUDED), "81.8"),
        },
        "Swin-Base": {
            1.0: (Figures("38.8", "6.5", "539.0"), "75.5"),
            0.75: (Figures("52.8", "9.0", "467.6"), "82.6"),
            0.5: (Figures("66.8", "11.5", "404.5"), "83.4"),
            0.25: (Figures("80.8", "14.0", "356.3"), "83.7"),
            None: (Figures("87.8", "15.2", "324.9"), "83.5"),
        },
    },
    "Table 8": {
        "DeiT-Tiny": {
            0.75: (Figures("3.5", "0.8", "4323.8"), "64.2"),
            0.5: (Figures("4.4", "1.0", "3904.2"), "69.2"),
            0.25: (Figures("5.3", "1.2", "3555.1"), "71.9"),
            None: (Figures("5.7", "1.3", "3372.2"), "72.1"),
        },
        "Swin-Tiny": {
            0.75: (Figures("17.5", "2.6", "1016.3", LEFT_OUT), "78.5"),
            0.5: (Figures("21.8", "3.3", "927.8", LEFT_OUT), "80.5"),
            0.25: (Figures("26.1", "4.0", "864.9", LEFT_OUT), "81.4"),
            None: (Figures("28.3", "4.5", "789.8"), "81.2"),
        },
        "PoolFormer-s12": {
            0.75: (Figures("6.0", "0.8", "4000.2"), "70.5"),
            0.5: (Figures("8.4", "1.2", "3345.4"), "74.3"),
            0.25: (Figures("10.7", "1.6", "2910.1"), "76.8"),
            None: (Figures("12.0", "1.9", "2450.0", ROUNDED_UP), "77.2"),
        },
    },
}

SLAB_COUNT = "the paper's count is between ours without attention and with it"
TABLE3: dict[str, tuple[str, float | None, Figures, str]] = {
    "SLAB-DeiT-Base, fused": ("DeiT-Base", None, Figures("86.6", "17.1", "387.0", SLAB_COUNT), "78.9"),
    "RePa-DeiT-Base, idle 25%": ("DeiT-Base", 0.25, Figures("79.5", "15.5", "452.2"), "81.1"),
    "SLAB-Swin-Base, fused": ("Swin-Base", None, Figures("87.7", "15.4", "299.9", INCLUDED), "83.6"),
    "RePa-Swin-Base, idle 25%": ("Swin-Base", 0.25, Figures("80.8", "14.0", "356.3"), "83.7"),
}
"""What a row is made from, its idle ratio (None: SLAB), figures, top-1."""
TABLE5: dict[str, tuple[str, float | None, Figures, str, str]] = {
    "ViT-Small": ("DeiT-Small", None, Figures("21.7", "4.3", "1277.0", UNDER), "72.8", "77.0"),
    "RePa-ViT-Small, fused": ("DeiT-Small", 0.75, Figures("12.8", "2.5", "1779.6"), "69.6", "74.4"),
    "ViT-Base": ("DeiT-Base", None, Figures("85.8", "16.9", "396.2"), "76.1", "78.2"),
    "RePa-ViT-Base, fused": ("DeiT-Base", 0.75, Figures("50.4", "9.9", "623.0"), "74.1", "77.0"),
}
"""Backbones pre-trained with DINO: what they are, idle ratio, figures, k-NN and linear accuracy."""


def _row(table: str, name: str, figures: Figures, top1: str, make: Callable[[], nn.Module]) -> Row:
    return Row(
        table, name, make, figures.params, figures.macs, differs=figures.differs,
        published={"top-1": top1, "img/s": figures.speed}, counted=CONVENTIONS[table],
    )  # fmt: skip


def _rows() -> Iterator[Row]:
    for model, (before, after, top1) in TABLE1.items():
        make = partial(build, model, idle_ratio_of(model))
        yield _row("Table 1", f"RePa-{model}, trained", before, top1, make)
        yield _row("Table 1", f"RePa-{model}, fused", after, top1, partial(make, fused=True))
    for model, (figures, top1) in TABLE2.items():
        yield _row("Table 2", model, figures, top1, partial(build, model))
    for model, macs in DEIT_WITH_ATTENTION.items():
        after = TABLE1[model][1]
        figures = Figures(after.params, macs, after.speed)
        yield _row("Table 2", f"RePa-{model}, fused", figures, TABLE1[model][2], partial(build, model, 0.75, True))
    for name, (model, ratio, figures, top1) in TABLE3.items():
        make = partial(slab, model) if ratio is None else partial(build, model, ratio, True)
        yield _row("Table 3", name, figures, top1, make)
    for name, (model, ratio, figures, knn, linear) in TABLE5.items():
        make = partial(build, model, ratio, ratio is not None, num_classes=0)
        yield Row(
            "Table 5", name, make, figures.params, figures.macs, differs=figures.differs,
            counted=CONVENTIONS["Table 5"], published={"k-NN": knn, "linear": linear, "img/s": figures.speed},
        )  # fmt: skip
    for table, models in SENSITIVITY.items():
        for model, ratios in models.items():
            for ratio, (figures, top1) in ratios.items():
                name = model if ratio is None else f"RePa-{model}, idle {ratio:.0%}"
                yield _row(table, name, figures, top1, partial(build, model, ratio, ratio is not None))


TABLES = PaperTables(
    [*_rows(), *dense.rows()],
    """RePaFormer's Tables 1 to 6 and 8: parameters and MACs before and after fusing, the paper's and ours.

The paper counts with a tool that does not see fused attention and does count norms, two operations for each element.
Tables 1, 3, 4 and 5 are judged so ('counted as paper'). Most of Tables 2 and 8 has attention in, as we count, and they
are judged so. A row of which the paper counts otherwise than the rest of its table says so and is not judged.
Images/s are on one A6000 at batch 128, in float32. Of Table 6 the paper prints latencies and accuracies alone (AP on
COCO, mIoU on ADE20K), which are its own; parameters and MACs are ours, at 800 x 1280 with 80 classes (1000 proposals,
100 masks), and at 512 x 512 with 150 classes.""",
)
