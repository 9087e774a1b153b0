"""SiT's ablations, each row of Tables 4 to 10 and of Figures 5a and 5b as a student of a trained LV-ViT+.

    table4   slimmed tokens against a narrower and a shallower model and against dropped tokens, at one cost
    table5   whose knowledge: the model's own, a CaiT's, a RegNet's; from scratch, from its weights, block by block
    table6   costs of 1, 3/4, 1/2 and 1/4, taught by recalibration or by a CNN's labels
    table7   how tokens are slimmed         table8   how they are brought back to be compared with the teacher's
    table9   the terms of the loss          table10  their weights
    figure5a soft slimming against dropping over costs      figure5b  slimming at random places with random ratios

    python -m lab study sit --data pack:tiny_imagenet --set img_size=128 --set cait=cait_xxs24_224 \\
        --set regnet=regnety_016 --epochs 12 --teacher-epochs 30 --precision bf16 --compile --seeds 0 1

All rows are of SiT-Ti on LV-ViT+-Ti but Table 5's, which are of SiT-XS on LV-ViT+-S. A run trains all its rows for
`--epochs`. The paper's have 125 epochs, Table 10's 100, and some 300: the narrower and the shallower model of Table 4
(with token labels, here with plain ones), Table 5's from scratch, and Table 9's last row, which is `table9/hard`. Run
those alone, with 2.4 times the `--epochs`. DynamicViT, with which Table 4 and Figure 5a compare, drops tokens by a
learnt score; EViT stands for it here, which drops them by the class token's attention, distilled.
"""

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

import leanformer as lf
from leanformer.backbones import create, from_card
from leanformer.core import apply, blocks_of, card_of
from leanformer.methods import EViT, SiT
from leanformer.methods.sit import slimmed_counts
from leanformer.papers.published import extended

from .student import DISTILLED, LABELS, Make, Student, Study
from .teachers import TRAINED_RATE, apart, teacher_from, teachers_by_name
from .training_free import cost, course, left_by_evit

