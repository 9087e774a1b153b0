"""EViT in training: the keep-rate schedule, larger images at equal cost, and fine-tuning on real images."""

import json
import math

import pytest
import torch
from helpers import randomise
from torch import Tensor, nn

import leanformer as lf
from leanformer.core import input_of
from leanformer.data.packs import read_pack
from leanformer.methods.evit.method import keep_rate_at

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 5}


def tiny(**arguments) -> nn.Module:
    return randomise(lf.create("vit", **{**TINY, **arguments})).eval()


def images(size: tuple[int, int] = (32, 32)) -> Tensor:
    return torch.randn(3, 3, *size, generator=torch.Generator().manual_seed(1))


def test_schedule_follows_the_published_one(shared):
    published = json.loads((shared / "parity" / "evit_keep_rate_schedule.json").read_text())
    lean = lf.apply(tiny(), lf.EViT(keep_rate=0.7))
    per_epoch = 1 + max(step for _, step, _ in published["run_code"])
    for epoch, step, rate in published["run_code"]:
        method = lf.card_of(lean).methods[0]
        assert method.advance(lean, epoch + step / per_epoch) == {"keep_rate": pytest.approx(rate, abs=1e-6)}
        assert lean.blocks[2].mix.keep_rate == pytest.approx(rate, abs=1e-6)


def test_schedule_has_a_target_for_each_place_and_leaves_the_card_alone(tmp_path):
    lean = lf.apply(tiny(), lf.EViT(keep_rate=(0.9, 0.7, 0.5), start_epoch=2, shrink_epochs=10))
    method = lf.card_of(lean).methods[0]
    assert set(method.advance(lean, 1.5).values()) == {1.0}
    assert method.advance(lean, 7) == pytest.approx({"keep_rate.1": 0.95, "keep_rate.2": 0.85, "keep_rate.3": 0.75})
    assert [lean.blocks[i].mix.keep_rate for i in (1, 2, 3)] == pytest.approx([0.95, 0.85, 0.75])
    loaded = lf.load(lf.save(lean, tmp_path / "lean.safetensors"))
    assert [loaded.blocks[i].mix.keep_rate for i in (1, 2, 3)] == [0.9, 0.7, 0.5]
    method.advance(lean, math.inf)
    assert torch.equal(lean(images()), loaded(images()))


def test_finetuning_holds_the_rate_from_the_first_step():
    assert lf.EViT.finetune(keep_rate=0.5).advance(lf.apply(tiny(), lf.EViT()), 0) == {"keep_rate": 0.5}
    assert keep_rate_at(0, 0.7, 0, 0) == 0.7


def test_larger_images_at_equal_cost():
    model = lf.apply(tiny(img_size=64), lf.EViT(keep_rate=0.5))
    budget = lf.measure.count(lf.apply(tiny(img_size=64), lf.EViT().off())).macs
    rate = lf.measure.keep_rate_for(model, budget, img_size=80)
    larger = lf.resize(model, 80)
    cost = [lf.measure.count(lf.with_options(larger, keep_rate=r)).macs for r in (rate, rate + 0.01, rate + 0.05)]
    assert cost[0] <= budget < cost[2]
    assert cost[1] > budget or cost[1] == cost[0]
    assert lf.measure.keep_rate_for(model, budget) == 1.0
    with pytest.raises(ValueError, match="even a keep rate"):
        lf.measure.keep_rate_for(model, 1)


def test_resized_model_keeps_its_weights_and_saves(tmp_path):
    model = lf.apply(tiny(), lf.EViT(keep_rate=0.5))
    assert torch.equal(lf.resize(model, 32)(images()), model(images()))
    larger = lf.resize(model, (48, 40))
    assert torch.equal(larger.blocks[2].mix.fn.qkv.weight, model.blocks[2].mix.fn.qkv.weight)
    again = lf.load(lf.save(larger, tmp_path / "larger.safetensors"))
    assert torch.equal(again(images((48, 40))), larger.eval()(images((48, 40))))


def _slice(path, count: int, model: nn.Module) -> tuple[Tensor, Tensor]:
    """The first images of every 40th class of a pack, as the model takes them."""
    pack, config = read_pack(path), input_of(model)
    indices = torch.cat([(pack.labels == c).nonzero()[:count, 0] for c in range(0, 200, 40)]).tolist()
    pixels = pack.decode(indices).float() / 255
    pixels = nn.functional.interpolate(pixels, config["input_size"][1:], mode="bicubic").clamp(0, 1)
    return (pixels - 0.5) / 0.5, pack.labels[indices] // 40


@pytest.mark.slow
def test_finetuning_a_trained_vit_on_real_images_raises_its_accuracy(shared):
    data = shared / "data"
    oracle = lf.create("vit_tiny_patch16_224", data / "vit_tiny_patch16_224_in1k_fp16.safetensors")
    model = lf.resize(lf.apply(oracle, lf.EViT.finetune(keep_rate=0.7)), 80)
    model.reset_classifier(5)
    train, labels = _slice(data / "tiny_imagenet_train_0of3.npz", 24, model)
    val, wanted = _slice(data / "tiny_imagenet_val.npz", 24, model)

    def accuracy() -> float:
        with torch.no_grad():
            return (model.eval()(val).argmax(1) == wanted).double().mean().item()

    before = accuracy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-6)
    method = lf.card_of(model).methods[0]
    for epoch in range(4):
        method.advance(model, epoch)
        for batch in torch.randperm(len(train)).split(24):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(train[batch]), labels[batch]).backward()
            optimizer.step()
    assert accuracy() > before + 0.3
