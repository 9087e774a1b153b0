"""From a trained ViT-Ti to a RePa-ViT on real images: what a plain copy, calibration and a little training reach.

Twenty classes of Tiny-ImageNet at 64 pixels, where the trained ViT gets a linear head.
The longer run by command line, with its commands and figures, is results/repa_adopt_cpu.json.
"""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanformer as lf
from leanformer.data.packs import read_pack
from leanformer.data.samples import sample_images
from leanformer.train import Arrays, evaluate

CLASSES = 20


def some(path: Path, count: int) -> Arrays:
    """The first images of a pack that are of its first classes."""
    pack = read_pack(str(path))
    chosen = (pack.labels < CLASSES).nonzero()[:count, 0]
    return Arrays(pack.decode(chosen.tolist()), pack.labels[chosen])


def trained_vit(shared: Path) -> nn.Module:
    """ViT-Ti with its ImageNet weights, at 64 pixels."""
    weights = shared / "data" / "vit_tiny_patch16_224_in1k_fp16.safetensors"
    return lf.create("vit_tiny_patch16_224", weights, resample_positions=True, img_size=64).eval()


@torch.no_grad()
def with_head(model: nn.Module, data: Arrays) -> nn.Module:
    """The model with a linear head for the data's classes, by ridge regression on its features."""
    x = sample_images(model, data, len(data), seed=0)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    features = torch.cat([model.forward_head(model.forward_features(part), pre_logits=True) for part in x.split(64)])
    centred = features - features.mean(0)
    goal = F.one_hot(data.labels[order], CLASSES).float()
    gram = centred.mT @ centred
    weight = torch.linalg.solve(gram + 0.03 * gram.diagonal().mean() * torch.eye(len(gram)), centred.mT @ goal)
    model.reset_classifier(CLASSES)
    model.head.weight.copy_(20 * weight.mT)
    model.head.bias.copy_(20 * (goal.mean(0) - features.mean(0) @ weight))
    return model


def distil(model: nn.Module, teacher: nn.Module, x: Tensor, steps: int, rate: float = 1e-4) -> nn.Module:
    """AdamW steps towards the teacher's answers, 32 images each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps + 1, pct_start=0.1)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(steps):
        part = x[torch.randint(len(x), (32,), generator=generator)]
        with torch.no_grad():
            wanted = teacher(part).log_softmax(1)
        loss = F.kl_div(model(part).log_softmax(1), wanted, log_target=True, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def run(shared: Path, idle_ratio: float, train: int, val: int, fit: int, steps: int, **options) -> dict[str, float]:
    """Top-1 of the teacher, a plain copy, after calibration, and after `steps` of training, of that model fused too."""
    data = some(shared / "data" / "tiny_imagenet_train_0of3.npz", train)
    held = some(shared / "data" / "tiny_imagenet_val.npz", val)
    teacher = with_head(trained_vit(shared), data)
    images = sample_images(teacher, data, train, seed=1)
    copied = lf.apply(teacher, lf.RePa(idle_ratio=idle_ratio, **options)).eval()
    models = {"teacher": teacher, "copied": copied, "calibrated": lf.calibrate(copied, teacher, images[:fit])}
    found = {name: evaluate(model, held, device="cpu").top1 for name, model in models.items()}
    if not steps:
        return found
    trained = distil(models["calibrated"], teacher, images, steps)
    found["trained"] = evaluate(trained, held, device="cpu").top1
    found["fused"] = evaluate(lf.fuse(trained), held, device="cpu").top1
    return found


@pytest.mark.slow
def test_calibration_brings_a_trained_vit_back(shared):
    found = run(shared, 0.5, train=600, val=200, fit=200, steps=0, refine_steps=0)
    assert found["copied"] < 15  # chance is 5
    assert found["calibrated"] > 0.5 * found["teacher"]


@pytest.mark.exhaustive
def test_training_goes_on_from_a_calibrated_vit(shared):
    found = run(shared, 0.5, train=600, val=300, fit=200, steps=20, refine_steps=10)
    assert found["trained"] > found["calibrated"] - 5
    assert found["fused"] == pytest.approx(found["trained"], abs=0.5)
