"""lean: a trained model and a target in, a lean model out."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import nn

from ..data.sources import Source, check_fit
from ..train import Recipe
from ..train.file_lock import locked
from .checks import check_classes, check_export, check_model, check_training, place_of
from .clock import clock_for
from .job import Job
from .outcome import Lean
from .parts import split
from .progress import Progress
from .target import Options, target_of

EVALUATIONS = {"cuda": 800}
"""Plans that are tried by kind of device, where the user does not say; 240 elsewhere."""


def lean(
    model: nn.Module,
    data: Source,
    *,
    speedup: float | None = None,
    latency: str | float | None = None,
    max_drop: float | None = None,
    curve: Sequence[float] | None = None,
    shared: bool = False,
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
    export: str | None = None,
    output: str | os.PathLike[str] | None = None,
    seed: int = 0,
    said: Callable[[str], None] | None = None,
    quiet: bool = False,
) -> Lean:
    """A trained model and a target in, a lean model out.

    What to change where (tokens dropped, merged or slimmed, idle channels, mixers removed, smaller images) is searched
    over time measured on this device; what a plan loses is measured on some of the images against the model's own
    answers, so that no labels are needed. The best plan is built, calibrated, distilled, fused, optimised and timed
    again.

    Args:
        model: a trained model of `lf.create` or `lf.adopt`, not fused.
        data: a folder of images, a pack, or uint8 images with or without labels; at least 64.
        speedup: target: times as fast as the model's own optimised form.
        latency: target: time a batch, as '1.5ms' or in seconds.
        max_drop: target: the fastest plan that loses at most so many points before training.
        curve: target: several speed-ups, each with a plan and a model of its own.
        shared: let the plans of a curve share one set of weights, distilled together; they are then of one method that
            drops or merges tokens, at the model's own image size.
        judge: images to judge on in the end; by default the validation split, or a part of `data` kept apart.
        device: cpu, cuda, …; the fastest there is by default.
        batch: images at a time, for which the model is made fast; 256 on a GPU and 8 on a CPU by default.
        dtype: bfloat16 on a GPU and float32 on a CPU by default.
        runtime: torch (optimised), eager (torch without compilation), onnxruntime or openvino on a CPU, or macs:
            multiplications are counted and nothing is timed.
        methods: only these methods; all that serve the model by default.
        sizes: whether smaller images are among the choices.
        choosing: images on which plans are compared.
        evaluations: how many plans are tried; 240 on a CPU, 800 on a GPU by default.
        epochs: of distillation; 10 by default.
        minutes: of distillation instead of epochs.
        train: False leaves the model as calibrated.
        recipe: of the distillation, instead of the default one.
        export: also write the lean model in this format of `lf.export`, such as onnx, compared with it.
        output: folder for lean.safetensors, plan.json, report.html and the training run; the same call goes on where
            it was.
        seed: of shuffles, search and training.
        said: told what is going on, line by line; by default it is printed.
        quiet: say nothing and show no bars.

    Raises:
        ValueError: for what cannot be done, before any work is.

    >>> result = lf.lean(teacher, "photos/", speedup=2.0, output="runs/lean")  # doctest: +SKIP
    """
    place = place_of(device, batch, dtype)
    options = Options(
        target=target_of(speedup, latency, max_drop, curve),
        place=place, runtime=runtime, methods=methods, sizes=sizes, choosing=choosing,
        evaluations=EVALUATIONS.get(place.device.type, 240) if evaluations is None else evaluations,
        epochs=epochs, minutes=minutes, train=train, shared=shared, recipe=recipe, export=export, seed=seed,
    )  # fmt: skip
    check_model(model)
    check_export(export, output)
    clock_for(place, runtime)
    parts = split(data, judge, choosing, seed=seed)
    check_classes(parts.judging)
    check_fit(model, parts.judging)  # now, and not after hours of training
    check_training(model, parts.training, recipe if train else None)
    folder = None if output is None else Path(output)
    job = Job(model, parts, options, folder, Progress(said, quiet))
    if folder is None:
        return job.run()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        return job.run()
