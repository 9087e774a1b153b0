"""leanformer profile: where a model's time goes, component by component."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import timm
import torch
from rich.progress import track
from rich.table import Table
from torch import nn

from ..backbones import create
from ..measure.apart import taken_apart
from ..measure.console import console
from ..measure.profile import Profile, Profiles
from ..measure.profile import profile as measure
from ..measure.turns import in_turn
from ..visualise import latency_breakdown
from .common import Apply, Models, Set, side_by_side

FFN_SHARES = {
    "deit_small_patch16_224": 32.8,
    "deit_base_patch16_224": 43.1,
    "swin_small_patch4_window7_224": 33.6,
    "poolformer_s36": 73.7,
    "mixer_b16_224": 52.7,
}
"""RePaFormer's Figure 3: the share of the FFN layers in per cent, for one image on a GPU, as its text gives them."""
APART, MIXER_SHARE = "vit_base_patch16_224", 46.3
"""RIFormer's Figure 1: the share of the token mixers in a ViT-B in per cent, at batch 2048 on an A100."""


def profile(
    models: Models = (),
    methods: Apply = (),
    checkpoint: Path | None = None,
    arguments: Set = (),
    device: str | None = None,
    batch: int = 1,
    dtype: str | None = None,
    modes: tuple[str, ...] = ("eager",),
    repeats: int = 5,
    fused: bool = True,
    suite: str | None = None,
    apart_batch: int | None = None,
    workers: int = 1,
    output: Path | None = None,
    figure: Path | None = None,
) -> None:
    """Latency by component, by timing each component's modules alone on the inputs they really get.

    Each --apply adds the first model with these methods on it, joined by +. The suite 'papers' profiles the models of
    RePaFormer's Figure 3 and takes a ViT-B apart as RIFormer's Figure 1 does, with the papers' shares beside ours.

    Example: leanformer profile deit_small_patch16_224 --apply evit:keep_rate=0.7 --apply repa --figure latency.png

    Args:
        models: Names or leanformer checkpoints.
        methods: Methods on the first model, for one more row: name:option=value, several joined by +.
        checkpoint: Weights for the models given by name.
        arguments: An argument of the models given by name, for example img_size=384; may be given several times.
        device: cpu or cuda; by default the GPU if there is one.
        batch: Images at a time.
        dtype: float32, bfloat16 or float16; by default bfloat16 on a GPU and float32 on a CPU.
        modes: eager, compiled.
        repeats: How often each component is timed, in turn with the others.
        fused: Fuse the models with methods first, as they would be deployed.
        suite: papers.
        apart_batch: For the suite, images at a time of the ViT-B taken apart; by default 2048 on a GPU, else 1.
        workers: For the suite, compile so many models at the same time; they are still timed in turn.
        output: Write the result as JSON, for example results/profile.json.
        figure: Draw stacked bars as PNG or SVG.
    """
    if suite not in (None, "papers"):
        raise ValueError(f"unknown suite '{suite}'; known: papers")
    if not models and suite is None:
        raise ValueError("give at least one model, by name or as a checkpoint, or --suite papers")
    named = side_by_side(models, methods, checkpoint, arguments, fused)
    found = measure(named, device=device, batch=batch, dtype=dtype, modes=modes, repeats=repeats)
    if suite is not None:
        place = torch.device(found.device)
        kind = dtype or ("bfloat16" if place.type == "cuda" else "float32")
        many = apart_batch or (2048 if place.type == "cuda" else 1)
        jobs = [Part(name, place, batch, kind, mode, repeats) for name in FFN_SHARES for mode in modes]
        jobs += [Part(APART, place, many, kind, mode, repeats, apart=True) for mode in modes]
        done = in_turn(jobs, workers)
        papers = [row for _, row in track(done, description=suite, total=len(jobs)) if row is not None]
        found = Profiles((*found.rows, *papers), found.device)
    found.print()
    if suite is not None:
        console().print(beside_papers(found.rows))
    if output is not None:
        console().print(f"wrote {found.save(output)}")
    if figure is not None:
        console().print(f"wrote {latency_breakdown([asdict(row) for row in found.rows]).save(figure)}")


@dataclass(frozen=True)
class Part:
    """A published model in one mode: a row of the suite."""

    name: str
    device: torch.device
    batch: int
    dtype: str
    mode: str
    repeats: int
    apart: bool = False

    def __call__(self, ready: Callable[[], None] | None = None) -> Profile:
        model = _published(self.name)
        if self.apart:
            return taken_apart("ViT-B", model, self.device, self.batch, self.dtype, self.mode, self.repeats, ready)
        return measure(
            {self.name: model}, device=self.device, batch=self.batch, dtype=self.dtype, modes=[self.mode],
            repeats=self.repeats, ready=ready,
        ).rows[0]  # fmt: skip


def _published(name: str) -> nn.Module:
    return create(f"timm/{name}" if timm.is_model(name) else name)


def beside_papers(rows: tuple[Profile, ...]) -> Table:
    """The papers' shares beside ours. The papers do not say to which component they add the norms."""
    table = Table("figure", "model", "mode", "component", "paper", "ours", title="shares of the latency")
    table.title_justify = "left"
    for row in rows:
        if row.model in FFN_SHARES:
            paper, where, component = FFN_SHARES[row.model], "RePaFormer, Figure 3", "FFN"
        elif row.model.startswith("ViT-B, part"):
            paper, where, component = MIXER_SHARE, "RIFormer, Figure 1", "token mixer"
        else:
            continue
        table.add_row(where, row.model, row.mode, component, f"{paper}%", f"{100 * row.share(component):.1f}%")
    return table
