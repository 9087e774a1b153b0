"""Parity: an exported file must answer in its own runtime as the PyTorch model does.

    error = max |file(x) - model(x)| / max |model(x)|         at batch 1, 2 and 5, on random and on real images

A model that chooses tokens has images where two scores are equal up to rounding. There, two correct runtimes may choose
different tokens and answer differently. So an image on which the file is off gets a second look: the model is run with
its scores nudged by as much as rounding does, and the file is right if it gives one of the answers that come out. An
image where none of them is the file's, though two scores nearly tie, is left out; only a few of the images may be.
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
"""dtype → the relative gap of two scores below which rounding may decide."""
DRAWS = 64
"""The most images of a kind that are compared."""
NUDGES = 32
"""Nudged runs of the model on an image where the file is off."""
LARGEST_NUDGE = 100
"""In units of the dtype's rounding: what long sums in another order make of it."""


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

    Where images are left out, others are drawn in their place.

    Args:
        model: the model.
        run: the opened file.
        name: the format, for messages.
        shape: (C, H, W) of one input.
        images: real ones, as the model takes them.

    Raises:
        Drift: if an image is off that has no tie, if many are off, or all real ones, or all of one batch size.
    """
    comparison = Comparison(model, run, name)
    for kind, pool in inputs(model, shape, images).items():
        if len(pool):
            comparison.add(pool, kind)
    for seed in range(1, DRAWS // sum(BATCHES)):
        if comparison.enough:
            break
        comparison.add(random_images(model, shape, seed), "random", seed)
    return comparison.result()


class Comparison:
    """Compares a file with its model, batch by batch, and keeps count.

    Args:
        model: the model.
        run: the opened file.
        name: the format, for messages.
    """

    def __init__(self, model: nn.Module, run: Run, name: str):
        self.model, self.run, self.name = model, run, name
        self.dtype = next(model.parameters()).dtype
        self.allowed = TOLERANCE[self.dtype]
        self.agreed: dict[tuple[str, int, int], bool] = {}
        """Kind, seed and number of an image → whether the file agrees on it."""
        self.sizes: set[int] = set()
        """Batch sizes at which it agrees on an image."""
        self.error = self.worst = 0.0
        """The largest error of images on which it agrees, and of the others."""

    def add(self, pool: Tensor, kind: str, seed: int = 0) -> None:
        """Compare on images at all batch sizes; raise `Drift` where too many are off or one that has no tie.

        Args:
            pool: images (n, C, H, W).
            kind: random or real.
            seed: tells several pools of a kind apart.
        """
        for places in batches(len(pool)):
            agreed = self._batch(pool[places], f"{self.name}, {kind} images, batch {len(places)}")
            for place, each in zip(places.tolist(), agreed):
                self.agreed[kind, seed, place] = each and self.agreed.get((kind, seed, place), True)
            if self.left_out > max(2, len(self.agreed) // 4):
                raise Drift(f"{self._off(self.name, self.worst)}, on {self.left_out} of {len(self.agreed)} images")

    @property
    def left_out(self) -> int:
        """Images on which the file is off, though a tie may be why."""
        return list(self.agreed.values()).count(False)

    @property
    def enough(self) -> bool:
        """Whether the file agrees on as many random images as are to be compared, and on one at every batch size."""
        return self._count("random") >= sum(BATCHES) and self.sizes == set(BATCHES)

    def result(self) -> Parity:
        """What was found; raises `Drift` where the file agrees on no image of a kind or of a batch size."""
        missing = [f"{kind} images" for kind in dict.fromkeys(key[0] for key in self.agreed) if not self._count(kind)]
        missing += [f"batch {size}" for size in BATCHES if size not in self.sizes]
        if missing:
            raise Drift(f"{self._off(f'{self.name}, {missing[0]}', self.worst)}, on every image")
        return Parity(self.error, self._count("random"), self._count("real"), self.left_out)

    def _batch(self, x: Tensor, where: str) -> list[bool]:
        """For each image of a batch whether the file agrees on it."""
        wanted, found = self.model(x), self.run(x)
        if not wanted.isfinite().all():
            raise ValueError(
                "the model's own outputs are not finite, so nothing can be compared; are its weights damaged?"
            )
        scale, agreed = wanted.abs().max(), []
        for i, error in enumerate(image_errors(wanted, found, scale)):
            near = error
            if not error <= self.allowed:
                if error == float("inf") or decided(self.model, x[i : i + 1], TIE[self.dtype])[0]:
                    raise Drift(self._off(where, error))
                answers = nudged(self.model, x[i : i + 1])
                near = min(image_errors(answers, found[i : i + 1].expand_as(answers), scale))
            agreed.append(near <= self.allowed)
            if agreed[-1]:
                self.error = max(self.error, near)
                self.sizes.add(len(x))
            else:
                self.worst = max(self.worst, error)
        return agreed

    def _count(self, kind: str) -> int:
        return sum(agreed for (each, *_), agreed in self.agreed.items() if each == kind)

    def _off(self, where: str, error: float) -> str:
        return f"{where}: the exported file is off by {error:.1e} of the largest output, allowed {self.allowed:.0e}"


def inputs(model: nn.Module, shape: tuple[int, ...], images: Tensor | None = None) -> dict[str, Tensor]:
    """Images to compare on: random ones of the kind the model takes, and the real ones where they are given."""
    random = random_images(model, shape)
    if images is None:
        return {"random": random}
    if images.shape[1:] != random.shape[1:] or images.dtype.is_floating_point != random.dtype.is_floating_point:
        raise ValueError(
            f"images are {images.dtype} {tuple(images.shape)}, but the model takes {random.dtype} (n, {shape})"
        )
    return {"random": random, "real": images[:DRAWS].to(random.dtype)}


def random_images(model: nn.Module, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """As many random images as all batch sizes need, of the kind the model takes."""
    generator = torch.Generator().manual_seed(seed)
    if hasattr(model, "source"):  # raw pixels
        return torch.randint(0, 256, (sum(BATCHES), *shape), generator=generator, dtype=torch.uint8)
    return torch.randn(sum(BATCHES), *shape, generator=generator).to(next(model.parameters()).dtype)


def batches(images: int) -> list[Tensor]:
    """Which of so many images are in the batch of every size, each other ones as long as there are enough.

    >>> batches(4)
    [tensor([0]), tensor([1, 2]), tensor([3, 0, 1, 2, 3])]
    """
    firsts = [sum(BATCHES[:i]) for i in range(len(BATCHES))]
    return [torch.arange(first, first + size) % images for first, size in zip(firsts, BATCHES)]


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


@torch.no_grad()
def nudged(model: nn.Module, image: Tensor) -> Tensor:
    """The model's answers (NUDGES, ...) for an image (1, C, H, W) when each of its decisions sees other scores.

    The scores are off by about one rounding in the first run and by up to LARGEST_NUDGE in the last.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = torch.finfo(next(model.parameters()).dtype).eps * torch.logspace(0, 1, NUDGES, LARGEST_NUDGE)

    def nudge(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        scores = given[0]
        noise = torch.randn(scores.shape, generator=generator) * sizes.view(-1, *[1] * (scores.ndim - 1))
        return (scores + scores * noise.to(scores), *given[1:])

    handles = [module.register_forward_pre_hook(nudge) for module in decisions(model)]
    try:
        return model(image.expand(NUDGES, *image.shape[1:]).contiguous())
    finally:
        for handle in handles:
            handle.remove()


def image_errors(wanted: Tensor, found: Tensor, scale: Tensor) -> list[float]:
    """max |found - wanted| / scale of each image; infinite where the shapes differ or a number is not finite.

    >>> image_errors(torch.tensor([[2.0, 1.0], [1.0, 1.0]]), torch.tensor([[2.0, 1.5], [1.0, 1.0]]), torch.tensor(2.0))
    [0.25, 0.0]
    """
    if wanted.shape != found.shape or not found.isfinite().all():
        return [float("inf")] * len(wanted)
    off = (found.double() - wanted.double()).abs().flatten(1).amax(1)  # (B,)
    return (off / scale.double().clamp_min(1e-12)).tolist()


def relative_error(wanted: Tensor, found: Tensor) -> float:
    """max |found - wanted| / max |wanted|; infinite where the shapes differ or a number is not finite.

    >>> relative_error(torch.tensor([2.0, 1.0]), torch.tensor([2.0, 1.5]))
    0.25
    """
    if wanted.shape != found.shape or not found.isfinite().all():
        return float("inf")
    wanted, found = wanted.double(), found.double()
    return ((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-12)).item()
