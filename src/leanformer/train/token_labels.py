"""Token labelling: every patch has a label of its own, a distribution that an annotator model gives its place.

    loss = w_c H(p_cls, y_cls) + w_d / T Σ_i H(p_i, y_i)            H cross-entropy, T the patch tokens that are left

With mix-token a box of patches comes from the partner image: its labels come from there as well, and the class label
is λ y + (1 - λ) y_partner, λ the share of patches that stayed. Where a method drops patches, those that are left
keep their labels; a fused token has none.

B batch, H x W the plane of patches, N = H·W, T tokens that are left, K classes.
"""

import os
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import Objective, Step, blocks_of, decision_paths, input_of, single_patches, trace
from ..core.reduce import refuse_untraceable
from ..data.label_maps import LabelMaps, Place
from ..data.mixing import soft_targets
from ..data.places import with_places
from .objectives import objective


def mix_targets(targets: Tensor, mixed: Tensor) -> Tensor:
    """Class labels (B, K) of images whose patches `mixed` (N,) came from the flipped batch.

    >>> mix_targets(torch.eye(2), torch.tensor([True, False, False, False]))
    tensor([[0.7500, 0.2500],
            [0.2500, 0.7500]])
    """
    share = mixed.float().mean()
    return (1 - share) * targets + share * targets.flip(0)


def mix_labels(labels: Tensor, mixed: Tensor) -> Tensor:
    """Patch labels (B, N, K) after mix-token: those of the patches that came from the flipped batch come along."""
    return torch.where(mixed[None, :, None], labels.flip(0), labels)


