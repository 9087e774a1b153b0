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
from leanformer.measure import Profile, Profiles, console
from leanformer.measure import profile as measure
from leanformer.visualise import latency_breakdown

from .arguments import device_of
from .compile_together import compile_together
from .fresh_device import fresh_device
from .part_by_part import latency_part_by_part

FFN_SHARES = {
    "deit_small_patch16_224": 32.8,
    "deit_base_patch16_224": 43.1,
    "swin_small_patch4_window7_224": 33.6,
    "poolformer_s36": 73.7,
    "mixer_b16_224": 52.7,
}
"""RePaFormer's Figure 3: the share of the FFN layers in per cent, for one image on a GPU, as its text gives them."""
BUILT_UP, MIXER_SHARE = "vit_base_patch16_224", 46.3
"""RIFormer's Figure 1: the share of the token mixers in a ViT-B in per cent, at batch 2048 on an A100."""


def profile(
    device: str | None = None,
    batch: int = 1,
    built_up_batch: int | None = None,
    dtype: str | None = None,
    modes: tuple[str, ...] = ("eager",),
    repeats: int = 5,
    workers: int = 1,
    output: Path | None = None,
    figure: Path | None = None,
) -> None:
    """The models of RePaFormer's Figure 3 by component, and a ViT-B part by part as in RIFormer's Figure 1.

    Example: python -m lab profile --output results/profile_h200.json

    Args:
        device: cpu or cuda; by default the GPU if there is one.
        batch: Images at a time.
        built_up_batch: Images at a time of the ViT-B that is built up part by part; by default 2048 on a GPU, else 1.
        dtype: float32, bfloat16 or float16; by default bfloat16 on a GPU and float32 on a CPU.
        modes: eager, compiled.
        repeats: How often each component is timed, in turn with the others.
        workers: Compile so many models at the same time; they are still timed in turn.
        output: Write the result as JSON, for example results/profile.json.
        figure: Draw stacked bars as PNG or SVG.
    """
    place = device_of(device)
    kind = dtype or ("bfloat16" if place.type == "cuda" else "float32")
    many = built_up_batch or (2048 if place.type == "cuda" else 1)
    jobs = [Part(name, place, batch, kind, mode, repeats) for name in FFN_SHARES for mode in modes]
    jobs += [Part(BUILT_UP, place, many, kind, mode, repeats, built_up=True) for mode in modes]
    done = compile_together(jobs, workers)
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
    built_up: bool = False

    def __call__(self, ready: Callable[[], None] | None = None) -> Profile:
        model = _published(self.name)
        with fresh_device(self.device):
            if self.built_up:
                told = self.batch, self.dtype, self.mode, self.repeats
                return latency_part_by_part("ViT-B", model, self.device, *told, ready)
            return measure(
                {self.name: model}, device=self.device, batch=self.batch, dtype=self.dtype, modes=[self.mode],
                repeats=self.repeats, ready=ready,
            ).rows[0]  # fmt: skip


def _published(name: str) -> nn.Module:
    return lf.create(f"timm/{name}" if timm.is_model(name) else name)


def beside_papers(rows: tuple[Profile, ...]) -> Table:
    """The papers' shares beside ours. The papers do not say to which component they add the norms."""
    table = Table(
        "figure", "model", "mode", "component", "paper", "ours", title="shares of the latency", title_justify="left"
    )
    for row in rows:
        if row.model in FFN_SHARES:
            paper, where, component = FFN_SHARES[row.model], "RePaFormer, Figure 3", "FFN"
        elif row.model.startswith("ViT-B, part"):
            paper, where, component = MIXER_SHARE, "RIFormer, Figure 1", "token mixer"
        else:
            continue
        table.add_row(where, row.model, row.mode, component, f"{paper}%", f"{100 * row.share(component):.1f}%")
    return table
