"""lean: a trained model and a target in, a lean model out."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from ..core import card_of
from ..data.sources import Source, check_fit
from ..train import Recipe
from .cost import Place
from .job import Job, Lean
from .parts import split
from .target import Options, Target, seconds_of


def lean(
    model: nn.Module,
    data: Source,
    *,
    speedup: float | None = None,
    latency: str | float | None = None,
    max_drop: float | None = None,
    judge: Source | None = None,
    device: str | None = None,
    batch: int | None = None,
    dtype: str | None = None,
    runtime: str = "torch",
    methods: tuple[str, ...] | None = None,
    sizes: bool = True,
    choosing: int = 256,
    evaluations: int | None = None,
    epochs: int | None = None,
    minutes: float | None = None,
    train: bool = True,
    recipe: Recipe | None = None,
    output: str | os.PathLike[str] | None = None,
    seed: int = 0,
    said: Callable[[str], None] | None = None,
) -> Lean:
    """A trained model and a target in, a lean model out.

    What to change where (tokens dropped or merged, idle channels, mixers removed, smaller images) is searched over
    time measured on this device; what a plan loses is measured on some of the images against the model's own answers,
    so that no labels are needed. The best plan is built, calibrated, distilled, fused, optimised and timed again.

    Args:
        model: a trained model of `lf.create` or `lf.adopt`, not fused.
        data: a folder of images, a pack, or uint8 images with or without labels; at least 64.
        speedup: target: times as fast as the model's own optimised form.
        latency: target: time a batch, as '1.5ms' or in seconds.
        max_drop: target: the fastest plan that loses at most so many points before training.
        judge: images to judge on in the end; by default the validation split, or a part of `data` kept apart.
        device: cpu, cuda, …; the fastest there is by default.
        batch: images at a time, for which the model is made fast; 256 on a GPU and 8 on a CPU by default.
        dtype: bfloat16 on a GPU and float32 on a CPU by default.
        runtime: torch (optimised), eager (torch without compilation), or on a CPU onnxruntime or openvino.
        methods: only these methods; all that serve the model by default.
        sizes: whether smaller images are among the choices.
        choosing: images on which plans are compared.
        evaluations: how many plans are tried; 160 on a CPU, 800 on a GPU by default.
        epochs: of distillation; 10 by default.
        minutes: of distillation instead of epochs.
        train: False leaves the model as calibrated.
        recipe: of the distillation, instead of the default one.
        output: folder for lean.safetensors, plan.json, report.html and the training run; the same call goes on where
            it was.
        seed: of shuffles, search and training.
        said: told what is going on, line by line.

    >>> result = lf.lean(teacher, "photos/", speedup=2.0, output="runs/lean")  # doctest: +SKIP
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    place = _place(where, batch, dtype, compiled=runtime != "eager")
    options = Options(
        target=Target(speedup, None if latency is None else seconds_of(latency), max_drop),
        place=place, runtime=runtime, methods=methods, sizes=sizes, choosing=choosing,
        evaluations=evaluations or (800 if place.device.type == "cuda" else 160),
        epochs=epochs, minutes=minutes, train=train, recipe=recipe, seed=seed,
    )  # fmt: skip
    _refuse(model, options)
    parts = split(data, judge, choosing, seed=seed)
    check_fit(model, parts.judging)  # now, and not after hours of training
    job = Job(model, parts, options, None if output is None else Path(output), said or (lambda text: None))
    return job.run()


def _place(device: torch.device, batch: int | None, dtype: str | None, compiled: bool) -> Place:
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; give device='cpu'")
    if batch is not None and batch < 1:
        raise ValueError(f"batch is {batch}; give a number of images, 1 or more")
    on_gpu = device.type == "cuda"
    kind = getattr(torch, dtype or ("bfloat16" if on_gpu else "float32"), None)
    if kind not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"unknown dtype '{dtype}'; known: float32, bfloat16, float16")
    return Place(device, batch or (256 if on_gpu else 8), kind, compiled)


def _refuse(model: nn.Module, options: Options) -> None:
    card = card_of(model)
    if card.fused:
        raise ValueError("this model is fused already; lean starts from the trained model before lf.fuse")
    if card.methods:
        raise ValueError(f"{card.methods[0].name} is on this model already; lean starts from the plain backbone")
    if options.epochs is not None and options.minutes is not None:
        raise ValueError("epochs and minutes both say how long to train; give one of them")
    for name in ("epochs", "minutes"):
        if getattr(options, name) is not None and not 0 < getattr(options, name) < math.inf:
            raise ValueError(f"{name} is {getattr(options, name)}; give a number above 0, or train=False")
