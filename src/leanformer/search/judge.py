"""How much a plan loses, before any training: the divergence of its answers from the teacher's.

    loss = mean over images of KL( softmax(teacher) ‖ softmax(lean) )         classifiers
    loss = mean over images of 1 − cosine(teacher's features, lean's)         backbones without a head

Modules that must be fitted are fitted once for every share, to the teacher's own inputs, and put together from there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import METHODS, apply, blocks_of, calibrate, input_of, share, with_options
from ..data.sources import Data
from ..train import evaluate, extract_features, knn_accuracy, quick_precision
from ..train.judging import NEIGHBOURS
from .plan import Plan, Space

BATCH = {"cuda": 256, "cpu": 16}
"""Images at a time while judging."""
FITTED_ON = 64
"""Images that modules are fitted to for judging: thousands of tokens are enough for some hundred unknowns."""


@dataclass(frozen=True)
class Verdict:
    """What a plan loses on the images it was judged on.

    Attributes:
        losses: divergence from the teacher on each image, the lower the better.
        agreed: on each image 1 for the teacher's own first answer, else 0; the cosine for a backbone without a head.

    >>> Verdict([0.25, 0.75], [1, 0]).loss, Verdict([0.25, 0.75], [1, 0]).agreement
    (0.5, 50.0)
    """

    losses: Sequence[float] = field(repr=False)
    agreed: Sequence[float] = field(repr=False)

    @property
    def loss(self) -> float:
        return fmean(self.losses)

    @property
    def agreement(self) -> float:
        """In per cent."""
        return 100 * fmean(self.agreed)

    @property
    def images(self) -> int:
        return len(self.losses)

    def worse_than(self, other: "Verdict", errors: float) -> bool:
        """Whether the loss is higher by more than so many standard errors, image by image on those both have seen."""
        more = [mine - theirs for mine, theirs in zip(self.losses, other.losses)]
        noise = stdev(more) / len(more) ** 0.5 if len(more) > 1 else 0.0
        return bool(more) and fmean(more) > errors * noise


def accuracies(teacher: nn.Module, model: nn.Module, known: Data, judging: Data, device: str) -> dict[str, float]:
    """Top-1 of teacher and lean model in per cent, and the points lost: of their heads, or else of their features.

    Args:
        teacher: the unchanged model.
        model: the lean one.
        known: images among which neighbours are looked for where there is no head.
        judging: images to judge on; without labels there is nothing to tell.
        device: where to.
    """
    if not judging.labelled:
        return {}
    if getattr(teacher, "num_classes", 0):
        theirs, ours = (evaluate(each, judging, device=device).top1 for each in (teacher, model))
        return {"teacher_top1": theirs, "top1": ours, "drop": theirs - ours}
    if not known.labelled:
        return {}
    found = []
    for each in (teacher, model):
        bank, asked = (extract_features(each, part, device=device) for part in (known, judging))
        found.append(knn_accuracy(bank, asked, min(NEIGHBOURS, len(bank.labels))).top1)
    return {"teacher_knn_top1": found[0], "knn_top1": found[1], "drop": found[0] - found[1]}


class Judge:
    """Judges plans on images that the teacher has answered.

    Args:
        teacher: the unchanged model, in evaluation mode, where it is to be judged.
        space: what plans are made from.
        images: size → the same images as a model of that size takes them, (n, C, H, W); asked for when needed.
        fitting: other images, as the teacher takes them, to which modules are fitted; asked for when needed. Without
            them modules are fitted to the first of `images`, and look better there than elsewhere.
    """

    def __init__(
        self,
        teacher: nn.Module,
        space: Space,
        images: Callable[[tuple[int, int]], Tensor],
        fitting: Callable[[], Tensor] | None = None,
    ):
        self.teacher, self.space, self._images = teacher.eval(), space, images
        self._fitting = fitting or (lambda: self._view(self.own)[:FITTED_ON])
        self.device = next(teacher.parameters()).device
        self.rounds = quick_precision(teacher, self.device) == "bf16"
        self.own = tuple(input_of(teacher)["input_size"][1:])
        self._fitted_to: Tensor | None = None
        self._pixels: dict[tuple[int, int], Tensor] = {}
        self._bases: dict[tuple[Any, ...], nn.Module] = {}
        self.answers = self._answers(self.teacher, self.own)  # (n, classes or C)
        self.known: dict[Plan, tuple[list[float], list[float]]] = {}  # losses and agreements, image by image

    def __call__(self, plan: Plan, images: int | None = None) -> Verdict:
        """What the plan loses on the first so many images, all of them by default; no image is looked at twice."""
        images = min(images or len(self.answers), len(self.answers))
        losses, agreed = self.known.setdefault(plan, ([], []))
        if len(losses) < images:
            new = self._compared(self.model(plan), plan.size, len(losses), images)
            losses += new[0]
            agreed += new[1]
        return Verdict(losses[:images], agreed[:images])

    def verdict(self, model: nn.Module, size: tuple[int, int]) -> Verdict:
        """What any model loses to the teacher on these images."""
        return Verdict(*self._compared(model, size, 0, len(self.answers)))

    def _compared(
        self, model: nn.Module, size: tuple[int, int], first: int, last: int
    ) -> tuple[list[float], list[float]]:
        """Loss and agreement of each image from the first to before the last."""
        wanted = self.answers[first:last].float()
        found = self._answers(model, size, first, last).float()
        if self.classifies:
            every = F.kl_div(found.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="none").sum(-1)
            agreed = (found.argmax(-1) == wanted.argmax(-1)).float()
        else:
            agreed = F.cosine_similarity(found, wanted)
            every = 1 - agreed
        return [round(each, 5) for each in every.tolist()], [round(each, 5) for each in agreed.tolist()]

    def to_json(self) -> list[Any]:
        """Every plan that was judged, with losses and agreements in a line each; `read_json` takes them."""
        return [[plan.to_json(), *(" ".join(map(str, given)) for given in both)] for plan, both in self.known.items()]

    def read_json(self, judged: Sequence[Any]) -> None:
        """Know again what `to_json` wrote of the same images."""
        for plan, *both in judged:
            losses, agreed = ([float(each) for each in text.split()] for text in both)
            self.known[Plan.from_json(plan)] = losses, agreed

    @property
    def classifies(self) -> bool:
        return bool(getattr(self.teacher, "num_classes", 0))

    def model(self, plan: Plan) -> nn.Module:
        """The plan's model for judging: its weights are the teacher's, and the fitted ones of the library."""
        model = self._base(plan.size)
        for name in {name for name, _ in plan.acting_on("tokens").values()}:
            model = self._reduced(plan.size, name, plan.of_method(name))
        for name, shares in plan.shares:
            if METHODS[name].acts_on != "tokens":
                model = self._with_fitted(model, name, dict(shares))
        return model

    def _base(self, size: tuple[int, int]) -> nn.Module:
        if (size,) not in self._bases:
            self._bases[size,] = self.teacher if size == self.own else Plan(size).build(self.teacher)
        return self._bases[size,]

    def _reduced(self, size: tuple[int, int], name: str, shares: dict[int, float]) -> nn.Module:
        """The method in all its blocks, most of them at rest: then other shares need no new weights."""
        method = METHODS[name]
        if "keep_rate" not in method.runtime:
            return apply(self._base(size), method.with_shares(shares))
        blocks = self.space.choices[name].blocks
        if (size, name) not in self._bases:
            everywhere = method.with_shares(dict.fromkeys(blocks, self.space.choices[name].most))
            self._bases[size, name] = apply(self._base(size), everywhere)
        rates = tuple(1 - shares.get(block, 0.0) for block in blocks)
        return with_options(self._bases[size, name], keep_rate=rates)

    def _with_fitted(self, model: nn.Module, name: str, shares: dict[int, float]) -> nn.Module:
        new = share(model)
        slot = {"ffn": "ffn", "mixer": "mix"}[METHODS[name].acts_on or "ffn"]
        places = list(blocks_of(new))
        for block, wanted in shares.items():
            path = f"{places[block]}.{slot}"
            new.set_submodule(path, self._fitted(name, wanted).get_submodule(path))
        return new

    def _fitted(self, name: str, share: float) -> nn.Module:
        """The teacher with the method in every block at this share, fitted by least squares."""
        if (name, share) not in self._bases:
            method = METHODS[name].with_shares(dict.fromkeys(self.space.choices[name].blocks, share))
            if "refine_steps" in method.fields():
                method = method.replace(refine_steps=0)
            if self._fitted_to is None:
                self._fitted_to = self._fitting().to(self.device)
            self._bases[name, share] = calibrate(apply(self.teacher, method), self.teacher, self._fitted_to).eval()
        return self._bases[name, share]

    def _view(self, size: tuple[int, int]) -> Tensor:
        if size not in self._pixels:
            self._pixels[size] = self._images(size).to(self.device)
        return self._pixels[size]

    @torch.inference_mode()
    def _answers(self, model: nn.Module, size: tuple[int, int], first: int = 0, last: int | None = None) -> Tensor:
        batch = BATCH.get(self.device.type, BATCH["cpu"])
        parts = self._view(size)[first:last].split(batch)  # pixels keep all their digits
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.rounds):
            return torch.cat([model(part) for part in parts])
