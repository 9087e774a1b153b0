"""apply swaps, fuse folds: both return new models and leave the one they were given as it was."""

import copy
import warnings
import zlib
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .answers import evidence_of
from .block import slots_of
from .card import card_of, set_card
from .method import Build, Fusible, Method
from .optimised import plain_of
from .reduce import HandsOn, LeavesGrid, NeedsGrid, refuse_maps
from .rewrite import LocalRewrite

FUSE = LocalRewrite("fuse", lambda module: isinstance(module, Fusible), lambda module: module.fused())
FUSE_TOLERANCE = 1e-9


class FreshStatistics(RuntimeWarning):
    """fuse folds batch norms whose statistics were never updated."""


def apply(model: nn.Module, *methods: Method, seed: int = 0) -> nn.Module:
    """A copy of `model` with the methods' slots swapped. Disjoint methods compose, in any order, to the same model.

    New parameters are drawn from `seed` and their slot's path alone, so they do not depend on the order either.

    >>> import leanformer as lf
    >>> lean = lf.apply(lf.create("deit_tiny_patch16_224"), lf.TokenMixer(mixer="pooling"))
    >>> [m.name for m in lf.card_of(lean).methods]
    ['token_mixer']
    """
    for method in methods:
        if not isinstance(method, Method):
            raise ValueError(f"{method!r} is not a method; lf.METHODS has them all, and lf.parse_method reads one")
    card = card_of(model)
    if card.fused:
        raise ValueError("this model is fused; apply methods to the model before lf.fuse")
    new = copy.deepcopy(model)  # the plans are made on the copy: a slot may hold on to its block's own grid
    plans = [(method, method.swaps(new)) for method in methods]
    claims = _claim(new, card.claims, plans)
    for _, plan in plans:
        _swap(new, plan, seed)
    set_card(new, card.replace(methods=tuple(sorted((*card.methods, *methods), key=repr)), claims=claims))
    _check_tokens(new)
    _check_channels(new)
    refuse_maps(new)
    return new.train(model.training)


def fold(model: nn.Module) -> nn.Module:
    """Fuse without a proof, for models whose weights are still to come: every fusible module becomes its `fused()`."""
    new = (FUSE.apply(model) or copy.deepcopy(model)).eval()
    return set_card(new, card_of(model).replace(fused=True))


@torch.no_grad()
def fuse(model: nn.Module, verify: bool = True) -> nn.Module:
    """A new, smaller model in evaluation mode that gives the same answers, proven in float64 on a random input.

    The folding is computed in float64 and then rounded once to the model's own dtype.

    >>> import leanformer as lf
    >>> fast = lf.fuse(lf.apply(lf.create("deit_tiny_patch16_224"), lf.TokenMixer(mixer="pooling")))
    >>> lf.card_of(fast).fused
    True
    """
    if card_of(model).fused:
        raise ValueError("this model is fused already")
    reference = next(model.parameters())
    exact = copy.deepcopy(model).cpu().double().eval()
    _warn_of_fresh_statistics(exact)
    folded = fold(exact)
    if verify:
        _prove(exact, folded)
    return folded.to(device=reference.device, dtype=reference.dtype)


def with_options(model: nn.Module, **options: Any) -> nn.Module:
    """A copy that shares all weights with `model` and runs with other run-time options, without retraining.

    Args:
        model: a model with methods on it.
        **options: run-time options of these methods, such as `keep_rate=0.5`; every method that has one gets it.
    """
    model = plain_of(model)
    card = card_of(model)
    known: set[str] = set().union(*(method.runtime for method in card.methods))
    for option in options:
        if option not in known:
            raise ValueError(
                f"'{option}' is no run-time option of this model; it has: {', '.join(sorted(known)) or 'none'}"
            )
    new = share(model)
    methods = []
    for method in card.methods:
        mine = {key: value for key, value in options.items() if key in method.runtime}
        changed = method.replace(**mine) if mine else method
        methods.append(changed)
        if mine:
            _swap(new, changed.swaps(new), seed=0)
            refuse_maps(new)
    return set_card(new, card.replace(methods=tuple(methods)))


def share(model: nn.Module) -> nn.Module:
    """A copy of the modules around the same parameters and buffers.

    >>> layer = nn.Linear(2, 2)
    >>> share(layer).weight is layer.weight
    True
    """
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(t): t for t in tensors})


