"""The judge of optimised models: ties between tokens are no errors, wrong rewrites are."""

import copy

import pytest
import torch
from helpers import randomise

import leanformer as lf
from leanformer.core import decision_paths, taps
from leanformer.core.reduce import differing
from leanformer.speed import search
from leanformer.speed.judge import Judge

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 2, "num_classes": 5}


def with_near_ties(method):
    """A model whose class token attends nearly alike to all patches, and whose keys are nearly alike."""
    model = randomise(lf.apply(lf.create("vit", depth=4, **SMALL), method)).eval()
    for block in model.blocks:
        block.mix.fn.qkv.weight.data[:64] *= 1e-3  # queries and keys
        block.mix.fn.qkv.bias.data[:64] *= 0 if isinstance(method, lf.EViT) else 1
    return lf.fuse(model)


def bf16_judge(model):
    images = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    plain = copy.deepcopy(model).bfloat16()
    return Judge(model, plain, images), plain, images


@pytest.mark.parametrize("method", [lf.EViT(keep_rate=0.5), lf.ToMe(merged=3)])
def test_tokens_near_a_tie_that_rounding_chooses_otherwise_are_no_error_and_are_counted(method):
    model = with_near_ties(method)
    judge, plain, images = bf16_judge(model)
    verdict = judge.judged("the model", plain, [])
    assert verdict.differing > 0
    assert verdict.error < 0.02
    own = model(images.float())
    assert (plain(images).float() - own).norm() > 2 * (2 * verdict.error + 1e-4) * own.norm()  # tokens do differ


def test_a_wrong_rewrite_of_a_model_with_ties_is_caught():
    model = with_near_ties(lf.EViT(keep_rate=0.5))
    judge, plain, images = bf16_judge(model)
    wrong = copy.deepcopy(plain)
    wrong.blocks[2].ffn.fn.fc2.weight.data *= 1.5
    with pytest.raises(RuntimeError, match="this is a bug"):
        judge.judged("the model", wrong, [])
    verdict = judge.verdict(plain, [])
    judge.check_compiled("the compiled model", plain(images), verdict)
    with pytest.raises(RuntimeError, match="this is a bug"):
        judge.check_compiled("the compiled model", wrong(images), verdict)


def test_optimize_raises_where_the_rewritten_model_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setenv("LEANFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)

    def doubled(model, choice):
        new = copy.deepcopy(model)
        new.head.weight.data *= 2
        return new

    monkeypatch.setattr(search, "after_steps", doubled)
    with pytest.raises(RuntimeError, match="this is a bug"):
        lf.optimize(with_near_ties(lf.EViT()), device="cpu", batch=2, search=False)


def test_the_same_tokens_in_another_order_do_not_differ():
    model = with_near_ties(lf.EViT(keep_rate=0.5))
    paths = decision_paths(model)
    with taps(model, paths) as decided:
        model(torch.randn(2, 3, 32, 32))
    first = decided[paths[0]]
    turned = {paths[0]: first.flip(1)}
    other = {paths[0]: torch.stack([first[0], (first[1] + 1) % 16])}
    assert differing(model, {paths[0]: first}, turned).tolist() == [False, False]
    assert differing(model, {paths[0]: first}, other).tolist() == [False, True]
