"""What every method must hold on every backbone that it serves. A check takes the method and a backbone and asserts.

The backbone is in evaluation mode and shared between checks: no check changes it, nor the model from `lean`.
"""

import copy
import dataclasses
import json
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from contract_models import fused, lean
from contract_passes import (  # noqa: F401
    check_intermediates_are_maps_or_refused,
    check_two_threads_give_the_same_answers,
)
from families import images
from torch import Tensor, nn

import leanformer as lf
from leanformer.core import Method, card_of, fold, method_from, parse_method

EXACT = 1e-9
BATCHES = (1, 2, 5)
BLOCK_OPTIONS = ("blocks", "at", "stages")
"""Options that choose places in the model, whatever the method."""


def check_apply_leaves_the_backbone_alone(method: Method, backbone: nn.Module) -> None:
    before, asked = _snapshot(backbone), copy.deepcopy(backbone)
    method.swaps(asked)
    _assert_unchanged(asked, before)
    rng = torch.get_rng_state()
    first, second = lf.apply(backbone, method), lf.apply(backbone, method)
    assert torch.equal(rng, torch.get_rng_state()), "apply draws from the global random state"
    _assert_unchanged(backbone, before)
    assert _same_tensors(first.state_dict(), second.state_dict()), "two applications draw different weights"
    assert not _storages(first) & _storages(backbone), "the new model shares memory with the backbone"
    for training in (True, False):
        assert lf.apply(copy.deepcopy(backbone).train(training), method).training is training


def check_off_is_bit_equal(method: Method, backbone: nn.Module) -> None:
    off = lf.apply(backbone, method.off())
    for training in (False, True):
        theirs, ours = _backward(backbone, training), _backward(off, training)
        assert torch.equal(ours["output"], theirs["output"]), f"outputs differ, training={training}"
        assert torch.equal(ours["images"], theirs["images"]), f"input gradients differ, training={training}"
        for value in theirs["parameters"].keys() & ours["parameters"].keys():
            assert _equal(ours["parameters"][value], theirs["parameters"][value]), "parameter gradients differ"


def check_gradients_reach_every_parameter(method: Method, backbone: nn.Module) -> None:
    model = copy.deepcopy(lean(method, backbone)).train()
    old = {name for name, _ in backbone.named_parameters()}
    _loss(model(images(model, 4))).backward()
    dead = set(_dead_parameters(model))
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        assert parameter.grad is not None, f"{name} gets no gradient"
        assert parameter.grad.isfinite().all(), f"{name} gets a gradient that is not finite"
        if name not in old and name not in dead:
            assert parameter.grad.count_nonzero() > 0, f"{name} is new and its gradient is zero"


def check_gradient_checkpointing_changes_nothing(method: Method, backbone: nn.Module) -> None:
    """The recomputation counts no batch a second time, draws the same random numbers and gives the same gradients."""
    plain, saving = (copy.deepcopy(lean(method, backbone)).train() for _ in range(2))
    saving.set_grad_checkpointing(True)  # type: ignore[operator]
    for model in (plain, saving):
        torch.manual_seed(3)
        _loss(model(images(model, 4))).backward()
    for (name, expected), found in zip(plain.named_buffers(), saving.buffers(), strict=True):
        assert torch.equal(found, expected), f"the statistics {name} differ"
    for (name, expected), found in zip(plain.named_parameters(), saving.parameters(), strict=True):
        assert (found.grad is None) == (expected.grad is None), f"{name} has a gradient with or without alone"
        if expected.grad is not None and found.grad is not None:
            error = (found.grad - expected.grad).abs().max() / expected.grad.abs().max().clamp(min=1e-6)
            assert error <= 1e-5, f"the gradient of {name} differs by {error:.1e}"


@torch.no_grad()
def check_fuse_is_exact_and_never_in_place(method: Method, backbone: nn.Module) -> None:
    model = copy.deepcopy(lean(method, backbone)).double().train()
    x = images(model)
    before = _snapshot(model)
    folded = lf.fuse(model)
    assert model.training, "fuse turned the training model to evaluation"
    _assert_unchanged(model, before)
    assert not _storages(folded) & _storages(model), "the fused model shares memory with the trained one"
    assert not folded.training
    assert card_of(folded).fused
    assert _numel(folded) <= _numel(model), "the fused model is larger"
    expected = model.eval()(x)
    error = (folded(x) - expected).abs().max() / expected.abs().max().clamp(min=1)
    assert error <= EXACT, f"fusing is off by {error:.1e}"


