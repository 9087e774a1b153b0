"""leanformer lean: a trained model and a target in, a lean model out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .checks import DTYPES, above_zero, at_least, check_seed, one_of, open_device, output_folder
from .common import Model, Set, open_model

if TYPE_CHECKING:
    from ..search.outcome import Lean


def lean(
    model: Model,
    data: str,
    checkpoint: Path | None = None,
    arguments: Set = (),
    speedup: float | None = None,
    latency: str | None = None,
    max_drop: float | None = None,
    curve: tuple[float, ...] = (),
    shared: bool = False,
    judge: str | None = None,
    device: str | None = None,
    batch: int | None = None,
    dtype: str | None = None,
    runtime: str = "torch",
    methods: tuple[str, ...] = (),
    sizes: bool = True,
    images: int = 256,
    plans: int | None = None,
    epochs: int | None = None,
    minutes: float | None = None,
    train: bool = True,
    export: str | None = None,
    seed: int = 0,
    output: Path = Path("runs/lean"),
) -> int:
    """Make a trained model as fast as you ask, with the least loss: search, calibrate, distil, fuse, optimise, measure.

    No labels are needed: the model's own answers are what the lean one learns and is judged by. The speed-up is over
    the model's own optimised form, measured on this device. The same command goes on where it was interrupted.

    Example: leanformer lean vit_tiny_patch16_224 --checkpoint vit.safetensors --data photos/ --speedup 2
    --output runs/lean

    Args:
        model: A trained model: its name (and a checkpoint) or a leanformer checkpoint.
        data: A folder of images, with classes or without, or pack:PATH; at least 64 images.
        checkpoint: Weights for a model given by name.
        arguments: An argument of the model as name=value; may be given several times.
        speedup: Target: times as fast as the model's own optimised form, such as 2.
        latency: Target: time a batch, such as 1.5ms.
        max_drop: Target: the fastest plan that loses at most so many points before training.
        curve: Target: several speed-ups, such as 1.5 2 3, each with a model of its own.
        shared: Let the models of a curve share one set of weights, distilled together.
        judge: Other images to judge on in the end; by default the validation split, or a part of the data kept apart.
        device: cpu, cuda, …; the fastest there is by default.
        batch: Images at a time, for which the model is made fast; 256 on a GPU and 8 on a CPU by default.
        dtype: float32, bfloat16 or float16; bfloat16 on a GPU and float32 on a CPU by default.
        runtime: torch, eager (torch without compilation), onnxruntime or openvino on a CPU, or macs (counted, not
            timed).
        methods: Only these methods, by name; all that serve the model by default.
        sizes: Whether smaller images are among the choices.
        images: Images on which plans are compared.
        plans: How many plans are tried; 240 on a CPU, 800 on a GPU by default.
        epochs: Epochs of distillation; 10 by default.
        minutes: Minutes of distillation instead of epochs.
        train: Distil the plan that was chosen; --no-train leaves it as calibrated.
        export: Also write the lean model in this format (onnx, openvino, torch, aoti, executorch), compared with it.
        seed: Of shuffles, search and training.
        output: The folder for lean.safetensors, plan.json and report.html.
    """
    from ..search.make_lean import lean as make_lean
    from ..search.target import target_of

    target_of(speedup, latency, max_drop, curve)  # before anything is opened
    at_least(1, batch=batch, images=images, plans=plans, epochs=epochs)
    above_zero(minutes=minutes)
    check_seed(seed)
    if dtype is not None:
        one_of(DTYPES, dtype=(dtype,))
    output_folder(output)
    where = open_device(device)
    opened = open_model(model, (), checkpoint, arguments)
    result = make_lean(
        opened, data, speedup=speedup, latency=latency, max_drop=max_drop, curve=curve or None, shared=shared,
        judge=judge, device=str(where), batch=batch, dtype=dtype, runtime=runtime, methods=methods or None,
        sizes=sizes, choosing=images, evaluations=plans, epochs=epochs, minutes=minutes, train=train, export=export,
        output=output, seed=seed,
    )  # fmt: skip
    return _report(result, output)


def _report(result: Lean, output: Path) -> int:
    """Print what came out, and return 0 only if every target is met."""
    from ..measure.terminal import console
    from ..search.clock import three_digits

    out = console()
    points = result.curve or (result,)
    finals = [entry["final"] for entry in result.record["curve"]] if result.curve else [result.record["final"]]
    runtime = result.record["about"]["place"][-1]
    yardstick = "the optimised model" if runtime == "torch" else f"the model itself by {runtime}"
    judged_by = {"top1": "top-1", "knn_top1": "top-1 by neighbours"}
    for point, final in zip(points, finals, strict=True):
        told = (
            f"{name} {final[f'teacher_{key}']:.1f} → {final[key]:.1f}%, "
            for key, name in judged_by.items()
            if key in final
        )
        lost = "".join(told)
        names = ", ".join(file.name for file in point.files)
        faster = f"{point.speedup:.2f} times as fast as {yardstick}"
        if runtime == "macs":
            faster = f"{point.speedup:.2f} times fewer multiplications (nothing was timed)"
        elif result.record["about"]["target"]["latency"] is not None:
            faster = f"{three_digits(1e3 * final['seconds'])} ms a batch, {faster}"
        out.print(
            f"{faster}, {lost}agreement {final['agreement']:.1f}% on {final['images']} images kept apart: {names}",
            highlight=False,
        )
        if not point.met:
            out.print(f"the target is not met: {final['missed']}", highlight=False)
    out.print(f"{output}/report.html shows how", highlight=False)
    return 0 if result.met else 1