def token_loss(logits: Tensor, labels: Tensor, kept: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of patch tokens (B, T, K) with the labels (B, N, K) of their patches.

    `kept` (B, T') says which patch each of the first T' tokens is; -1, and the tokens behind them, have no label.

    >>> token_loss(torch.zeros(1, 3, 2), torch.ones(1, 4, 2) / 2, torch.tensor([[2, 0, -1]]))
    tensor(0.6931)
    """
    if kept is None:
        if logits.shape[1] != labels.shape[1]:
            raise ValueError(f"{logits.shape[1]} patch tokens for {labels.shape[1]} labels: say which patches are left")
        kept = torch.arange(labels.shape[1], device=labels.device).expand(len(labels), -1)
    logits = logits[:, : kept.shape[1]].float()  # (B, T', K)
    labels = labels.gather(1, kept.clamp_min(0)[..., None].expand(-1, -1, labels.shape[2]))  # (B, T', K)
    losses = -(labels * logits.log_softmax(-1)).sum(-1)  # (B, T')
    known = kept >= 0
    return (losses * known).sum() / known.sum().clamp_min(1)


class Annotator(nn.Module):
    """A trained classifier that labels places instead of images: its head is applied to each feature by itself.

    The objective of token labels makes one of the teacher that it is given. Takes any timm model, convolutional or
    not; an LV-ViT labels with its own token-label head.

    >>> import timm
    >>> Annotator(timm.create_model("resnet18", num_classes=10))(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 2, 2, 10])
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        if not hasattr(model, "forward_features") or not hasattr(model, "forward_head"):
            raise ValueError(f"{type(model).__name__} cannot label places: it has no forward_features and forward_head")
        self.model = model
        self.num_classes = int(model.num_classes)  # type: ignore[arg-type]
        data = input_of(model)
        self.pretrained_cfg = data  # where timm's data pipeline and leanformer look for the input's description
        self.in_chans, self.img_size = data["input_size"][0], data["input_size"][1:]

    def forward(self, images: Tensor) -> Tensor:
        """Logits of every place, (B, H, W, K)."""
        model: Any = self.model
        x = model.forward_features(images)
        if x.ndim == 3:
            prefix = getattr(model, "num_prefix_tokens", 0)
            x = x[:, prefix:].unflatten(1, _plane(model, x.shape[1] - prefix))  # (B, H, W, C)
            alone = x.flatten(0, 2)[:, None].expand(
                -1, prefix + 1, -1
            )  # whichever token the head reads, it is this one
        elif x.shape[-1] == model.num_features:
            alone = x.flatten(0, 2)[:, None, None]  # (B·H·W, 1, 1, C)
        else:
            x = x.permute(0, 2, 3, 1)  # (B, H, W, C)
            alone = x.flatten(0, 2)[:, :, None, None]  # (B·H·W, C, 1, 1)
        if hasattr(model, "aux_head"):
            return model.aux_head(x)
        return model.forward_head(alone).unflatten(0, x.shape[:3])


@objective("token_labels")
class TokenLabels(Objective):
    """Cross-entropy of the class token and of every patch token, for models that answer with `Dense` (LV-ViT).

    The patches' labels come from the teacher called `annotator`, which sees the very images of the step, mixed or
    not; or, with `labels`, from maps on disk (`LabelMaps`), of which each image says the crop: then the training data
    are read with places (B, 7) for targets, without mixup, cutmix or label smoothing of the recipe's (`smoothing`
    here does that). `class_labels="annotator"` takes the class token's label from there too, as the published recipe
    does.

    >>> TokenLabels(labels="maps/", class_labels="annotator").teacher_taps()  # doctest: +SKIP
    {}
    """

    def __init__(
        self,
        dense_weight: float = 0.5,
        class_weight: float = 1.0,
        annotator: str = "annotator",
        labels: "str | os.PathLike[str] | LabelMaps | None" = None,
        class_labels: Literal["targets", "annotator"] = "targets",
        mix_token: bool = True,
        smoothing: float = 0.0,
    ):
        super().__init__()
        if class_labels not in ("targets", "annotator"):
            raise ValueError(f"class_labels is 'targets' or 'annotator', not '{class_labels}'")
        self.dense_weight, self.class_weight, self.smoothing = dense_weight, class_weight, smoothing
        self.annotator, self.class_labels, self.mix_token = annotator, class_labels, mix_token
        self.labels = labels if labels is None or isinstance(labels, LabelMaps) else LabelMaps(labels)
        self._student: tuple[nn.Module, ...] = ()  # a tuple, so that the student is no part of the objective

    def prepare(self, student: nn.Module) -> None:
        """Make the student answer with the logits of every patch in training.

        The head of the patches learns even where inference leaves it aside.
        """
        if getattr(student, "aux", "none") == "none":
            raise ValueError(f"{type(student).__name__} has no token-label head; take an LV-ViT, but not aux='none'")
        if self.labels is not None:
            _same_classes(f"{self.labels.folder}", self.labels.num_classes, student)
        refuse_untraceable(student)
        student.aux_head.requires_grad_(True)  # type: ignore[operator]
        student.return_dense, student.mix_token = True, self.mix_token  # type: ignore[assignment]
        self._student = (student,)

    def teacher_form(self, name: str, teacher: nn.Module) -> nn.Module:
        if name == self.annotator and self._student and self.labels is None:
            _same_classes(f"the teacher '{name}'", getattr(teacher, "num_classes", None), self._student[0])
        return Annotator(teacher) if name == self.annotator and not _labels_places(teacher) else teacher

    def data_form(self, data: Any, seed: int) -> Any:
        if self.labels is None:
            return data
        if len(data) != len(self.labels):
            raise ValueError(
                f"{self.labels.folder} has maps of {len(self.labels)} images, but {data.name} has {len(data)}; a map "
                "is found by its image's number: write maps of the very images that are learnt from"
            )
        return with_places(data, seed)

    def student_taps(self) -> frozenset[str]:
        return frozenset(decision_paths(self._student[0])) if self._student else frozenset()

    def teacher_taps(self) -> dict[str, frozenset[str]]:
        return {self.annotator: frozenset()} if self.labels is None else {}

    def forward(self, step: Step) -> dict[str, Tensor]:
        answer = step.student.output
        if not self._student or not hasattr(answer, "dense"):
            raise ValueError(
                "token labels need a student that answers with `Dense`: call prepare(student), and train in "
                "training mode"
            )
        size = self._grid_size()
        dense, whole = self._from_maps(step, size) if self.labels is not None else self._from_annotator(step, size)
        classes = answer.logits.shape[-1]
        if self.class_labels == "targets":
            targets = step.targets if self.labels is None else Place.of(step.targets).label
            whole = soft_targets(targets, classes, self.smoothing)  # (B, K)
        target = mix_targets(whole, answer.mixed)  # (B, K)
        logits = answer.logits.float()
        kept = self._kept(step)
        return {
            "class_label": self.class_weight * F.cross_entropy(logits, target),
            "token_labels": self.dense_weight * token_loss(answer.dense, mix_labels(dense, answer.mixed), kept),
        }

    def _from_annotator(self, step: Step, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Labels of the patches (B, N, K) and of the whole image (B, K), by the teacher."""
        maps = step.teacher(self.annotator).output  # (B, H', W', K)
        if maps.ndim != 4:
            raise ValueError(f"the teacher '{self.annotator}' gives {tuple(maps.shape)}; wrap it in train.Annotator")
        maps = maps.float().permute(0, 3, 1, 2)  # (B, K, H', W')
        dense = F.interpolate(maps, size, mode="bilinear", antialias=True).flatten(2).transpose(1, 2)  # (B, N, K)
        return self._smooth(dense.softmax(-1)), self._smooth(maps.mean((2, 3)).softmax(-1))

    def _from_maps(self, step: Step, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        assert self.labels is not None
        dense, whole = self.labels.crops(Place.of(step.targets), size)
        return self._smooth(dense), self._smooth(whole)

    def _smooth(self, labels: Tensor) -> Tensor:
        return labels * (1 - self.smoothing) + self.smoothing / labels.shape[-1]

    def _grid_size(self) -> tuple[int, int]:
        grid = next(iter(blocks_of(self._student[0]).values())).grid
        assert grid is not None
        return grid.size

    def _kept(self, step: Step) -> Tensor | None:
        """Which patch each token is, where a method has dropped some."""
        paths = [path for path in decision_paths(self._student[0]) if path in step.student.taps]
        if not paths:
            return None
        rows = trace(self._student[0], {path: step.student.taps[path] for path in paths})[-1]  # (B, M, N)
        return single_patches(rows)


def _same_classes(source: str, classes: int | None, student: Any) -> None:
    """Refuse labels of other classes than the student's; a module of one's own need not say how many it has."""
    if classes is not None and classes != student.num_classes:
        raise ValueError(
            f"{source} has labels of {classes} classes, the student a head for {student.num_classes}: take labels of "
            f"the student's classes, or a student with num_classes={classes}"
        )


def _labels_places(teacher: nn.Module) -> bool:
    """Whether a teacher is an annotator already: one of ours, or a module that is no classifier."""
    return isinstance(teacher, Annotator) or not hasattr(teacher, "forward_head")


def _plane(model: Any, tokens: int) -> tuple[int, int]:
    embed = getattr(model, "patch_embed", None) or getattr(model, "stem", None)
    height, width = getattr(embed, "grid_size", (0, 0))
    if height * width != tokens:
        raise ValueError(f"{type(model).__name__} gives {tokens} patch tokens, which are no plane of {height}x{width}")
    return height, width
