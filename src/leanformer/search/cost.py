"""What a plan costs on this device: the sum of its parts, each timed here in the form that will run.

    T(plan) = scale · ( outside(size) + Σ_blocks mix(N) + ffn(N') + overhead of the reduction )

A part is timed at a few token counts and interpolated between them. `scale` makes the sum of the unchanged model's
parts what the unchanged model really takes. N tokens into a block, N' behind its token mixer.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core import METHODS, Block, apply, blocks_of, fold, input_of
from ..measure.timing import capture, interleave
from ..speed import rewritten
from .plan import Plan, Space

SAMPLE = 0.03
"""Seconds that one repeat of one part runs at least: there are many parts, and whole models set their sum right."""
COUNTS = (1.0, 0.82, 0.65, 0.5, 0.36, 0.24, 0.15)
"""Shares of the most tokens at which parts are timed."""
REDUCED_AT, REDUCED_BY = (0.3, 0.65, 1.0), 0.2
"""Shares of the most tokens that come into reducing blocks which are timed whole, and the share that goes there."""
Curve = tuple[list[int], list[float]]
"""Token counts, and the seconds at them."""


@dataclass(frozen=True)
class Place:
    """Where a model will run.

    Attributes:
        device: cpu, cuda, …
        batch: images at a time.
        dtype: of weights and images.
        compiled: whether models run compiled there; False for plain eager torch.
    """

    device: torch.device
    batch: int
    dtype: torch.dtype
    compiled: bool = True

    def call(self, module: nn.Module, x: Tensor, dynamic: bool = False) -> Callable[[], Any]:
        """The module on x, compiled, and on a GPU in a graph: how its time is measured."""
        run = torch.compile(module.eval(), dynamic=dynamic or None) if self.compiled else module.eval()

        def call() -> Any:
            with torch.inference_mode():
                return run(x)

        return capture(call) if self.device.type == "cuda" and self.compiled else call


@dataclass
class Costs:
    """Seconds a batch of every part, by what it is; `predict` adds them up for a plan.

    Attributes:
        parts: (part, kind of block, variant) → token counts and the seconds at them.
        overheads: token-reducing method → what a block that reduces takes more, and what each block behind it does.
        outside: image size → seconds of what is not in a block (embedding, norm, head).
        kinds: block → its kind: blocks of one structure and width are timed once.
        tokens: image size → tokens into each block, for the unchanged model.
        prefix: tokens that are no patches.
        scale: what the sum is multiplied by.
    """

    parts: dict[tuple[str, int, str], tuple[list[int], list[float]]] = field(default_factory=dict)
    overheads: dict[str, tuple[Curve, Curve]] = field(default_factory=dict)
    outside: dict[tuple[int, int], float] = field(default_factory=dict)
    kinds: list[int] = field(default_factory=list)
    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    prefix: int = 0
    scale: float = 1.0

    def part(self, name: str, block: int, variant: str, tokens: int) -> float:
        """Seconds of one part of one block at so many tokens."""
        counts, seconds = self.parts[name, self.kinds[block], variant]
        if len(counts) == 1:
            return seconds[0] * tokens / counts[0]
        if tokens > counts[-1]:  # a little beyond what was timed, along the last piece
            slope = (seconds[-1] - seconds[-2]) / (counts[-1] - counts[-2])
            return seconds[-1] + slope * (tokens - counts[-1])
        return float(np.interp(tokens, counts, seconds))

    def predict(self, plan: Plan) -> float:
        """Seconds a batch of the plan's model, fused and optimised.

        Args:
            plan: what is changed.
        """
        ffn, gone = plan.acting_on("ffn"), plan.acting_on("mixer")
        left = tokens_by_block(plan, self.tokens[plan.size], self.prefix)
        total = self.outside[plan.size]
        for block, (before, behind) in enumerate(left):
            total += self.part("mix", block, "gone" if block in gone else "", before)
            total += self.part("ffn", block, f"{ffn[block][1]:g}" if block in ffn else "", behind)
        reducing = plan.acting_on("tokens")
        for block in range(min(reducing, default=len(left)), len(left)):
            name = reducing[block][0] if block in reducing else reducing[min(reducing)][0]
            counts, seconds = self.overheads[name][0 if block in reducing else 1]
            total += float(np.interp(left[block][0], counts, seconds))
        return self.scale * total

    def to_json(self) -> dict[str, Any]:
        """The table as plain JSON values; `from_json` reads them."""
        return {
            "parts": [[*key, *value] for key, value in self.parts.items()],
            "overheads": {name: list(curves) for name, curves in self.overheads.items()},
            "outside": [[*size, seconds] for size, seconds in self.outside.items()],
            "tokens": [[*size, counts] for size, counts in self.tokens.items()],
            "kinds": self.kinds, "prefix": self.prefix, "scale": self.scale,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Costs":
        """The table that `to_json` wrote."""
        return cls(
            parts={(part, kind, variant): (counts, seconds) for part, kind, variant, counts, seconds in data["parts"]},
            overheads={name: (tuple(a), tuple(b)) for name, (a, b) in data["overheads"].items()},  # type: ignore[misc]
            outside={(height, width): seconds for height, width, seconds in data["outside"]},
            tokens={(height, width): counts for height, width, counts in data["tokens"]},
            kinds=data["kinds"], prefix=data["prefix"], scale=data["scale"],
        )  # fmt: skip


def tokens_by_block(plan: Plan, tokens: Sequence[int], prefix: int) -> list[tuple[int, int]]:
    """Tokens into each block and behind its token mixer.

    Args:
        plan: what is changed.
        tokens: tokens into each block of the unchanged model at the plan's size.
        prefix: how many of them are no patches.

    >>> tokens_by_block(Plan((32, 32), (("tome", ((1, 0.25),)),)), [17, 17, 17], 1)
    [(17, 17), (17, 13), (13, 13)]
    """
    reducing = {
        block: (name, share)
        for name, shares in plan.shares
        for block, share in shares
        if METHODS[name].acts_on == "tokens"
    }
    counts, gone = [], 0
    for block, full in enumerate(tokens):
        before = full - gone
        behind = before
        if block in reducing:
            name, share = reducing[block]
            behind = prefix + METHODS[name].tokens_left(share, before - prefix)
        gone += before - behind
        counts.append((before, behind))
    return counts


def measure_costs(
    teacher: nn.Module,
    space: Space,
    place: Place,
    repeats: int = 5,
    said: Callable[[str], None] = lambda text: None,
) -> Costs:
    """Time every part that a plan of this space can be made of, on this device.

    Args:
        teacher: the unchanged model.
        space: what the search may choose from.
        place: device, batch and dtype.
        repeats: how often each part is timed, in turn with the others.
        said: told what is going on.
    """
    plain = rewritten(fold(teacher).to(place.device, place.dtype))
    costs = Costs(prefix=_prefix(teacher))
    for size in space.sizes:
        costs.tokens[size] = _tokens_in(teacher if size == space.sizes[0] else Plan(size).build(teacher), size)
    blocks = list(blocks_of(plain).values())
    costs.kinds = _kinds(blocks, costs.tokens[space.sizes[0]])
    calls: dict[Any, Callable[[], Any]] = {}
    for variant, slot, changed in _variants(teacher, space, place):
        others = list(blocks_of(changed).values())
        for kind in sorted(set(costs.kinds)):
            first = costs.kinds.index(kind)
            said(f"timing {slot}{f' ({variant})' if variant else ''} of block {first}")
            part = _Part(others[first], slot)
            counts = _counts(others[first], costs.tokens[space.sizes[0]][first], space)
            for tokens in counts:
                x = _example(others[first], tokens, place)
                calls[slot, kind, variant, tokens] = place.call(part, x, dynamic=len(counts) > 1)
    with many_graphs():
        timed = interleave(calls, place.device, repeats, seconds=SAMPLE)
    for (slot, kind, variant, tokens), timing in timed.items():
        counts, seconds = costs.parts.setdefault((slot, kind, variant), ([], []))
        counts.append(tokens)
        seconds.append(timing.median)
    for counts, seconds in costs.parts.values():
        order = sorted(range(len(counts)), key=counts.__getitem__)
        counts[:], seconds[:] = [counts[i] for i in order], [seconds[i] for i in order]
    for name in space.acting_on("tokens"):
        said(f"timing {name}'s reduction")
        costs.overheads[name] = _overhead(teacher, name, space, place, costs, repeats)
    return costs


def calibrate_scale(costs: Costs, space: Space, seconds: Mapping[tuple[int, int], float]) -> None:
    """Let predictions agree with whole unchanged models: what lies outside of blocks by size, and the scale.

    Args:
        costs: changed in place.
        space: what the search may choose from.
        seconds: image size → what the whole unchanged model takes a batch there; at least its own size.
    """
    own = space.sizes[0]
    blocks = {}
    for size in space.sizes:
        costs.outside[size], costs.scale = 0.0, 1.0
        blocks[size] = costs.predict(Plan(size))
    pixels = {size: size[0] * size[1] / (own[0] * own[1]) for size in space.sizes}
    if len(seconds) > 1:  # two unknowns: the scale of the blocks, and seconds a pixel outside of them
        known = list(seconds)
        table = np.array([[blocks[size], pixels[size]] for size in known])
        scale, outside = np.linalg.lstsq(table, np.array([seconds[size] for size in known]), rcond=None)[0]
        if scale > 0.3 and outside >= 0:
            costs.scale = float(scale)
            costs.outside = {size: float(outside / scale) * pixels[size] for size in space.sizes}
            return
    costs.scale = seconds[own] / blocks[own]


@contextmanager
def many_graphs() -> Iterator[None]:
    """Within the context the same code may be compiled for many modules and shapes."""
    with torch._dynamo.config.patch(recompile_limit=512, accumulated_recompile_limit=4096):
        yield


class _Part(nn.Module):
    """One half of a block as it runs: what comes before the MLP, or the MLP."""

    def __init__(self, block: Block, slot: str):
        super().__init__()
        self.pre = block.pre if slot == "mix" else nn.Identity()
        self.slot = getattr(block, slot)

    def forward(self, x: Tensor) -> Tensor:
        return self.slot(self.pre(x))


def _variants(teacher: nn.Module, space: Space, place: Place) -> list[tuple[str, str, nn.Module]]:
    """(variant, slot, model whose blocks are all of that variant), as they will run."""

    def made(name: str, share: float) -> nn.Module:
        method = METHODS[name].with_shares(dict.fromkeys(space.choices[name].blocks, share))
        return rewritten(fold(apply(teacher, method)).to(place.device, place.dtype))

    plain = rewritten(fold(teacher).to(place.device, place.dtype))
    found = [("", "mix", plain), ("", "ffn", plain)]
    for name in space.acting_on("ffn"):
        found += [(f"{share:g}", "ffn", made(name, share)) for share in space.choices[name].steps or ()]
    found += [("gone", "mix", made(name, 1.0)) for name in space.acting_on("mixer")]
    return found


def _overhead(
    teacher: nn.Module, name: str, space: Space, place: Place, costs: Costs, repeats: int
) -> tuple[Curve, Curve]:
    """What a reducing block takes beyond its two halves, and what a block behind it takes more than before.

    Two blocks, the model's last ones, are timed together as they will run: both reducing, and only the first.
    """
    last = space.choices[name].blocks[-1]
    most = costs.tokens[space.sizes[0]][last]
    calls, expected = {}, {}
    for share_in in REDUCED_AT:
        tokens = round(share_in * most)
        for both in (True, False):
            shares = {last - 1: REDUCED_BY, **({last: REDUCED_BY} if both else {})}
            pair = list(blocks_of(fold(apply(teacher, METHODS[name].with_shares(shares)))).values())[
                last - 1 : last + 1
            ]
            run = rewritten(_Pair(pair).to(place.device, place.dtype).eval())
            calls[tokens, both] = place.call(run, _example(pair[0], tokens, place))
            middle = costs.prefix + METHODS[name].tokens_left(REDUCED_BY, tokens - costs.prefix)
            end = costs.prefix + METHODS[name].tokens_left(REDUCED_BY, middle - costs.prefix) if both else middle
            expected[tokens, both] = sum(
                costs.part("mix", last, "", before) + costs.part("ffn", last, "", behind)
                for before, behind in ((tokens, middle), (middle, end))
            )
    with many_graphs():
        timed = interleave(calls, place.device, repeats, seconds=SAMPLE)
    extra = {key: timed[key].median - expected[key] for key in calls}
    counts = sorted({tokens for tokens, _ in calls})
    reducing = [max(0.0, extra[tokens, True] / 2) for tokens in counts]
    behind = [max(0.0, extra[tokens, False] - now) for tokens, now in zip(counts, reducing)]
    return (counts, reducing), (counts, behind)


class _Pair(nn.Module):
    """Two blocks that follow each other, as a model holds them."""

    def __init__(self, blocks: Sequence[nn.Module]):
        super().__init__()
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


def _kinds(blocks: Sequence[Block], tokens: Sequence[int]) -> list[int]:
    """A number for each block; blocks of the same structure and the same tokens share it."""
    seen: dict[str, int] = {}
    return [seen.setdefault(f"{block!r} {count}", len(seen)) for block, count in zip(blocks, tokens, strict=True)]


def _counts(block: Block, tokens: int, space: Space) -> list[int]:
    """Token counts at which a block is timed: several where tokens can become fewer, else those it always has."""
    if block.layout != "NLC" or not (space.acting_on("tokens") or len(space.sizes) > 1):
        return [tokens]
    return sorted({max(4, round(share * tokens)) for share in COUNTS})


def _example(block: Block, tokens: int, place: Place) -> Tensor:
    """Random tokens as the block takes them; a map is a square one."""
    if block.layout == "NLC":
        return torch.randn(place.batch, tokens, block.dim, device=place.device).to(place.dtype)
    side = round(tokens**0.5)
    shape = (place.batch, block.dim, side, side) if block.layout == "NCHW" else (place.batch, side, side, block.dim)
    x = torch.randn(shape, device=place.device).to(place.dtype)
    return x.contiguous(memory_format=torch.channels_last) if block.layout == "NCHW" else x


@torch.no_grad()
def _tokens_in(model: nn.Module, size: tuple[int, int]) -> list[int]:
    """Tokens (or places of a map) that come into each block, for one image of this size."""
    twin = copy.deepcopy(model).to("meta").eval()
    counts: list[int] = []
    handles = []
    for block in blocks_of(twin).values():
        layout, dim = block.layout, block.dim
        handles.append(
            block.register_forward_pre_hook(
                lambda _, given, layout=layout, dim=dim: counts.append(
                    given[0].shape[1] if layout == "NLC" else given[0][0].numel() // dim
                )
            )
        )
    images = torch.empty(1, input_of(model)["input_size"][0], *size, device="meta", dtype=next(twin.parameters()).dtype)
    twin(images)
    for handle in handles:
        handle.remove()
    return counts


def _prefix(model: nn.Module) -> int:
    grid = next(iter(blocks_of(model).values())).grid
    return grid.prefix if grid is not None else 0
