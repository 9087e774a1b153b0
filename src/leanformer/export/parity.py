"""Parity: an exported file must answer in its own runtime as the PyTorch model does.

    error = max |file(x) - model(x)| / max |model(x)|         at batch 1, 2 and 5, on random and on real images

A model that keeps the K best tokens has images where the K-th and the next score are equal up to rounding. There, two
correct runtimes may keep different tokens; such images decide nothing and are left out.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.reduce import decisions
from .target import Run

BATCHES = (1, 2, 5)
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""dtype → allowed error."""
TIE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""dtype → the relative gap of two scores below which rounding decides."""
DRAWS = 64


class Drift(ValueError):
    """An exported file does not answer as its model does."""


@dataclass(frozen=True)
class Parity:
    """What the comparison found: the largest error and on what."""

    error: float
    random_images: int
    real_images: int
    ties: int = 0
    """Images left out because rounding decides which tokens they keep."""


@torch.no_grad()
def check(model: nn.Module, run: Run, name: str, shape: tuple[int, ...], images: Tensor | None = None) -> Parity:
    """Compare an opened file with the model on random and real images, at all batch sizes; raise `Drift` on drift.

    `shape` is (C, H, W) of one input; the images are as the model takes them.
    """
    dtype = next(model.parameters()).dtype
    pools, ties, error = inputs(model, shape, images), 0, 0.0
    counts = {"random": 0, "real": 0}
    for kind, pool in pools.items():
        clear = pool[decided(model, pool, TIE[dtype])]
        ties += len(pool) - len(clear)
        if not len(clear):
            continue
        counts[kind] = min(len(clear), sum(BATCHES))
        for x in batches(clear):
            error = max(error, _error(model(x), run(x), f"{name}, {kind} images, batch {len(x)}", TOLERANCE[dtype]))
    if not counts["random"]:
        raise Drift(f"{name}: every random image is a tie between tokens, so nothing can be compared")
    return Parity(error, counts["random"], counts["real"], ties)


def inputs(model: nn.Module, shape: tuple[int, ...], images: Tensor | None = None) -> dict[str, Tensor]:
    """Images to compare on: random ones of the kind the model takes, and the real ones where they are given."""
    generator = torch.Generator().manual_seed(0)
    if hasattr(model, "source"):  # raw pixels
        random = torch.randint(0, 256, (sum(BATCHES), *shape), generator=generator, dtype=torch.uint8)
    else:
        random = torch.randn(sum(BATCHES), *shape, generator=generator).to(next(model.parameters()).dtype)
    if images is None:
        return {"random": random}
    if images.shape[1:] != random.shape[1:] or images.dtype.is_floating_point != random.dtype.is_floating_point:
        raise ValueError(
            f"images are {images.dtype} {tuple(images.shape)}, but the model takes {random.dtype} (n, {shape})"
        )
    return {"random": random, "real": images[:DRAWS].to(random.dtype)}


def batches(pool: Tensor) -> list[Tensor]:
    """Batches of every size, each of other images as long as there are enough."""
    firsts = [sum(BATCHES[:i]) for i in range(len(BATCHES))]
    return [pool[torch.arange(first, first + size) % len(pool)] for first, size in zip(firsts, BATCHES)]


@torch.no_grad()
def decided(model: nn.Module, images: Tensor, gap: float) -> Tensor:
    """Which images (n,) keep the same tokens under small changes of the scores.

    >>> decided(nn.Identity(), torch.zeros(3, 1), 1e-4)
    tensor([True, True, True])
    """
    clear = torch.ones(len(images), dtype=torch.bool)

    def look(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        clear.logical_and_(module.margin(*given).cpu() > gap)  # type: ignore[operator]

    handles = [module.register_forward_hook(look) for module in decisions(model)]
    try:
        if handles:
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    return clear


def relative_error(wanted: Tensor, found: Tensor) -> float:
    """max |found - wanted| / max |wanted|; infinite where the shapes differ or a number is not finite.

    >>> relative_error(torch.tensor([2.0, 1.0]), torch.tensor([2.0, 1.5]))
    0.25
    """
    if wanted.shape != found.shape or not found.isfinite().all():
        return float("inf")
    wanted, found = wanted.double(), found.double()
    return ((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-12)).item()


def _error(wanted: Tensor, found: Tensor, where: str, allowed: float) -> float:
    if not wanted.isfinite().all():
        raise ValueError("the model's own outputs are not finite, so nothing can be compared; are its weights damaged?")
    error = relative_error(wanted, found)
    if not error <= allowed:
        raise Drift(f"{where}: the exported file is off by {error:.1e} of the largest output, allowed {allowed:.0e}")
    return error
