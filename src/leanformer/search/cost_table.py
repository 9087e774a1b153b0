"""The table of costs is made here: every part that a plan can be built from, timed at a few token counts.

A block is timed in halves (before its MLP, and the MLP), as it is and as each method leaves it. What a reduction of
tokens behind the token mixer takes beyond that is found from pairs of blocks: both reducing, and only the first. What
reduces tokens in the seam before a block is timed by itself.
"""

import copy
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core import METHODS, Block, apply, blocks_of, fold, input_of
from .clock import Clock, Part, Place
from .cost import LAST, Costs, Curve
from .plan import Plan, Space

REDUCED_AT, REDUCED_BY = (0.06, 0.3, 0.65, 1.0), 0.2
"""Shares of the most tokens that come into reducing blocks which are timed whole, and the share that goes there."""
LEAST_SHARE = 0.05
"""What takes tokens in the seam before a block is timed at this share, and at the most that its method offers."""


def measure_costs(
    teacher: nn.Module, space: Space, clock: Clock, done: Callable[[int, int], None] | None = None
) -> Costs:
    """Time every part that a plan of this space can be made of.

    Args:
        teacher: the unchanged model.
        space: what the search may choose from.
        clock: of the device, batch, dtype and runtime.
        done: told how many of how many pieces of work are done.
    """
    own = space.sizes[0]
    costs = Costs(prefix=_prefix(teacher))
    for size in space.sizes:
        costs.tokens[size] = _tokens_in(teacher if size == own else Plan(size).build(teacher), size)
    costs.kinds = _kinds(list(blocks_of(fold(teacher)).values()), costs.tokens[own])
    parts: dict[Any, Part] = {}
    for made in (_halves, _pairs, _seams):
        parts |= made(teacher, space, clock, costs)
    ready = 0

    def one_more() -> None:
        nonlocal ready
        ready += 1
        if done is not None:
            done(ready, len(parts) + clock.repeats)

    _enter(costs, space, clock.parts(parts, one_more))
    return costs


def _enter(costs: Costs, space: Space, seconds: dict[Any, float]) -> None:
    """Write what the parts took into the table."""
    for key in sorted(key for key in seconds if key[0] == "half"):
        _, slot, kind, variant, tokens = key
        counts, found = costs.parts.setdefault((slot, kind, variant), ([], []))
        counts.append(tokens)
        found.append(seconds[key])
    for name in space.reducing("mix"):
        costs.overheads[name] = _overhead(name, space, costs, seconds)
    for name in space.reducing("pre"):
        timed: dict[float, Curve] = {}
        for key in sorted(key for key in seconds if key[:2] == ("seam", name)):
            _, _, share, tokens = key
            counts, found = timed.setdefault(share, ([], []))
            counts.append(tokens)
            found.append(seconds[key])
        costs.seams[name] = list(timed.items())


def whole_models(teacher: nn.Module, space: Space, clock: Clock) -> dict[Any, nn.Module]:
    """The unchanged model, fused, at image sizes that tell what its parts take in company, and its last block alone.

    Args:
        teacher: the unchanged model.
        space: what the search may choose from.
        clock: where time has steps every size is wanted, else the largest and the smallest.
    """
    sizes = space.sizes if clock.in_steps else dict.fromkeys((space.sizes[0], space.sizes[-1]))
    models: dict[Any, nn.Module] = {size: fold(Plan(size).build(teacher)) for size in sizes}
    others = list(blocks_of(models[space.sizes[0]]))[:-1]
    if not others:
        return models
    alone = copy.deepcopy(models[space.sizes[0]])
    for name in others:
        alone.set_submodule(name, nn.Identity())
    return {**models, LAST: alone}