def _claim(model: nn.Module, held: dict[str, str], plans: list[tuple[Method, dict[str, Build]]]) -> dict[str, str]:
    claims = dict(held)
    slots = slots_of(model)
    for method, plan in plans:
        for path in plan:
            if path not in slots:
                raise ValueError(f"{method.name} claims {path}, which is no slot of this {type(model).__name__}")
            if path in claims:
                raise ValueError(f"{method.name} and {claims[path]} both claim the slot {path}; choose other blocks")
            claims[path] = method.name
    return claims


def _swap(model: nn.Module, plan: dict[str, Build], seed: int) -> None:
    reference = next(model.parameters())
    for path, build in plan.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + zlib.crc32(path.encode()))
            new = build(model.get_submodule(path))
        model.set_submodule(path, new.to(device=reference.device, dtype=reference.dtype))


def _check_tokens(model: nn.Module) -> None:
    """Refuse a module that depends on the tokens' places behind one that moved them.

    What a module needs and what it leaves are declared by `NeedsGrid` and `Reducer`.
    """
    there: bool | str = True
    reducer = None
    for path, module in model.named_modules():  # in the order in which they run
        inside = reducer is not None and path.startswith(f"{reducer}.")
        needed = module.needs_grid if isinstance(module, NeedsGrid) else False
        if reducer is not None and not inside and needed and needed != there:
            raise ValueError(
                f"{path} ({type(module).__name__}) needs the grid of patches"
                f"{'' if needed is True else f' slimmed to {needed}'}, which {reducer} "
                f"({type(model.get_submodule(reducer)).__name__}) leaves before it; "
                "put it into earlier blocks, or choose options that do without the grid"
            )
        left = module.leaves_grid if isinstance(module, LeavesGrid) else False
        if not inside and left:
            there, reducer = (left if isinstance(left, str) else False), path


def _check_channels(model: nn.Module) -> None:
    """Refuse a module before a block whose input has more channels than the block is wide.

    Token mixers that leave such channels say so: `HandsOn`. The token mixer of the next block is to take them up, and a
    module in the seam between both would find them among its own.
    """
    from_where = None
    for path, slot in slots_of(model).items():
        if from_where is not None and path.endswith(".pre") and not isinstance(slot, nn.Identity):
            raise ValueError(
                f"{path} ({type(slot).__name__}) takes tokens as wide as the block, but {from_where} "
                f"({type(model.get_submodule(from_where)).__name__}) hands channels of its own on to the next block's "
                "token mixer; put it at that block or before it, or leave one of both out"
            )
        if isinstance(slot, HandsOn):
            from_where = path if slot.hands_on else None


def _warn_of_fresh_statistics(model: nn.Module) -> None:
    fresh = [
        f"{outer}.{name}"
        for outer in FUSE.places(model)
        for name, norm in model.get_submodule(outer).named_modules()
        if isinstance(norm, _BatchNorm) and norm.running_var is not None and norm.running_mean is not None
        if not norm.num_batches_tracked and not norm.running_mean.any() and (norm.running_var == 1).all()
    ]
    if fresh:
        warnings.warn(
            f"{len(fresh)} batch norms to be folded ({fresh[0]} and on) have never seen a batch: they hold mean 0 and "
            "variance 1. Train the model, or give it statistics with lf.calibrate or lf.recalibrate",
            FreshStatistics,
            stacklevel=4,
        )


def _prove(exact: nn.Module, folded: nn.Module) -> None:
    found = evidence_of(folded)
    for name, before in evidence_of(exact).items():
        after = found[name]
        if before.shape != after.shape:
            raise RuntimeError(f"fusing changed {tuple(before.shape)} outputs into {tuple(after.shape)}: this is a bug")
        if not before.isfinite().all():
            raise ValueError("the model's outputs are not finite, so fusing cannot be proven; are its weights damaged?")
        error = (before - after).abs().max().item() if before.numel() else 0.0
        allowed = FUSE_TOLERANCE * max(1.0, before.abs().max().item()) if before.numel() else 0.0
        if not error <= allowed:
            raise RuntimeError(f"fusing changed the outputs by {error:.1e}, more than {allowed:.1e}: this is a bug")
