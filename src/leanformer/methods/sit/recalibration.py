"""Feature recalibration distillation: the teacher supervises every token of every block of a slimmed student.

    loss = CE(s, y) + λ_token · mean over blocks of (R(S) - T)² + λ_logits · τ² KL(t ‖ s) + λ_hard · CE(d, argmax c)

R brings N̂ slimmed tokens back to N:
    RTSM           Y = W₂ gelu(W₁ norm(X̂)) along the tokens, then Y + MLP(norm(Y)) along the channels
    token-mlp      the first half alone         interpolation, deconvolution   the tokens taken for a coarse plane

All of it exists while training only: it belongs to the objective and never to the model.

S, T tokens of student and teacher, s, t their logits, d the distillation head's, c a CNN teacher's.
B batch, N̂ slimmed tokens, N all patches, C channels, H x W the plane of patches.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import Tensor, nn

from ...core import Grid, Objective, Step, blocks_of, learnable, patch_plane
from ...layers.layout import to_plane
from ...layers.levels import levels_of
from ...layers.losses import distil, feature_loss
from ...layers.start import init_linear
from .slimming import NORM_EPS, Size, pooling_prior, start_as

Recalibration = Literal["rtsm", "token-mlp", "interpolation", "deconvolution"]


def recalibrator(kind: str, dim: int, tokens: int, size: Size, start: str = "random") -> nn.Module:
    """The module that brings `tokens` tokens back to an H x W plane; nothing to do where none is missing.

    With start "grid", an MLP along the tokens begins as soft un-pooling, so that the teacher's word reaches the student
    from the first step on, and not only once the MLP has learnt to pass it through.

    >>> recalibrator("rtsm", 8, 4, (4, 4))(torch.zeros(2, 4, 8)).shape
    torch.Size([2, 16, 8])
    """
    if tokens == size[0] * size[1]:
        return nn.Identity()
    if kind == "interpolation":
        return Interpolation(tokens, size)
    if kind == "deconvolution":
        return Deconvolution(dim, tokens, size)
    module = (TokenMlp if kind == "token-mlp" else ReverseTokenSlimming)(dim, tokens, size[0] * size[1])
    if start == "grid":
        start_as(unpooling(tokens, size), module.mlp1.fc1, module.mlp1.fc2)  # type: ignore[arg-type]
    return module


def unpooling(tokens: int, size: Size) -> Tensor:
    """Weights (N, N̂) with which every patch of the plane begins as a mean of the tokens around it.

    >>> unpooling(4, (4, 4))[0].argmax().item(), unpooling(4, (4, 4))[15].argmax().item()
    (0, 3)
    """
    return pooling_prior(size[0] * size[1], tokens, size).T.softmax(1)


class TokenMlp(nn.Module):
    """N̂ tokens to N through an MLP along the token axis with 4N hidden units: (B, N̂, C) → (B, N, C)."""

    def __init__(self, dim: int, tokens: int, patches: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.mlp1 = Mlp(tokens, 4 * patches, patches)
        self.apply(init_linear)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp1(self.norm1(x).transpose(1, 2)).transpose(1, 2)


class ReverseTokenSlimming(TokenMlp):
    """The reverse token slimming module (RTSM): a token MLP, then a residual channel MLP."""

    def __init__(self, dim: int, tokens: int, patches: int):
        super().__init__(dim, tokens, patches)
        self.norm2 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.mlp2 = Mlp(dim, 4 * dim, dim)
        self.apply(init_linear)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)  # (B, N, C)
        return y + self.mlp2(self.norm2(y))


class Interpolation(nn.Module):
    """Tokens taken for a coarse plane, bilinearly enlarged: (B, N̂, C) → (B, N, C)."""

    def __init__(self, tokens: int, size: Size):
        super().__init__()
        self.coarse = nearest_plane(tokens, size)
        self.size = size

    def enlarge(self, plane: Tensor) -> Tensor:
        return plane

    def forward(self, x: Tensor) -> Tensor:
        plane = self.enlarge(x.transpose(1, 2).unflatten(2, self.coarse))  # (B, C, h, w)
        return resized(plane, self.size).flatten(2).transpose(1, 2)


class Deconvolution(Interpolation):
    """Tokens taken for a coarse plane, enlarged by a transposed convolution; what is over is interpolated away."""

    def __init__(self, dim: int, tokens: int, size: Size):
        super().__init__(tokens, size)
        stride = (math.ceil(size[0] / self.coarse[0]), math.ceil(size[1] / self.coarse[1]))
        self.deconv = nn.ConvTranspose2d(dim, dim, kernel_size=stride, stride=stride)

    def enlarge(self, plane: Tensor) -> Tensor:
        return self.deconv(plane)


def nearest_plane(tokens: int, size: Size) -> Size:
    """The plane of exactly `tokens` tokens whose shape is nearest to that of `size`.

    >>> nearest_plane(98, (14, 14)), nearest_plane(24, (14, 14))
    ((7, 14), (4, 6))
    """
    planes = [(rows, tokens // rows) for rows in range(1, tokens + 1) if tokens % rows == 0]
    return min(planes, key=lambda plane: round(abs(math.log(plane[0] * size[1] / (plane[1] * size[0]))), 6))


def resized(plane: Tensor, size: Size) -> Tensor:
    """A plane (B, C, h, w) at another size, bilinearly; itself if it has that size.

    >>> resized(torch.zeros(1, 8, 7, 7), (14, 14)).shape
    torch.Size([1, 8, 14, 14])
    """
    if tuple(plane.shape[2:]) == tuple(size):
        return plane
    return F.interpolate(plane, size=size, mode="bilinear", align_corners=False)


class FeatureRecalibration(Objective):
    """Feature recalibration distillation (FRD), with the reverse modules that only training needs.

    `tokens` is the number of patch tokens that each block hands to the next, slimmed already. The teacher's blocks, or
    the feature levels of one without blocks, are matched by depth; tokens of another width are projected to the
    teacher's, and a teacher's plane of another size is resized to ours. `lambda_hard` needs a second teacher called
    'cnn' and a distillation token in the student.

    Terms are 'cls', 'token', 'logits' and 'hard'. The parameters have the names of official checkpoints, `rtsm.{i}.…`.

    >>> import leanformer as lf
    >>> teacher = lf.create("deit_tiny_patch16_224", depth=4)
    >>> sorted(lf.SiT().objective(lf.apply(teacher, lf.SiT()), teacher).student_taps())
    ['blocks.1.pre', 'blocks.2.pre', 'blocks.3', 'blocks.3.pre']
    """

    learning_rate_scale = 5.0
    """The learning rate of the reverse modules, in learning rates of the student."""

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        tokens: Sequence[int],
        recalibration: Recalibration = "rtsm",
        lambda_token: float = 2.0,
        lambda_logits: float = 2.0,
        lambda_hard: float = 0.0,
        tau: float = 1.0,
        start: str = "random",
    ):
        super().__init__()
        if lambda_hard and not hasattr(student, "head_dist"):
            raise ValueError(f"lambda_hard needs a distillation token, which {type(student).__name__} has not")
        self.lambda_token, self.lambda_logits, self.lambda_hard = lambda_token, lambda_logits, lambda_hard
        self.tau = tau
        self.at: list[str] = []
        self.teacher_at: list[tuple[str, str, Grid | None]] = []
        self.rtsm, self.project = nn.ModuleList(), nn.ModuleList()
        if lambda_token:
            self._pair(student, teacher, tokens, partial(recalibrator, recalibration, start=start))

    def _pair(self, student: nn.Module, teacher: nn.Module, tokens: Sequence[int], build: Any) -> None:
        """Where to read each block's tokens and the teacher's, and what brings the one to the shape of the other."""
        try:
            ours, theirs = list(blocks_of(student).items()), levels_of(teacher)
        except ValueError as error:
            raise ValueError(f"{error}; learn from its logits alone with lambda_token=0") from error
        grid = ours[0][1].grid
        assert grid is not None
        self.prefix, self.size = grid.prefix, patch_plane(student) or grid.size
        after = [*(f"{path}.pre" for path, _ in ours[1:]), ours[-1][0]]
        for i, ((_, block), path, count) in enumerate(zip(ours, after, tokens, strict=True)):
            self.at.append(path)
            match = theirs[max(0, round((i + 1) * len(theirs) / len(ours)) - 1)]
            self.teacher_at.append((match.path, match.layout, match.grid))
            self.rtsm.append(build(block.dim, count, self.size))
            self.project.append(nn.Identity() if match.dim == block.dim else nn.Linear(block.dim, match.dim))

    def student_taps(self) -> frozenset[str]:
        return frozenset([*self.at, *(["head", "head_dist"] if self.lambda_hard else [])])

    def teacher_taps(self) -> dict[str, frozenset[str]]:
        wanted = {"teacher": frozenset(path for path, _, _ in self.teacher_at)}
        return wanted | ({"cnn": frozenset()} if self.lambda_hard else {})

    def recalibrated(self, taps: dict[str, Tensor]) -> list[Tensor]:
        """The student's tokens of every block, brought back to all patches: (B, N, C) each."""
        return [rtsm(taps[path][:, self.prefix :]) for path, rtsm in zip(self.at, self.rtsm)]

    def forward(self, step: Step) -> dict[str, Tensor]:
        logits = step.student.taps["head"].float() if self.lambda_hard else step.student.logits()
        terms = {"cls": F.cross_entropy(logits, step.targets)}
        if self.lambda_token:
            terms["token"] = self.lambda_token * self._token_loss(step)
        if self.lambda_logits:
            loss = distil(logits, step.teacher().logits(), temperature=self.tau)
            terms["logits"] = self.lambda_logits * loss
        if self.lambda_hard:
            answers = step.teacher("cnn").logits()
            terms["hard"] = self.lambda_hard * distil(step.student.taps["head_dist"].float(), answers, "hard")
        return terms

    def _token_loss(self, step: Step) -> Tensor:
        ours, theirs = self.recalibrated(step.student.taps), step.teacher().taps
        losses = []
        for tokens, project, (path, layout, grid) in zip(ours, self.project, self.teacher_at):
            plane = resized(to_plane(learnable(theirs[path]), layout, grid)[0], self.size)  # (B, C, H, W)
            losses.append(feature_loss(project(tokens), plane.flatten(2).transpose(1, 2)))
        return torch.stack(losses).mean()
