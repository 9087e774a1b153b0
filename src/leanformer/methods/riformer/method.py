"""RIFormer: train an affine in place of the token mixer, then merge it into the norm: no token mixer is left.

    training    x + scale·(s·z + t − z),  z = norm(x)           Eq. 1
    inference   x + norm'(x)                                    Eq. 3, norm' from norm, s, t (Eq. 4) and scale

The affine alone learns no better than no token mixer at all; module imitation makes it useful: the blocks follow those
of a teacher of the same shape (the backbone with its token mixers), while logits come from any teacher, without labels.

B batch, P positions, C channels. Equation and table numbers are those of the RIFormer paper.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core import (
    Block,
    Branch,
    Build,
    Choices,
    Layout,
    LocalRewrite,
    Method,
    Objective,
    Step,
    blocks_of,
    learnable,
    select,
)
from ...core.reduce import arrangements, moving, same_tokens
from ...fields import Above0, Amount, Share, Within
from ...layers.layout import to_tokens
from ...layers.losses import Distillation, distil, feature_loss, relation_loss
from .affine import Affine, AffineBranch, MixerFree, Start, absorbs
from .fast import REWRITES


@dataclasses.dataclass(frozen=True, kw_only=True)
class RIFormer(Method, name="riformer"):
    """No token mixer at inference, in all blocks or in some.

    >>> import leanformer as lf
    >>> model = lf.apply(lf.create("poolformer_s12"), lf.RIFormer())
    >>> type(lf.fuse(model, verify=False).stages[0].blocks[0].mix).__name__
    'NormResidual'
    """

    acts_on: ClassVar = "mixer"

    blocks: tuple[int, ...] | None = None
    """Which blocks. None: all of them, or the first quarter where a class token must gather the image."""
    stages: tuple[int, ...] | None = None
    """Stages whose blocks lose their token mixer, counted from 0; None: all."""
    identity: bool = False
    """The plain variant without an affine: the branch adds norm(x) (Tables 1 and 2)."""
    start: Start = "fit"
    """The affine's start: 'fit' adds nothing until `lf.calibrate` fits it; 'paper' adds −norm(x), as the released
    configurations do (s of deviation 0.02, t zero); 'uniform' draws both from −1 to 1."""

    distillation: Distillation = "soft"
    """The logit teacher's probabilities ('soft') or its top class ('hard')."""
    temperature: Above0 = 1.0
    label_weight: Share = 0.0
    """Share of the cross-entropy with the labels in the logit loss: the paper's best is none (Tables 2 and 3)."""
    layers: Annotated[int, Within(0)] | tuple[int, ...] = 4
    """How many blocks imitate, spread over the stages, or which (indices over the whole depth)."""
    block_weight: Amount = 1.0
    """λ₁ of Eq. 9. The paper leaves its three weights unsaid; of 0.1, 1 and 10 for all of them, 1 left the student
    closest to its teacher (a small PoolFormer on Tiny-ImageNet, with relative=True)."""
    output_weight: Amount = 1.0
    """λ₂."""
    relation_weight: Amount = 1.0
    """λ₃."""
    relative: bool = False
    """False: the paper's plain mean (Eq. 6 and 8). True, our variant: L_in' and L_out divided by the mean square of the
    teacher's features, so that every block counts alike."""
    feature_epochs: Amount = 80
    """How long L_in' and L_out count, from the start; the paper's 80 are out of 120."""
    relation_epochs: Amount = 20
    """How long L_rel counts."""

    @classmethod
    def rewrites(cls) -> tuple[LocalRewrite, ...]:
        return REWRITES

    def off(self) -> "RIFormer":
        return self.replace(blocks=())

    def swaps(self, model: nn.Module) -> dict[str, Build]:
        chosen = select(model, "mix", self._blocks(model), self.stages)
        _refuse_blind_class_token(model, chosen)
        for path, block in chosen.items():
            _refuse_unknown(path, block)
        return {path: _Swap(self, block.layout, block.dim) for path, block in chosen.items()}

    @classmethod
    def choices(cls, model: nn.Module) -> Choices | None:
        depth = len(blocks_of(model))
        blocks = tuple(range(depth - 1 if _reads_class_token(model) else depth))
        served = blocks and cls(blocks=blocks).serves(model)
        return Choices(blocks, most=1.0, steps=(1.0,), fitted=True) if served else None

    @classmethod
    def with_shares(cls, shares: Mapping[int, float]) -> "RIFormer":
        return cls(blocks=tuple(sorted(shares)), start="fit")

    def objective(self, student: nn.Module, teacher: nn.Module | None) -> "ModuleImitation":
        """Logit distillation and module imitation.

        Logits come from the teacher called 'teacher', any model; without one, from the labels. Blocks follow the one
        called 'imitation'; where only 'teacher' is given and has the student's blocks, it serves for both.
        """
        return ModuleImitation(self, student, teacher)

    def _blocks(self, model: nn.Module) -> tuple[int, ...] | None:
        if self.blocks is not None or self.stages is not None or not _reads_class_token(model):
            return self.blocks
        return tuple(range(max(1, len(blocks_of(model)) // 4)))


@dataclasses.dataclass(frozen=True)
class _Swap:
    """Builds the new branch around the old one's norm, scale, drop path and skip."""

    method: RIFormer
    layout: Layout
    dim: int

    def __call__(self, old: nn.Module) -> nn.Module:
        assert isinstance(old, Branch)
        parts: dict[str, Any] = {**old.parts(), "layout": self.layout, "dim": self.dim}
        parts["fn"] = nn.Identity() if self.method.identity else Affine(self.dim, self.layout)
        return MixerFree(**parts) if self.method.identity else AffineBranch(start=self.method.start, **parts)


def _reads_class_token(model: nn.Module) -> bool:
    """Whether the head reads a token that only attention fills."""
    prefix = any(block.grid is not None and block.grid.prefix for block in blocks_of(model).values())
    return prefix and getattr(model, "global_pool", "token") in ("token", "")


def _refuse_blind_class_token(model: nn.Module, chosen: dict[str, Block]) -> None:
    every = blocks_of(model)
    if chosen and len(chosen) == len(every) and _reads_class_token(model):
        raise ValueError(
            f"riformer would leave all {len(every)} blocks without token mixer, so that the class token sees no patch; "
            "keep at least one, e.g. blocks=(0, 1), or average the patches with global_pool='avg'"
        )


def _refuse_unknown(path: str, block: Block) -> None:
    if "ffn" not in block.slots:
        raise ValueError(f"{path}: the block has one branch for mixer and MLP; riformer would leave nothing of it")
    if not isinstance(block.mix, Branch):
        raise ValueError(f"{path} is a {type(block.mix).__name__}, not a residual branch with a norm to merge into")
    if not absorbs(block.mix.norm):
        name = type(block.mix.norm).__name__
        raise ValueError(f"{path}: {name} cannot take in the affine's shift; LayerNorm and GroupNorm can")


class ModuleImitation(Objective):
    """Eq. 9: L_soft + λ₁ L_in' + λ₂ L_out + λ₃ L_rel, each imitation term the mean over the chosen blocks.

    Terms are 'logits', 'block', 'output' and 'relation'; an imitation term is absent once its epochs are over.
    """

    def __init__(self, method: RIFormer, student: nn.Module, teacher: nn.Module | None):
        super().__init__()
        every = blocks_of(student)
        chosen = {path: every[path] for path in _imitating(method.layers, every)}
        self.method = method
        self.dims = {path: block.dim for path, block in chosen.items()}
        self.layouts: dict[str, Layout] = {path: block.layout for path, block in chosen.items()}
        self.affines = [path for path, block in chosen.items() if isinstance(block.mix, AffineBranch)]
        self.ends = {path: f"{path}.{block.slots[-1]}" for path, block in chosen.items()}
        self.arranged, self.moved_by = arrangements(student), next(iter(moving(student)), None)
        self.meet({} if teacher is None else {"teacher": teacher})

    def meet(self, teachers: dict[str, nn.Module]) -> None:
        self.has_teacher = "teacher" in teachers
        fits = self.has_teacher and self._fits(blocks_of(teachers["teacher"]))
        self.imitated = "teacher" if fits and "imitation" not in teachers else "imitation"
        self.imitates = bool(self.layouts and teachers)
        if self.imitates and self.imitated in teachers:
            self._refuse_moved_tokens(teachers[self.imitated])

    def needs_labels(self) -> bool:
        return not self.has_teacher or self.method.label_weight > 0

    def student_taps(self) -> frozenset[str]:
        return frozenset(self.layouts) | {f"{path}.mix.fn" for path in self.affines} if self.imitates else frozenset()

    def teacher_taps(self) -> dict[str, frozenset[str]]:
        wanted = {"teacher": frozenset[str]()} if self.has_teacher else {}
        return wanted | ({self.imitated: self.student_taps()} if self.imitates else {})

    def forward(self, step: Step) -> dict[str, Tensor]:
        terms = {"logits": self._logits(step)}
        if not self.imitates:
            return terms
        teacher = self._blocks_of_teacher(step)
        method, student = self.method, step.student.taps
        if step.epoch < method.feature_epochs:
            outputs = [f"{path}.mix.fn" for path in self.affines]
            for name, paths in (("block", list(self.layouts)), ("output", outputs)):
                losses = [feature_loss(student[p], teacher[p], method.relative) for p in paths]
                terms |= {name: getattr(method, f"{name}_weight") * _mean(losses)} if losses else {}
        if step.epoch < method.relation_epochs:
            pairs = [(to_tokens(student[p], at), to_tokens(teacher[p], at)) for p, at in self.layouts.items()]
            terms["relation"] = method.relation_weight * _mean(relation_loss(ours, theirs) for ours, theirs in pairs)
        return terms

    def _fits(self, theirs: dict[str, Block]) -> bool:
        places = {path: (block.dim, block.layout) for path, block in theirs.items()}
        return all(places.get(path) == (self.dims[path], at) for path, at in self.layouts.items())

    def _refuse_moved_tokens(self, teacher: nn.Module) -> None:
        """Refuse blocks whose tokens were dropped, merged or mixed before, where the teacher's were not so too."""
        same = same_tokens(self.arranged, arrangements(teacher))
        for path, end in self.ends.items():
            if self.arranged[end] and end not in same:
                raise ValueError(
                    f"{path} is to imitate the teacher's block token by token, but {self.moved_by} drops, merges or "
                    "mixes tokens before; imitate earlier blocks, or set layers=0 to learn from logits alone"
                )

    def _logits(self, step: Step) -> Tensor:
        """L_soft, its hard variant, or the labels where there is no teacher."""
        share = self.method.label_weight if self.has_teacher else 1.0
        student = step.student.logits()
        loss = torch.zeros((), device=student.device)
        if share > 0:
            loss = loss + share * F.cross_entropy(student, step.targets)
        if share < 1:
            teacher = step.teacher().logits()
            loss = loss + (1 - share) * distil(student, teacher, self.method.distillation, self.method.temperature)
        return loss

    def _blocks_of_teacher(self, step: Step) -> dict[str, Tensor]:
        if self.imitated not in step.teachers:
            raise ValueError(
                "module imitation needs a teacher with the student's blocks: give the backbone with its token mixers "
                "as 'imitation' beside the teacher of the logits, or set layers=0"
            )
        return {path: learnable(tensor) for path, tensor in step.teacher(self.imitated).taps.items()}


def spread(stages: Sequence[int], n: int) -> list[int]:
    """n of the blocks whose stages are given: every stage in turn, the longer ones more often, each to its end.

    >>> spread([0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3], 4), spread([0] * 12, 4)
    ([1, 3, 9, 11], [2, 5, 8, 11])
    """
    members = {stage: [i for i, s in enumerate(stages) if s == stage] for stage in stages}
    picks = dict.fromkeys(members, 0)
    for _ in range(min(n, len(stages))):
        neediest = min(picks, key=lambda stage: (picks[stage] / len(members[stage]), -len(members[stage]), -stage))
        picks[neediest] += 1
    return [members[s][(j + 1) * len(members[s]) // k - 1] for s, k in picks.items() for j in range(k)]


def _imitating(layers: int | tuple[int, ...], every: dict[str, Block]) -> list[str]:
    """The paths of the blocks that imitate; a number chooses among the blocks without token mixer."""
    if isinstance(layers, int):
        free = [path for path, block in every.items() if isinstance(block.mix, MixerFree)]
        return [free[i] for i in spread([every[path].stage for path in free], layers)]
    paths = list(every)
    wrong = [i for i in layers if not 0 <= i < len(paths)]
    if wrong:
        raise ValueError(f"layer {wrong[0]} does not exist; this model has blocks 0 to {len(paths) - 1}")
    return [paths[i] for i in layers]


def _mean(losses: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(losses)).mean()