@torch.no_grad()
def check_fused_structure_depends_on_structure_alone(method: Method, backbone: nn.Module) -> None:
    fresh, moved = fold(lf.apply(backbone, method)), fold(lean(method, backbone))
    zeros = copy.deepcopy(lean(method, backbone))
    for parameter in zeros.parameters():
        parameter.zero_()
    for other in (moved, fold(zeros)):
        assert _shapes(fresh) == _shapes(other), "the fused weights' shapes depend on the weights"
        assert repr(fresh) == repr(other), "the fused modules depend on the weights"


@torch.no_grad()
def check_save_and_load_are_bit_equal(method: Method, backbone: nn.Module) -> None:
    x = images(backbone)
    for before in (lean(method, backbone), fused(method, backbone)):
        with tempfile.TemporaryDirectory() as folder:
            after = lf.load(lf.save(before, Path(folder) / "model.safetensors"))
        assert _same_tensors(after.state_dict(), before.state_dict())
        assert card_of(after) == card_of(before).replace(arguments=card_of(after).arguments)
        assert torch.equal(after(x), before(x)), f"outputs differ after load, fused={card_of(before).fused}"


@torch.no_grad()
def check_any_batch_size(method: Method, backbone: nn.Module) -> None:
    x = images(backbone, 5)
    for fast in (lean(method, backbone), fused(method, backbone)):
        whole = fast(x)
        for batch in BATCHES:
            assert fast(x[:batch]).shape == whole[:batch].shape
            torch.testing.assert_close(fast(x[:batch]), whole[:batch], rtol=1e-3, atol=1e-4)


@torch.no_grad()
def check_deepcopy_and_pickle(method: Method, backbone: nn.Module) -> None:
    x = images(backbone)
    for before in (lean(method, backbone), fused(method, backbone)):
        expected = before(x)
        for again in (copy.deepcopy(before), pickle.loads(pickle.dumps(before))):
            assert torch.equal(again(x), expected)
            assert not _storages(again) & _storages(before)
            assert card_of(again) == card_of(before)


def check_half_precision(method: Method, backbone: nn.Module) -> None:
    with torch.no_grad():
        for dtype in (torch.bfloat16, torch.float16):
            for model in (lean(method, backbone), fused(method, backbone)):
                half = copy.deepcopy(model).to(dtype)
                output = half(images(half, 1))
                assert output.dtype == dtype, f"{dtype} became {output.dtype}"
                assert output.isfinite().all(), f"{dtype} outputs are not finite"
    applied = lf.apply(copy.deepcopy(backbone).bfloat16(), method)
    assert {p.dtype for p in applied.parameters()} == {torch.bfloat16}, "new parameters do not take the dtype"
    model = copy.deepcopy(lean(method, backbone)).train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = _loss(model(images(model)))
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None), "autocast: not finite"


@torch.no_grad()
def check_compiles_without_breaks_or_recompiles(method: Method, backbone: nn.Module) -> None:
    model = lean(method, backbone)
    x, again = images(model), images(model) + 1
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        for batch in (x, again, x):
            torch.testing.assert_close(compiled(batch), model(batch), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


@torch.no_grad()
def check_exports_with_any_batch(method: Method, backbone: nn.Module) -> None:
    model = lean(method, backbone)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (images(model, 3),), dynamic_shapes=({0: batch},)).module()
    for size in BATCHES:
        x = images(model, size)
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


def check_options_survive_json(method: Method, backbone: nn.Module) -> None:
    assert method_from(method.name, json.loads(json.dumps(method.fields()))) == method
    assert hash(method) == hash(copy.deepcopy(method))
    assert parse_method(method.name) == type(method)()
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.version_of_nothing = 1  # type: ignore[attr-defined]


def check_wrong_options_are_refused(method: Method, backbone: nn.Module) -> None:
    with pytest.raises(ValueError, match="nonsense"):
        method_from(method.name, {"nonsense": 1})
    with pytest.raises(ValueError, match="nonsense"):
        method.replace(nonsense=1)
    with pytest.raises(ValueError, match="nonsense"):
        parse_method(f"{method.name}:nonsense=1")
    for option in BLOCK_OPTIONS:
        if option in method.fields():
            with pytest.raises(ValueError, match="99"):
                lf.apply(backbone, method.replace(**{option: (99,)}))
    if method.swaps(backbone):
        with pytest.raises(ValueError, match="claim"):
            lf.apply(lf.apply(backbone, method), method)
        with pytest.raises(ValueError, match="claim"):
            lf.apply(backbone, method, method)


