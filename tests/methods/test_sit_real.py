"""SiT on a ViT that was trained for real, and real photographs."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

import leanformer as lf
from leanformer.core import Step, View, taps
from leanformer.data.packs import read_pack
from leanformer.layers.losses import distil

WEIGHTS = "vit_tiny_patch16_224_in1k_fp16.safetensors"
CLASSES, DEPTH, STEPS, BATCH = 20, 6, 100, 32


@pytest.mark.slow
@torch.no_grad()
def test_the_grid_start_keeps_most_of_a_trained_models_accuracy_and_the_random_start_none(shared: Path):
    pack = read_pack(shared / "data" / "nips17_imagenet_224.npz")
    chosen = range(0, 1000, 21)
    images, labels = pack.decode(chosen) / 127.5 - 1, pack.labels[list(chosen)]
    teacher = lf.create("vit_tiny_patch16_224", checkpoint=shared / "data" / WEIGHTS).eval()

    def accuracy(model: torch.nn.Module) -> float:
        return (model(images).argmax(1) == labels).float().mean().item()

    grid, random = (lf.apply(teacher, lf.SiT(at=(7, 9), start=start)) for start in ("grid", "random"))
    assert accuracy(teacher) > 0.75
    assert accuracy(grid) > 0.6
    assert accuracy(random) < 0.2


def photographs(path: Path, number: int) -> tuple[Tensor, Tensor]:
    """Photographs of 64 x 64 of the first classes, and their labels."""
    pack = read_pack(path)
    chosen = (pack.labels < CLASSES).nonzero()[:number, 0]
    return pack.decode(chosen.tolist()) / 127.5 - 1, pack.labels[chosen]


@torch.no_grad()
def teacher_of(folder: Path, scratch: Path, images: Tensor, labels: Tensor) -> Any:
    """The first blocks of the trained ViT, with a head for our classes fitted by ridge regression."""
    state = {key: value.float() for key, value in load_file(folder / WEIGHTS).items()}
    kept = {k: v for k, v in state.items() if not k.startswith("blocks.") or int(k.split(".")[1]) < DEPTH}
    kept |= {"head.weight": torch.zeros(CLASSES, 192), "head.bias": torch.zeros(CLASSES)}
    torch.save(kept, scratch / "teacher.pt")
    sizes = {"img_size": 64, "depth": DEPTH, "num_classes": CLASSES}
    teacher: Any = lf.create("vit_tiny_patch16_224", scratch / "teacher.pt", resample_positions=True, **sizes).eval()
    features = torch.cat([teacher.forward_features(x)[:, 0] for x in images.split(100)])  # (n, C)
    mean = features.mean(0)
    centred = features - mean
    ridge = 0.3 * len(images) * centred.var() * torch.eye(192)
    weight = torch.linalg.solve(centred.T @ centred + ridge, centred.T @ (F.one_hot(labels, CLASSES) - 1 / CLASSES))
    teacher.head.weight.copy_(12 * weight.T)
    teacher.head.bias.copy_(-12 * mean @ weight)
    return teacher


def learn(method: lf.SiT, teacher: Any, images: Tensor, labels: Tensor) -> Any:
    """A student after a short training on a few photographs, the same ones in the same order for every method."""
    student = lf.apply(teacher, method).train()
    objective: Any = method.objective(student, teacher)
    paths = objective.teacher_taps()["teacher"]
    with torch.no_grad(), taps(teacher, paths) as seen:
        view = View(teacher(images), dict(seen))
    groups = [{"params": list(student.parameters()), "lr": 5e-4}]
    reverse = list(objective.parameters())
    if reverse:
        groups.append({"params": reverse, "lr": 5e-4 * objective.learning_rate_scale})
    optimizer = torch.optim.AdamW(groups, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: (1 + math.cos(math.pi * t / STEPS)) / 2)
    generator = torch.Generator().manual_seed(0)
    order = torch.cat([torch.randperm(len(images), generator=generator) for _ in range(STEPS * BATCH // len(images))])
    for i in order.split(BATCH):
        with taps(student, objective.student_taps()) as seen:
            answer = View(student(images[i]), seen)
        taught = View(view.output[i], {path: view.taps[path][i] for path in paths})
        terms = objective(Step(images[i], labels[i], answer, {"teacher": taught}))
        optimizer.zero_grad()
        sum(terms.values()).backward()
        optimizer.step()
        schedule.step()
    return student.eval()


@pytest.mark.slow
def test_tokens_and_logits_teach_more_than_logits_alone_from_the_same_start(shared: Path, tmp_path: Path):
    images, labels = photographs(shared / "data" / "tiny_imagenet_train_0of3.npz", 1600)
    unseen, _ = photographs(shared / "data" / "tiny_imagenet_val.npz", 600)
    teacher = teacher_of(shared / "data", tmp_path, images, labels)
    losses = {}
    for name, method in {"both": lf.SiT(at=(1, 2, 3)), "logits": lf.SiT(at=(1, 2, 3), lambda_token=0.0)}.items():
        torch.manual_seed(1)
        student = learn(method, teacher, images[:640], labels[:640])
        with torch.no_grad():
            losses[name] = distil(student(unseen), teacher(unseen)).item()
    with torch.no_grad():
        start = distil(lf.apply(teacher, lf.SiT(at=(1, 2, 3)))(unseen), teacher(unseen)).item()
    assert losses["both"] < losses["logits"] < 0.6 * start, (losses, start)