def _halves(teacher: nn.Module, space: Space, clock: Clock, costs: Costs) -> dict[Any, Part]:
    """("half", slot, kind of block, variant, tokens) → the part."""
    found: dict[Any, Part] = {}
    for variant, slot, model in _variants(teacher, space, clock):
        blocks = list(blocks_of(model).values())
        for kind in sorted(set(costs.kinds)):
            first = costs.kinds.index(kind)
            half = _half(blocks[first], slot)
            for tokens in _counts(blocks[first], costs.tokens[space.sizes[0]][first], space, clock):
                x = _example(blocks[first], tokens, clock.place, space.sizes[0])
                found["half", slot, kind, variant, tokens] = Part(half, x, (slot, kind, variant))
    return found


def _variants(teacher: nn.Module, space: Space, clock: Clock) -> Iterator[tuple[str, str, nn.Module]]:
    """(variant, slot, model whose blocks are all of that variant), as they will run."""

    def as_run(model: nn.Module) -> nn.Module:
        return clock.form(fold(model).to(clock.place.device, clock.place.dtype))

    def made(name: str, share: float) -> nn.Module:
        return as_run(apply(teacher, METHODS[name].with_shares(dict.fromkeys(space.choices[name].blocks, share))))

    plain = as_run(teacher)
    yield "", "mix", plain
    yield "", "ffn", plain
    for name in space.acting_on("ffn"):
        for share in space.choices[name].steps or ():
            yield f"{share:g}", "ffn", made(name, share)
    for name in space.acting_on("mixer"):
        yield "gone", "mix", made(name, 1.0)


def _pairs(teacher: nn.Module, space: Space, clock: Clock, costs: Costs) -> dict[Any, Part]:
    """("pair", method, tokens, whether both blocks reduce) → the model's last two blocks that may reduce."""
    found: dict[Any, Part] = {}
    for name in space.reducing("mix"):
        last = space.choices[name].blocks[-1]
        for both in (True, False):
            shares = {last - 1: REDUCED_BY, **({last: REDUCED_BY} if both else {})}
            reduced = fold(apply(teacher, METHODS[name].with_shares(shares)))
            blocks = list(blocks_of(reduced).values())[last - 1 : last + 1]
            pair = nn.Sequential(OrderedDict(blocks=nn.Sequential(*blocks)))  # as a model holds them
            pair = clock.form(pair.to(clock.place.device, clock.place.dtype).eval())
            for tokens in _reduced_at(costs.tokens[space.sizes[0]][last], costs.prefix):
                # the number of pairs that merge is worked out in Python: each count is a program of its own
                key = ("pair", name, tokens, both)
                found[key] = Part(pair, _example(blocks[0], tokens, clock.place, space.sizes[0]), key)
    return found


def _seams(teacher: nn.Module, space: Space, clock: Clock, costs: Costs) -> dict[Any, Part]:
    """("seam", method, share, tokens) → what takes that share of so many tokens before the last block.

    Such a module may be made for one number of tokens: the method takes the others already before the block in front.
    """
    found: dict[Any, Part] = {}
    for name in space.reducing("pre"):
        method, offered = METHODS[name], space.choices[name]
        last = offered.blocks[-1]
        every = costs.tokens[space.sizes[0]][last] - costs.prefix
        for taken in (1 - at for at in REDUCED_AT):
            patches = method.tokens_left(taken, every)
            for share in (LEAST_SHARE, offered.most):
                shares = {last: share, **({last - 1: taken} if taken else {})}
                block = list(blocks_of(fold(apply(teacher, method.with_shares(shares)))).values())[last]
                seam = nn.Sequential(OrderedDict(pre=block.pre)).to(clock.place.device, clock.place.dtype)
                x = _example(block, costs.prefix + patches, clock.place, space.sizes[0])
                key = ("seam", name, share, costs.prefix + patches)
                found[key] = Part(clock.form(seam.eval()), x, key)
    return found