@torch.no_grad()
def check_run_time_options_share_the_weights(method: Method, backbone: nn.Module) -> None:
    model = lean(method, backbone)
    options = {name: getattr(method, name) for name in method.runtime}
    same = lf.with_options(model, **options)
    assert torch.equal(same(images(model)), model(images(model)))
    for name, parameter in model.named_parameters():
        assert same.get_parameter(name) is parameter, f"{name} is not shared"
    with pytest.raises(ValueError, match="nonsense"):
        lf.with_options(model, nonsense=1)


@torch.no_grad()
def check_composes_in_any_order(method: Method, other: Method, backbone: nn.Module) -> None:
    """The same model from both orders and from one call, or a reason each time."""
    orders = {
        "one then other": lambda: lf.apply(lf.apply(backbone, method), other),
        "other then one": lambda: lf.apply(lf.apply(backbone, other), method),
        "both at once": lambda: lf.apply(backbone, method, other),
        "both at once, swapped": lambda: lf.apply(backbone, other, method),
    }
    models, reasons = {}, {}
    for name, order in orders.items():
        try:
            models[name] = order().eval()
        except ValueError as error:
            reasons[name] = str(error)
    assert not (models and reasons), f"some orders are refused, others not: {reasons}"
    assert all(len(reason) > 20 for reason in reasons.values()), f"refused without a reason: {reasons}"
    x = images(backbone)
    outputs = [model(x) for model in models.values()]
    for model, output in zip(models.values(), outputs):
        first = next(iter(models.values()))
        assert list(model.state_dict()) == list(first.state_dict()), "the order shows in the state dict"
        assert torch.equal(output, outputs[0]), "the order shows in the outputs"
        assert card_of(model) == card_of(first), "the order shows on the card"


CHECKS = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_") and name != "check_composes_in_any_order"
}
SECONDS = {
    "compiles_without_breaks_or_recompiles": ("vit", "swin", "caformer"),
    "exports_with_any_batch": ("vit", "mixer"),
}
"""Checks that take seconds: the families they always run for; for the others they run with all tests."""


def _snapshot(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, type], Tensor]:
    state = {key: value.clone() for key, value in model.state_dict().items()}
    return state, {path: type(module) for path, module in model.named_modules()}, _answer(model)


def _assert_unchanged(model: nn.Module, before: tuple[dict[str, Tensor], dict[str, type], Tensor]) -> None:
    state, types, output = before
    assert _same_tensors(model.state_dict(), state), "the weights changed in place"
    assert {path: type(module) for path, module in model.named_modules()} == types, "the modules changed in place"
    assert torch.equal(_answer(model), output), "the outputs changed in place"


@torch.no_grad()
def _answer(model: nn.Module) -> Tensor:
    training = model.training
    answer = model.eval()(images(model))
    model.train(training)
    return answer


def _backward(model: nn.Module, training: bool) -> dict[str, Any]:
    """Output, input gradient, and parameter gradients by the parameters' bytes (a method may rename them)."""
    model = copy.deepcopy(model).train(training)
    x = images(model, 4).requires_grad_()
    torch.manual_seed(3)
    output = model(x)
    _loss(output).backward()
    parameters = {p.detach().numpy().tobytes(): p.grad for p in model.parameters() if p.numel() > 1}
    return {"output": output, "images": x.grad, "parameters": parameters}


def _loss(output: Any) -> Tensor:
    return sum(((part.float() + 0.5) ** 2).mean() for part in _tensors(output))  # type: ignore[return-value]


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
        return
    for part in output.values() if isinstance(output, dict) else output:
        yield from _tensors(part)


def _dead_parameters(model: nn.Module) -> Iterator[str]:
    """Parameters that a module declares to get no gradient, in its `dead_parameters`."""
    for path, module in model.named_modules():
        for name in getattr(module, "dead_parameters", ()):
            yield f"{path}.{name}"


def _same_tensors(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return list(one) == list(other) and all(_equal(one[key], other[key]) for key in one)


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and torch.equal(one, other)


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}


def _numel(model: nn.Module) -> int:
    return sum(value.numel() for value in model.state_dict().values())


def _storages(model: nn.Module) -> set[int]:
    return {value.untyped_storage().data_ptr() for value in model.state_dict().values() if value.numel()}
