"""Suites for `python -m lab suite`: fixed lists of lean models, each against its backbone."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from rich.progress import track
from torch import nn

from leanformer import methods as lf
from leanformer.backbones import create
from leanformer.core import Method, apply, fuse
from leanformer.measure.console import console
from leanformer.measure.results import choose, record, write_result
from leanformer.speed import optimize

from .turns import in_turn
from .versus import Contest, contest_table, versus


@dataclass(frozen=True)
class Entry:
    """A backbone, the methods on it, and the published speed-up."""

    label: str
    backbone: str
    methods: tuple[Method, ...]
    paper: str = ""
    size: int = 224

    def plain(self) -> nn.Module:
        """timm's own model as the yardstick where timm has it, and ours where it has not."""
        if timm.is_model(self.backbone) and self.size == 224:
            return create(f"timm/{self.backbone}")
        return fuse(create(self.backbone, **self._size), verify=False)  # the stem's batch norms are folded in both

    def lean(self) -> nn.Module:
        return fuse(apply(create(self.backbone, **self._size), *self.methods), verify=False)

    @property
    def _size(self) -> dict[str, Any]:
        return {"img_size": self.size} if self.size != 224 else {}


DEIT = {name: f"deit_{name}_patch16_224" for name in ("tiny", "small", "base")} | {"large": "vit_large_patch16_224"}
EVIT7, EVIT5, REPA = lf.EViT(keep_rate=0.7), lf.EViT(keep_rate=0.5), lf.RePa(idle_ratio=0.75)


def headline() -> Iterator[Entry]:
    """The models with published speed-ups."""
    yield Entry("EViT 0.7 on DeiT-S", DEIT["small"], (EVIT7,), "1.50")
    yield Entry("EViT 0.7 on DeiT-B", DEIT["base"], (EVIT7,), "1.59")
    yield Entry("EViT 0.5 on DeiT-S", DEIT["small"], (EVIT5,), "1.85")
    yield Entry("EViT 0.5 on DeiT-B", DEIT["base"], (EVIT5,), "1.92")
    yield Entry("RePa 0.75 on DeiT-S", DEIT["small"], (REPA,), "1.54")
    yield Entry("RePa 0.75 on DeiT-B", DEIT["base"], (REPA,), "1.68")
    yield Entry("RePa 0.75 on ViT-L", DEIT["large"], (REPA,), "1.67")
    yield Entry("RePa 0.75 + EViT 0.7 on DeiT-B", DEIT["base"], (REPA, EVIT7))
    yield Entry("RePa 0.75 + EViT 0.5 on DeiT-B", DEIT["base"], (REPA, EVIT5))
    yield Entry("RIFormer-S12 over PoolFormer", "poolformer_s12", (lf.RIFormer(),), "1.18")
    yield Entry("RIFormer-M36 over PoolFormer", "poolformer_m36", (lf.RIFormer(),), "1.17")
    yield Entry(
        "SiT-XS over LV-ViT-S", "lvvit_plus_xsmall", (lf.SiT.preset("lvvit_plus_xsmall", start="random"),), "3.6"
    )
    yield Entry("SiT-S over LV-ViT-S", "lvvit_plus_small", (lf.SiT.preset("lvvit_plus_small", start="random"),), "1.4")


def growth() -> Iterator[tuple[Entry, int]]:
    """EViT 0.7 + RePa over batch size, resolution and model size."""
    both = (REPA, EVIT7)
    for batch in (1, 16, 1024):
        yield Entry("RePa + EViT 0.7 on DeiT-S", DEIT["small"], both), batch
    for size in (384, 512):
        yield Entry("RePa + EViT 0.7 on DeiT-S", DEIT["small"], both, size=size), 128
    for name in ("tiny", "small", "large"):
        yield Entry(f"RePa + EViT 0.7 on {DEIT[name]}", DEIT[name], both), 256


SUITES: dict[str, Callable[[], list[tuple[Entry, int]]]] = {
    "gpu": lambda: [(entry, batch) for batch in (256, 1) for entry in headline()],
    "growth": lambda: list(growth()),
}


def run_suite(
    name: str,
    device: str | None,
    dtype: str,
    repeats: int,
    only: str,
    output: Path | None,
    fp8: bool = False,
    workers: int = 1,
) -> int:
    """Run a suite, print it, and write it as JSON after every backbone: a run that is cut short keeps its rows."""
    if name not in SUITES:
        raise ValueError(f"unknown suite '{name}'; known: {', '.join(SUITES)}, kernels")
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    groups = list(_groups(name, only, place, dtype, repeats, fp8))
    contests: list[Contest] = []
    papers = {entry.label: entry.paper for entry, _ in SUITES[name]()}
    missing = 0
    for _, part in track(in_turn(groups, workers), description=name, total=len(groups)):
        missing += part is None
        contests += part or []
        if output is not None and contests:
            write_result(record(f"suite {name}", [_row(c, papers) for c in contests], place), output)
    console().print(contest_table(contests))
    return 1 if missing else 0


def _row(contest: Contest, papers: dict[str, str]) -> dict[str, Any]:
    fp8 = {} if contest.fp8_speedup is None else {"fp8_speedup": contest.fp8_speedup}
    more = {"speedup": contest.speedup, "paper_speedup": papers[contest.label], **fp8}
    return dataclasses.asdict(contest) | more


@dataclass(frozen=True)
class Group:
    """The entries of one backbone at one size and batch: what is timed interleaved."""

    entries: tuple[Entry, ...]
    batch: int
    device: torch.device
    dtype: str
    repeats: int
    fp8: bool

    def __call__(self, ready: Callable[[], None] | None = None) -> list[Contest]:
        torch._dynamo.reset()
        first = self.entries[0]
        return versus(
            first.plain(), {entry.label: entry.lean() for entry in self.entries}, optimize, device=self.device,
            batch=self.batch, dtype=self.dtype, size=(3, first.size, first.size), repeats=self.repeats,
            name=first.backbone, fp8=self.fp8, ready=ready,
        )  # fmt: skip


def _groups(name: str, only: str, device: torch.device, dtype: str, repeats: int, fp8: bool) -> Iterator[Group]:
    rows = {f"{entry.label} batch {batch}. {entry.size} px": (entry, batch) for entry, batch in SUITES[name]()}
    chosen = [rows[row] for row in choose(rows, only)]
    for backbone, size, batch in dict.fromkeys((entry.backbone, entry.size, batch) for entry, batch in chosen):
        mine = [e for e, b in chosen if (e.backbone, e.size, b) == (backbone, size, batch)]
        yield Group(tuple(mine), batch, device, dtype, repeats, fp8)