def _overhead(name: str, space: Space, costs: Costs, seconds: dict[Any, float]) -> tuple[Curve, Curve]:
    """What a reducing block takes beyond its two halves, and what a block behind it takes more than before."""
    last = space.choices[name].blocks[-1]
    counts = _reduced_at(costs.tokens[space.sizes[0]][last], costs.prefix)
    extra: dict[tuple[int, bool], float] = {}
    for tokens in counts:
        middle = costs.prefix + METHODS[name].tokens_left(REDUCED_BY, tokens - costs.prefix)
        for both in (True, False):
            end = costs.prefix + METHODS[name].tokens_left(REDUCED_BY, middle - costs.prefix) if both else middle
            expected = sum(
                costs.part("mix", last, "", before) + costs.part("ffn", last, "", behind)
                for before, behind in ((tokens, middle), (middle, end))
            )
            extra[tokens, both] = seconds["pair", name, tokens, both] - expected
    reducing = [max(0.0, extra[tokens, True] / 2) for tokens in counts]
    behind = [max(0.0, extra[tokens, False] - now) for tokens, now in zip(counts, reducing)]
    return (counts, reducing), (counts, behind)


def _reduced_at(tokens: int, prefix: int) -> list[int]:
    """Token counts at which what reduces them is timed; three patches at least are among them."""
    return sorted({max(prefix + 3, round(share * tokens)) for share in REDUCED_AT})


def _half(block: Block, slot: str) -> nn.Module:
    """One half of a block as it runs: what comes before the MLP, or the MLP."""
    pre = block.pre if slot == "mix" else nn.Identity()
    return nn.Sequential(OrderedDict(pre=pre, slot=getattr(block, slot)))


def _kinds(blocks: Sequence[Block], tokens: Sequence[int]) -> list[int]:
    """A number for each block; blocks of the same structure and the same tokens share it.

    Paths are dropped in training alone, and at another rate in every block.
    """
    seen: dict[str, int] = {}
    structures = [re.sub(r"DropPath\(.*?\)", "Identity()", repr(block)) for block in blocks]
    return [seen.setdefault(f"{each} {count}", len(seen)) for each, count in zip(structures, tokens, strict=True)]


def _counts(block: Block, tokens: int, space: Space, clock: Clock) -> list[int]:
    """Token counts at which a block is timed: several where tokens can become fewer, else those it always has."""
    if block.layout != "NLC" or not (space.acting_on("tokens") or len(space.sizes) > 1):
        return [tokens]
    return sorted({max(4, round(share * tokens)) for share in clock.counts})


def _example(block: Block, tokens: int, place: Place, size: tuple[int, int]) -> Tensor:
    """Random tokens as the block takes them; a map is as high for its width as the images."""
    if block.layout == "NLC":
        return torch.randn(place.batch, tokens, block.dim, device=place.device).to(place.dtype)
    height = round((tokens * size[0] / size[1]) ** 0.5)
    plane = (height, round(tokens / height))
    shape = (place.batch, block.dim, *plane) if block.layout == "NCHW" else (place.batch, *plane, block.dim)
    x = torch.randn(shape, device=place.device).to(place.dtype)
    return x.contiguous(memory_format=torch.channels_last) if block.layout == "NCHW" else x


@torch.no_grad()
def _tokens_in(model: nn.Module, size: tuple[int, int]) -> list[int]:
    """Tokens (or places of a map) that come into each block, for one image of this size."""
    twin = copy.deepcopy(model).to("meta").eval()
    counts: list[int] = []

    def seen(block: nn.Module, given: tuple[Tensor, ...]) -> None:
        assert isinstance(block, Block)
        counts.append(given[0].shape[1] if block.layout == "NLC" else given[0][0].numel() // block.dim)

    for block in blocks_of(twin).values():
        block.register_forward_pre_hook(seen)
    channels = input_of(model)["input_size"][0]
    twin(torch.empty(1, channels, *size, device="meta", dtype=next(twin.parameters()).dtype))
    return counts


def _prefix(model: nn.Module) -> int:
    grid = next(iter(blocks_of(model).values())).grid
    return grid.prefix if grid is not None else 0