BACKBONE, TABLE5, CAIT, REGNET = "lvvit_plus_tiny", "lvvit_plus_small", "cait_s24_224", "regnety_160"
SHARES = {1.0: ("82.1", "82.1"), 0.75: ("82.0", "82.0"), 0.5: ("81.6", "81.3"), 0.25: ("80.1", "78.4")}
"""Share of the blocks' cost → Table 6's top-1 by recalibration, and by a CNN's labels."""
KNOWLEDGE = {"self": (80.1, 80.5, 81.1), "cait": (79.9, 80.2, 80.6), "regnet": (79.2, 80.0, 80.2)}
"""Teacher → Table 5's top-1 from scratch, from the model's own weights, and with its blocks as well."""
WEIGHTS = {(1, 1, 1): 79.3, (1, 2, 1): 79.4, (1, 2, 2): 79.5, (2, 1, 1): 79.6, (2, 2, 1): 79.6}
"""Weights of tokens, logits and the CNN's labels → Table 10's top-1."""
DRAWN = 6
"""Random models of Figure 5b."""
PAPER: dict[str, Any] = {"start": "random"}
"""The paper's slimming starts at random, ours as soft pooling of the plane."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """What the blocks of a ViT cost for so many tokens, in MACs."""

    depth: int
    patches: int
    dim: int
    hidden: int

    @classmethod
    def of(cls, model: nn.Module) -> "Costs":
        """Those of a ViT without methods."""
        blocks = list(blocks_of(model).values())
        grid = blocks[0].grid
        assert grid is not None
        hidden: int = blocks[0].ffn.fn.fc1.out_features  # type: ignore[union-attr,assignment]
        return cls(len(blocks), grid.size[0] * grid.size[1], blocks[0].dim, hidden)

    def whole(self, depth: int | None = None, dim: int | None = None) -> int:
        """With all tokens in every block, of another depth or width where one is given."""
        wide = dim or self.dim
        return cost([(self.patches, self.patches)] * (depth or self.depth), wide, wide * self.hidden // self.dim)

    def slimmed(self, at: Sequence[int], keep_ratio: float = 0.5) -> int:
        """With tokens slimmed before the blocks `at`."""
        counts = slimmed_counts(self.patches, keep_ratio, len(at))
        tokens = [counts[sum(place <= block for place in at)] for block in range(self.depth)]
        return cost([(n, n) for n in tokens], self.dim, self.hidden)

    def places(self, share: float) -> tuple[int, ...]:
        """Three blocks in a row before which tokens are halved, so that the blocks cost most nearly this share.

        >>> Costs(depth=14, patches=196, dim=320, hidden=960).places(0.5)
        (6, 7, 8)
        """
        rows = [tuple(range(first, min(first + 3, self.depth))) for first in range(1, self.depth)]
        return min(rows, key=lambda at: abs(self.slimmed(at) - share * self.whole()))

    def quartering(self, at: tuple[int, ...]) -> tuple[int, ...]:
        """Two blocks before which a quarter of the tokens stays, at the cost of halving them before the blocks `at`.

        >>> Costs(depth=14, patches=196, dim=320, hidden=960).quartering((1, 2, 3))
        (1, 8)
        """
        pairs = [(at[0], second) for second in range(at[0] + 1, self.depth)]
        wanted = self.slimmed(at)
        return min(pairs, key=lambda pair: abs(self.slimmed(pair, 0.25) - wanted))

    def keep_rate(self, wanted: int) -> float:
        """EViT's rate after each quarter of the depth at which the blocks cost most nearly `wanted`."""
        at = sorted({self.depth * quarter // 4 for quarter in (1, 2, 3)})

        def dropped(rate: float) -> int:
            return cost(
                course(functools.partial(left_by_evit, rate, at), self.depth, self.patches), self.dim, self.hidden
            )

        return min(RATES, key=lambda rate: abs(dropped(rate) - wanted))


RATES = tuple(hundredth / 100 for hundredth in range(100, 4, -1))


def sit(
    checkpoint: Path | None = None, backbone: str = BACKBONE, table5: str = TABLE5, cait: str = CAIT,
    regnet: str = REGNET, **arguments: Any,
) -> Study:  # fmt: skip
    """The study.

    Args:
        checkpoint: weights that the teacher starts from.
        backbone: the teacher, an LV-ViT+ or any ViT; only an LV-ViT+ has rows with a CNN's labels.
        table5: the teacher of Table 5's own knowledge, from which its students are made.
        cait: the teacher of Table 5 with attention of another kind.
        regnet: the CNN of Tables 5, 6, 9 and 10.
        arguments: those of the backbone; of another teacher alone as `lvvit_plus_small.depth`.

    >>> sit().students[0].name
    'table4/width, labels'
    """
    own, apiece = apart(arguments)
    size = {key: own[key] for key in ("img_size",) if key in own}
    rows = (
        *_table4(backbone, own), *_table5(table5, cait, regnet), *_table6(regnet), *_table7(), *_table8(),
        *_tables9_and_10(regnet), *_figure5a(), *_figure5b(),
    )  # fmt: skip
    distils = backbone.startswith("lvvit")
    return Study(
        name="sit",
        teacher=teacher_from(backbone, checkpoint, own),
        recipe=lf.recipes.finetune(learning_rate=5e-4, mixup=0.0, cutmix=0.0, label_smoothing=0.0, auto_augment=None,
                                   color_jitter=0.0, crop_scale=(0.35, 1.0)),
        teacher_learning_rate=1e-3 if checkpoint is None else TRAINED_RATE,
        students=tuple(row for row in rows if distils or "cnn" not in row.others),
        others=teachers_by_name((table5, cait, regnet), size, apiece),
    )  # fmt: skip


def early(depth: int) -> tuple[int, ...]:
    """Where SiT-Ti slims, before its second, third and fourth block.

    >>> early(14), early(3)
    ((1, 2, 3), (1, 2))
    """
    return tuple(range(1, min(4, depth)))


def _slim(share: float | None = None, **options: Any) -> Make:
    """SiT on the teacher: at SiT-Ti's places, or where its blocks cost a share of the teacher's."""

    def make(teacher: nn.Module, epochs: int) -> nn.Module:
        costs = Costs.of(teacher)
        at = early(costs.depth) if share in (None, 0.25) else costs.places(share)  # the paper's quarter is SiT-Ti
        chosen = {**PAPER, **({"keep_ratio": 1.0} if share == 1 else {}), **options}
        if chosen.get("operator") in ("pool", "conv"):
            at, chosen = costs.quartering(at), {**chosen, "keep_ratio": 0.25}
        start = extended(teacher, distilled=True) if chosen.get("lambda_hard") else teacher
        return apply(start, SiT(at=at, **chosen))

    return make


def _row(name: str, make: Make, paper: float | None = None, **changes: Any) -> Student:
    return Student(name=name, make=make, paper=paper, **changes)


def _labels(name: str, make: Make, paper: float | None = None) -> Student:
    return _row(f"{name}, labels", make, paper, objective=LABELS, teachers=())


def _table4(backbone: str, own: dict[str, Any]) -> list[Student]:
    def scaled(choose: Callable[[Costs, int, int], dict[str, int]]) -> Make:
        def make(teacher: Any, epochs: int) -> nn.Module:
            costs = Costs.of(teacher)
            attention: Any = next(iter(blocks_of(teacher).values())).mix.fn
            smaller = choose(costs, costs.slimmed(early(costs.depth)), attention.num_heads)
            return create(backbone, **{**own, **smaller, "num_classes": teacher.num_classes})

        return make

    def width(costs: Costs, wanted: int, heads: int) -> dict[str, int]:
        dims = [dim for dim in range(8, costs.dim + 1, 8) if dim % heads == 0]
        return {"embed_dim": min(dims, key=lambda dim: abs(costs.whole(dim=dim) - wanted)), "num_heads": heads}

    def depth(costs: Costs, wanted: int, heads: int) -> dict[str, int]:
        depths = range(1, costs.depth + 1)
        return {"depth": min(depths, key=lambda depth: abs(costs.whole(depth=depth) - wanted))}

    return [
        _labels("table4/width", scaled(width), 76.3),
        _labels("table4/depth", scaled(depth), 69.4),
        _row("table4/dropping, distilled", _drop(None), objective=DISTILLED),
        _labels("table4/slimming", _slim(), 77.7),
    ]


def _drop(share: float | None) -> Make:
    """EViT at the cost of SiT-Ti, or at a share of the teacher's."""

    def make(teacher: nn.Module, epochs: int) -> nn.Module:
        costs = Costs.of(teacher)
        wanted = costs.slimmed(early(costs.depth)) if share is None else round(share * costs.whole())
        return apply(teacher, EViT.finetune(keep_rate=costs.keep_rate(wanted)))

    return make


def _table5(backbone: str, cait: str, regnet: str) -> list[Student]:
    def scratch(teacher: Any, epochs: int) -> nn.Module:
        card = card_of(teacher)
        fresh = from_card(card.replace(arguments={**card.arguments, "num_classes": teacher.num_classes}))
        return apply(fresh, SiT(at=early(len(blocks_of(fresh))), lambda_token=0.0, **PAPER))

    rows = []
    for knowledge, top1 in KNOWLEDGE.items():
        other = {"self": "", "cait": cait, "regnet": regnet}[knowledge]
        taught: dict[str, Any] = {"teachers": (), "others": {"teacher": other}} if other else {}
        taught["made_from"] = backbone
        rows += [
            _row(f"table5/{knowledge}, scratch", scratch, top1[0], **taught),
            _row(f"table5/{knowledge}, fine-tuned", _slim(lambda_token=0.0), top1[1], **taught),
            _row(f"table5/{knowledge}, fine-tuned with structure", _slim(), top1[2], **taught),
        ]
    return rows


def _table6(regnet: str) -> list[Student]:
    hard = {"lambda_token": 0.0, "lambda_logits": 0.0, "lambda_hard": 1.0}
    rows = []
    for share, (recalibrated, labelled) in SHARES.items():
        rows += [
            _row(f"table6/{share:g}, recalibration", _slim(share), float(recalibrated)),
            _row(
                f"table6/{share:g} hard, a CNN's labels", _slim(share, **hard), float(labelled), others={"cnn": regnet}
            ),
        ]
    return rows


def _table7() -> list[Student]:
    found = {"pool": 77.4, "conv": 79.3, "token-mlp": 79.3, "tsm": 80.1}
    return [_row(f"table7/{kind}, recalibration", _slim(operator=kind), top1) for kind, top1 in found.items()]


def _table8() -> list[Student]:
    found = {"interpolation": 78.3, "deconvolution": 78.4, "token-mlp": 79.0, "rtsm": 80.1}
    rows = [_row(f"table8/{kind}", _slim(recalibration=kind), top1) for kind, top1 in found.items()]
    return [_row("table8/none", _slim(lambda_token=0.0), 79.0), *rows]


def _tables9_and_10(regnet: str) -> list[Student]:
    cnn: dict[str, Any] = {"others": {"cnn": regnet}}
    rows = [
        _labels("table9/labels", _slim(), 77.7),
        _row("table9/logits", _slim(lambda_token=0.0), 79.0),
        _row("table9/token", _slim(), 80.1),
        _row("table9/hard", _slim(lambda_hard=1.0), 80.2, **cnn),
    ]
    for (token, logits, hard), top1 in WEIGHTS.items():
        make = _slim(lambda_token=float(token), lambda_logits=float(logits), lambda_hard=float(hard))
        rows.append(_row(f"table10/{token}:{logits}:{hard}", make, top1, **cnn))
    return rows


def _figure5a() -> list[Student]:
    rows = []
    for share in (0.75, 0.5, 0.25):
        rows += [
            _labels(f"figure5a/{share:g} slimming", _slim(share)),
            _row(f"figure5a/{share:g} slimming, recalibration", _slim(share)),
            _row(f"figure5a/{share:g} dropping, distilled", _drop(share), objective=DISTILLED),
        ]
    return rows


def _figure5b() -> list[Student]:
    """Places and ratios that are drawn once: the same for every seed of training."""

    def drawn(number: int) -> Make:
        def make(teacher: nn.Module, epochs: int) -> nn.Module:
            draw, depth = random.Random(number), len(blocks_of(teacher))
            at = sorted(draw.sample(range(1, depth), min(3, depth - 1)))
            return apply(teacher, SiT(at=tuple(at), keep_ratio=round(draw.uniform(0.3, 0.7), 2), **PAPER))

        return make

    return [_row(f"figure5b/random {number}, recalibration", drawn(number)) for number in range(DRAWN)]
