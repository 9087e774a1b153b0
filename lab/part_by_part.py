"""A model built up part by part: what each part adds to the latency of the model without it.

embedding alone → + norms → + FFN → + token mixer = the model without its classifier        (RIFormer's Figure 1)
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from leanformer.core import Branch, blocks_of, input_of
from leanformer.measure import Profile, interleave, prepare

STEPS = {
    "patch embedding": ("norms", "FFN", "token mixer"),
    "norms": ("FFN", "token mixer"),
    "FFN": ("token mixer",),
    "token mixer": (),
}
"""What each step adds → what the model still lacks with it."""


def latency_part_by_part(
    name: str,
    model: nn.Module,
    device: torch.device,
    batch: int,
    dtype: str,
    mode: str = "eager",
    repeats: int = 5,
    ready: Callable[[], None] | None = None,
) -> Profile:
    """The latency of a model, built up part by part; all steps are timed in turn.

    Args:
        name: what the row calls the model.
        model: a model whose blocks are branches.
        device: where it runs.
        batch: images at a time.
        dtype: float32, bfloat16 or float16.
        mode: eager or compiled.
        repeats: how often each step is timed.
        ready: called when all is compiled and only the timing is left.

    >>> import leanformer as lf
    >>> tiny = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2)
    >>> list(latency_part_by_part("tiny", tiny, torch.device("cpu"), 1, "float32", repeats=1).parts)
    ['patch embedding', 'norms', 'FFN', 'token mixer']
    """
    images = torch.randn(batch, *input_of(model)["input_size"], device=device).to(getattr(torch, dtype))
    bare: Any = copy.deepcopy(model).eval().to(device, getattr(torch, dtype))
    if hasattr(bare, "reset_classifier"):
        bare.reset_classifier(0)
    calls = {step: prepare(without(bare, *lacks), images, mode) for step, lacks in STEPS.items()}
    timings = interleave(calls, device, repeats, ready=ready)
    parts, before = {}, 0.0
    for step, timing in timings.items():
        parts[step], before = timing.median - before, timing.median
    last = timings["token mixer"]
    return Profile(f"{name}, part by part", mode, batch, dtype, last.median, last.spread, parts)


def without(model: nn.Module, *parts: str) -> nn.Module:
    """A copy whose blocks lack parts: 'token mixer', 'FFN', 'norms' (RIFormer's Figure 1 takes a ViT-B apart so).

    >>> import leanformer as lf
    >>> without(lf.create("vit", depth=1), "token mixer").blocks[0].mix.fn
    Identity()
    """
    new = copy.deepcopy(model)
    for block in blocks_of(new).values():
        for slot, name in (("mix", "token mixer"), ("ffn", "FFN")):
            branch = getattr(block, slot)
            if not isinstance(branch, Branch):
                continue
            if name in parts and "norms" in parts:
                setattr(block, slot, nn.Identity())
            elif name in parts:
                branch.fn = nn.Identity()
            elif "norms" in parts:
                branch.norm = nn.Identity()
    return new
