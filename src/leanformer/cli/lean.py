"""leanformer lean: a trained model and a target in, a lean model out."""

from __future__ import annotations

from pathlib import Path

from .checks import DTYPES, at_least, check_seed, one_of, open_device, output_folder
from .common import Model, Set, open_model


def lean(
    model: Model,
    data: str,
    checkpoint: Path | None = None,
    arguments: Set = (),
    speedup: float | None = None,
    latency: str | None = None,
    max_drop: float | None = None,
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
        judge: Other images to judge on in the end; by default the validation split, or a part of the data kept apart.
        device: cpu, cuda, …; the fastest there is by default.
        batch: Images at a time, for which the model is made fast; 256 on a GPU and 8 on a CPU by default.
        dtype: float32, bfloat16 or float16; bfloat16 on a GPU and float32 on a CPU by default.
        runtime: torch, eager (torch without compilation), or on a CPU onnxruntime or openvino.
        methods: Only these methods, by name; all that serve the model by default.
        sizes: Whether smaller images are among the choices.
        images: Images on which plans are compared.
        plans: How many plans are tried; 160 on a CPU, 800 on a GPU by default.
        epochs: Epochs of distillation; 10 by default.
        minutes: Minutes of distillation instead of epochs.
        train: Distil the plan that was chosen; --no-train leaves it as calibrated.
        seed: Of shuffles, search and training.
        output: The folder for lean.safetensors, plan.json and report.html.
    """
    from ..measure.terminal import console
    from ..search.make_lean import lean as make_lean
    from ..search.target import Target, seconds_of

    Target(speedup, None if latency is None else seconds_of(latency), max_drop)  # before anything is opened
    at_least(1, batch=batch, images=images, plans=plans, epochs=epochs)
    check_seed(seed)
    if dtype is not None:
        one_of(DTYPES, dtype=(dtype,))
    output_folder(output)
    where = open_device(device)
    opened = open_model(model, (), checkpoint, arguments)
    out = console()
    result = make_lean(
        opened, data, speedup=speedup, latency=latency, max_drop=max_drop, judge=judge, device=str(where), batch=batch,
        dtype=dtype, runtime=runtime, methods=methods or None, sizes=sizes, choosing=images, evaluations=plans,
        epochs=epochs, minutes=minutes, train=train, output=output, seed=seed,
        said=lambda text: out.print(text, highlight=False, markup=False),
    )  # fmt: skip
    final = result.record["final"]
    lost = f"top-1 {final['teacher_top1']:.1f} → {final['top1']:.1f}%, " if "top1" in final else ""
    out.print(
        f"{result.speedup:.2f} times as fast as the optimised model, {lost}agreement {final['agreement']:.1f}% on "
        f"{final['images']} images kept apart; {output}/report.html shows how",
        highlight=False,
    )
    if not result.met:
        out.print("the target is not met: this is the fastest plan that was found", highlight=False)
    return 0 if result.met else 1
