"""Batch norms count a batch once, also where gradient checkpointing runs their block twice."""

import copy

import pytest
import timm.layers
import torch
from families import backbone, images

import leanformer as lf
from leanformer.train.sync_norm import synchronise


def _student() -> torch.nn.Module:
    return lf.apply(copy.deepcopy(backbone("vit")), lf.RePa(idle_ratio=0.5)).train()


def _trained(model: torch.nn.Module, saving: bool) -> dict[str, torch.Tensor]:
    model.set_grad_checkpointing(saving)  # type: ignore[operator]
    torch.manual_seed(1)
    model(images(model, 4)).square().mean().backward()
    gradients = {f"{name}.grad": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return gradients | dict(model.named_buffers())


def _assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-5, atol=1e-8, msg=name)


@pytest.mark.parametrize("reentrant", [True, False])
def test_statistics_and_gradients_do_not_depend_on_checkpointing(reentrant, monkeypatch):
    monkeypatch.setattr(timm.layers.config, "_USE_REENTRANT_CKPT", reentrant)
    expected, found = _trained(_student(), False), _trained(_student(), True)
    counted = [int(value) for name, value in found.items() if name.endswith("num_batches_tracked")]
    assert counted == [1] * 8
    _assert_same(expected, found)


def test_synchronised_batch_norms_count_once_too():
    models = _student(), _student()
    for model in models:
        synchronise(model)
    _assert_same(_trained(models[0], False), _trained(models[1], True))


def test_a_compiled_model_counts_once_too():
    plain, saving = _student(), _student()
    expected = _trained(plain, False)
    saving.set_grad_checkpointing(True)  # type: ignore[operator]
    torch._dynamo.reset()
    torch.manual_seed(1)
    torch.compile(saving, backend="aot_eager")(images(saving, 4)).square().mean().backward()
    counted = {name: b for name, b in saving.named_buffers() if "running" in name or "tracked" in name}
    _assert_same({name: expected[name] for name in counted}, counted)


def test_statistics_are_put_back_when_the_recomputation_is_cut_short():
    model = _student().blocks[0]  # type: ignore[index]
    before = {name: b.data_ptr() for name, b in model.named_buffers()}
    with pytest.raises(RuntimeError), lf.core.recompute.statistics_kept(model):
        model(torch.zeros(1, 2, 3))
    assert {name: b.data_ptr() for name, b in model.named_buffers()} == before
