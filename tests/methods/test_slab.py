"""SLAB: norms turn into batch norms over the ramp, and the trained model folds to one without norms, exactly."""

import pytest
import torch
from families import backbone
from helpers import randomise

import leanformer as lf
from leanformer.methods.slab import ProgressiveNorm

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}


def test_the_new_norm_is_a_batch_norm_with_a_learnt_shortcut():
    norm = randomise(ProgressiveNorm(torch.nn.LayerNorm(6), 6, "NLC")).double().eval()
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    batch = norm.batch
    for c in range(6):
        spread = (batch.running_var[c] + batch.eps).sqrt()
        expected = (x[..., c] - batch.running_mean[c]) / spread * batch.weight[c] + batch.bias[c] + norm.eta * x[..., c]
        torch.testing.assert_close(norm(x)[..., c], expected)


def test_the_old_norm_fades_linearly_and_the_batch_norm_takes_over():
    torch.manual_seed(0)
    vit = randomise(lf.create("vit", **TINY)).eval()
    model, images = lf.apply(vit, lf.SLAB(ramp_epochs=10, attention=True)).eval(), torch.randn(2, 3, 32, 32)
    (method,) = lf.card_of(model).methods
    assert method.advance(model, 0.0) == {"slab_progress": 0.0}
    with torch.no_grad():
        torch.testing.assert_close(model(images), vit(images))
    norm, x = model.blocks[0].ffn.norm, torch.randn(2, 5, 32)
    method.advance(model, 2.5)
    blend = 0.75 * norm.old(x) + 0.25 * (norm.batch(x) + norm.eta * x)
    torch.testing.assert_close(norm(x), blend)
    with pytest.raises(ValueError, match="at 25%; train it to the end"):
        norm.affine()
    assert method.advance(model, 12.0) == {"slab_progress": 1.0}
    assert not any(isinstance(m, ProgressiveNorm) for m in lf.fuse(randomise(model)).modules())  # fuse proves itself


@pytest.mark.parametrize("first", [0.0, 10.0])
def test_every_norm_follows_the_ramp_that_it_was_made_with(first):
    methods = lf.SLAB(blocks=(0, 1), ramp_epochs=first), lf.SLAB(blocks=(2, 3), ramp_epochs=5.0)
    for order in (methods, methods[::-1]):
        model = lf.apply(backbone("vit"), *order)
        for method in order:
            method.advance(model, 2.5)
        progress = [float(getattr(block.ffn.norm, "progress", 1.0)) for block in model.blocks]
        assert progress == [0.25 if first else 1.0] * 2 + [0.5] * 2


@pytest.mark.parametrize("family", ["vit", "lvvit", "poolformer", "caformer", "mixer", "swin"])
def test_a_fused_model_has_no_norm_before_its_ffns_and_answers_the_same(family):
    plain = backbone(family)
    model = randomise(lf.apply(plain, lf.SLAB())).eval()
    fused = lf.fuse(model)
    assert all(isinstance(block.ffn.norm, torch.nn.Identity) for block in lf.blocks_of(fused).values())
    assert not any(isinstance(module, ProgressiveNorm) for module in fused.modules())


def test_token_mixers_are_left_to_other_methods_unless_they_are_plain_attention():
    model = lf.apply(lf.create("vit", **TINY), lf.SLAB(), lf.EViT(at=(1,)))
    assert {method.name for method in lf.card_of(model).methods} == {"slab", "evit"}
    with pytest.raises(ValueError, match="attention=False leaves token mixers"):
        lf.apply(backbone("poolformer"), lf.SLAB(attention=True))
    with pytest.raises(ValueError, match="no 'ffn' slot"):
        lf.apply(backbone("gfnet"), lf.SLAB())
    with pytest.raises(ValueError, match="a number from 0"):
        lf.SLAB(ramp_epochs=-1)
