"""What every method must hold around one forward pass: the maps between blocks, and passes that run side by side.

A check takes the method and a backbone, which it never changes, and asserts.
"""

import functools
import sys
import threading
from typing import Any

import pytest
import torch
from contract_models import lean
from families import images
from torch import Tensor, nn

import leanformer as lf
from leanformer.core import Method, blocks_of, card_of, taps

PASSES = 6
"""Forward passes of each thread: enough for one to fall into the middle of another."""


@torch.no_grad()
def check_intermediates_are_maps_or_refused(method: Method, backbone: nn.Module) -> None:
    """`forward_intermediates` gives the patches behind each block in their places, or one error that says why not."""
    model: Any = lean(method, backbone)
    if not hasattr(model, "forward_intermediates"):
        return
    x, sequences = images(model), [path for path, block in blocks_of(model).items() if block.layout == "NLC"]
    with taps(model, sequences) as tokens:
        model(x)
    if any(_moved(model, path, tokens[path]) for path in sequences):
        with pytest.raises(ValueError, match="forward_intermediates") as refused:
            pytest.fail(f"maps of moved tokens are given: {model.forward_intermediates(x)[1][-1].shape}")
        assert "\n" not in str(refused.value)
        return
    maps = model.forward_intermediates(x, intermediates_only=True)
    assert all(each.ndim == 4 for each in maps), "the intermediates are no maps"
    if len(maps) == len(sequences) == len(blocks_of(model)):  # one resolution: a map for each block
        for path, found in zip(sequences, maps, strict=True):
            patches = tokens[path][:, -found[0, 0].numel() :]  # (B, P, C)
            assert torch.equal(found.flatten(2).mT, patches), f"the map behind {path} is not what {path} gave"


@torch.no_grad()
def check_two_threads_give_the_same_answers(method: Method, backbone: nn.Module) -> None:
    """Nothing of one forward pass is kept where another one, perhaps of another size, could find it."""
    model = lean(method, _any_size(backbone))
    x = images(model)
    inputs = [x, _other_size(model, x)]
    expected = [model(each) for each in inputs]
    found: dict[int, list[Tensor] | Exception] = {}
    start = threading.Barrier(len(inputs))

    def work(index: int) -> None:
        try:
            start.wait()
            with torch.no_grad():
                found[index] = [model(inputs[index]) for _ in range(PASSES)]
        except Exception as error:  # it would be lost with its thread
            found[index] = error

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(inputs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    for index, answers in found.items():
        assert not isinstance(answers, Exception), f"in two threads a pass fails: {answers!r}"
        for answer in answers:
            torch.testing.assert_close(answer, expected[index], rtol=1e-4, atol=1e-5, msg="in two threads they differ")


def _moved(model: nn.Module, path: str, tokens: Tensor) -> bool:
    """Whether the tokens behind a block are others than the patches that its backbone puts there."""
    block = blocks_of(model)[path]
    assert block.grid is not None
    moves = any(getattr(getattr(block, slot), "leaves_grid", False) for slot in block.slots)
    return moves or tokens.shape[1] != block.grid.tokens


@functools.cache
def _any_size(backbone: nn.Module) -> nn.Module:
    """The backbone, built for images of any size where its family can be."""
    if not hasattr(backbone, "dynamic_img_size"):
        return backbone
    card = card_of(backbone)
    free = lf.create(card.backbone, **{**card.arguments, "dynamic_img_size": True}).eval()
    free.load_state_dict(backbone.state_dict())
    return free


def _other_size(model: nn.Module, x: Tensor) -> Tensor:
    """Other images, half as high again where the model takes them."""
    other = torch.nn.functional.interpolate(x.flip(0), scale_factor=(1.5, 1.0))
    try:
        model(other)
    except (AssertionError, ValueError, RuntimeError):  # each family refuses another size in its own way
        return x.flip(0)
    return other
