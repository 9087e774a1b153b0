"""How much a plan loses, before any training: the divergence of its answers from the teacher's.

    loss = mean over images of KL( softmax(teacher) ‖ softmax(lean) )         classifiers
    loss = mean over images of 1 − cosine(teacher's features, lean's)         backbones without a head

Modules that must be fitted are fitted once for every share, to the teacher's own inputs, and put together from there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import METHODS, apply, blocks_of, calibrate, input_of, share, with_options
from ..data.sources import Data
from ..train import evaluate, extract_features, knn_accuracy
from .plan import Plan, Space

BATCH = {"cuda": 256, "cpu": 16}
"""Images at a time while judging."""
NEIGHBOURS = 20
"""How many vote on the class of an image where there is no head."""


@dataclass(frozen=True)
class Verdict:
    """What a plan loses on the images it was judged on.

    Attributes:
        loss: divergence from the teacher, the lower the better.
        agreement: share of images in per cent with the teacher's own first answer; the mean cosine in per cent for a
            backbone without a head.
        images: how many images.
    """

    loss: float
    agreement: float
    images: int


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
    """

    def __init__(self, teacher: nn.Module, space: Space, images: Callable[[tuple[int, int]], Tensor]):
        self.teacher, self.space, self._images = teacher.eval(), space, images
        self.device = next(teacher.parameters()).device
        self.own = tuple(input_of(teacher)["input_size"][1:])
        self._pixels: dict[tuple[int, int], Tensor] = {}
        self._bases: dict[tuple[Any, ...], nn.Module] = {}
        self._fitted: dict[str, dict[float, nn.Module]] = {}
        self.answers = self._answers(self.teacher, self.own, None)  # (n, classes or C)
        self.known: dict[tuple[Plan, int], Verdict] = {}

    def __call__(self, plan: Plan, images: int | None = None) -> Verdict:
        """What the plan loses on the first so many images, all of them by default."""
        images = min(images or len(self.answers), len(self.answers))
        if (plan, images) not in self.known:
            self.known[plan, images] = self.verdict(self.model(plan), plan.size, images)
        return self.known[plan, images]

    def verdict(self, model: nn.Module, size: tuple[int, int], images: int | None = None) -> Verdict:
        """What any model loses to the teacher on these images."""
        wanted = self.answers[:images].float()
        found = self._answers(model, size, len(wanted)).float()
        if self.classifies:
            loss = F.kl_div(found.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean")
            agreement = (found.argmax(-1) == wanted.argmax(-1)).float().mean()
        else:
            agreement = F.cosine_similarity(found, wanted).mean()
            loss = 1 - agreement
        return Verdict(loss.item(), 100 * agreement.item(), len(wanted))

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
        library = self._library(name)
        places = list(blocks_of(new))
        for block, wanted in shares.items():
            path = f"{places[block]}.{slot}"
            new.set_submodule(path, library[wanted].get_submodule(path))
        return new

    def _library(self, name: str) -> dict[float, nn.Module]:
        """Share → the teacher with the method in every block at that share, fitted by least squares."""
        if name not in self._fitted:
            offered = self.space.choices[name]
            pixels = self._view(self.own)
            self._fitted[name] = {}
            for each in offered.steps or (offered.most,):
                method = METHODS[name].with_shares(dict.fromkeys(offered.blocks, each))
                if "refine_steps" in method.fields():
                    method = method.replace(refine_steps=0)
                self._fitted[name][each] = calibrate(apply(self.teacher, method), self.teacher, pixels).eval()
        return self._fitted[name]

    def _view(self, size: tuple[int, int]) -> Tensor:
        if size not in self._pixels:
            self._pixels[size] = self._images(size).to(self.device)
        return self._pixels[size]

    @torch.inference_mode()
    def _answers(self, model: nn.Module, size: tuple[int, int], images: int | None) -> Tensor:
        batch = BATCH.get(self.device.type, BATCH["cpu"])
        low = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=low):
            return torch.cat([model(part) for part in self._view(size)[:images].split(batch)])
