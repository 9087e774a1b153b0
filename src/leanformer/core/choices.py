"""What a method offers to a search: where it may act, how strongly, and what it takes to act there."""

from dataclasses import dataclass
from typing import Literal

Part = Literal["tokens", "ffn", "mixer"]
"""What a method makes cheaper: the tokens from a block on, a block's FFN, or its token mixer."""


@dataclass(frozen=True)
class Choices:
    """Settings of a method worth trying on a model, block by block.

    A setting is a share from 0 (the block stays as it is) to `most`: of the tokens that go there, of the FFN's hidden
    channels that fall idle, or 1 for a token mixer that is removed.

    Attributes:
        blocks: where the method may act, counted from 0 over the whole depth.
        most: the largest share.
        steps: the shares that can be had; None for any up to `most`.
        fitted: whether the new modules must be fitted to the teacher (`lf.calibrate`) before they are any good.
        trained: whether the new modules must be trained before they are any good, so that what a plan loses before
            says little of it: a search looks at such plans last, and begins with them at the model's own size alone.
    """

    blocks: tuple[int, ...]
    most: float
    steps: tuple[float, ...] | None = None
    fitted: bool = False
    trained: bool = False
