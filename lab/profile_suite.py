"""python -m lab profile: where time goes in the models of the papers' own figures, the papers' shares beside ours."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import timm
import torch
from rich.progress import track
from rich.table import Table
from torch import nn

import leanformer as lf
from leanformer.measure import Profile, Profiles
from leanformer.measure.console import console
from leanformer.measure.profile import profile as measure
from leanformer.visualise import latency_breakdown

from .apart import taken_apart
from .turns import in_turn

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
    device: str | None = None,
    batch: int = 1,
    apart_batch: int | None = None,
    dtype: str | None = None,
    modes: tuple[str, ...] = ("eager",),
    repeats: int = 5,
    workers: int = 1,
    output: Path | None = None,
    figure: Path | None = None,
) -> None:
    """The models of RePaFormer's Figure 3 by component, and a ViT-B taken apart as in RIFormer's Figure 1.

    Example: python -m lab profile --output results/profile_h200.json

    Args:
        device: cpu or cuda; by default the GPU if there is one.
        batch: Images at a time.
        apart_batch: Images at a time of the ViT-B taken apart; by default 2048 on a GPU, else 1.
        dtype: float32, bfloat16 or float16; by default bfloat16 on a GPU and float32 on a CPU.
        modes: eager, compiled.
        repeats: How often each component is timed, in turn with the others.
        workers: Compile so many models at the same time; they are still timed in turn.
        output: Write the result as JSON, for example results/profile.json.
        figure: Draw stacked bars as PNG or SVG.
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    kind = dtype or ("bfloat16" if place.type == "cuda" else "float32")
    many = apart_batch or (2048 if place.type == "cuda" else 1)
    jobs = [Part(name, place, batch, kind, mode, repeats) for name in FFN_SHARES for mode in modes]
    jobs += [Part(APART, place, many, kind, mode, repeats, apart=True) for mode in modes]
    done = in_turn(jobs, workers)
    rows = tuple(row for _, row in track(done, description="profile", total=len(jobs)) if row is not None)
    found = Profiles(rows, str(place))
    found.print()
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
    return lf.create(f"timm/{name}" if timm.is_model(name) else name)


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
