"""leanformer bench: models side by side, with measured time."""

from pathlib import Path
from typing import Annotated

import tyro
from torch import nn

from ..core import fuse
from ..measure.bench import compare
from ..measure.console import console
from .common import Apply, Set, open_model
from .suite import run_suite

Models = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL [MODEL ...]")]


def bench(
    models: Models = (),
    methods: Apply = (),
    checkpoint: Path | None = None,
    arguments: Set = (),
    device: str | None = None,
    batches: tuple[int, ...] = (),
    dtypes: tuple[str, ...] = (),
    modes: tuple[str, ...] = ("eager", "compiled"),
    repeats: int = 7,
    fused: bool = True,
    suite: str | None = None,
    only: str = "",
    output: Path | None = None,
) -> None:
    """Throughput, latency, memory and MACs of models side by side; the first is the yardstick of the speed-ups.

    Each --apply adds the first model with these methods on it, joined by +.

    Example: leanformer bench deit_small_patch16_224 --apply evit:keep_rate=0.7 --apply repa+evit --batches 1 64

    Args:
        models: Names or leanformer checkpoints.
        methods: Methods on the first model, for one more row: name:option=value, several joined by +.
        checkpoint: Weights for the models given by name.
        arguments: An argument of the models given by name, for example img_size=384; may be given several times.
        device: cpu or cuda; by default the GPU if there is one.
        batches: Batch sizes; by default 1 and one that fills the device.
        dtypes: float32, bfloat16 or float16; by default bfloat16 on a GPU and float32 on a CPU.
        modes: eager, compiled, and on a GPU graph (compiled and captured in a CUDA graph).
        repeats: How often each row is timed, in turn with the others.
        fused: Fuse the models with methods first, as they would be deployed.
        suite: A fixed list of lean models, each against the fastest form of its backbone: gpu or growth.
        only: Of a suite, only the rows whose name contains this text.
        output: Write the result as JSON, for example results/bench.json.
    """
    if suite is not None:
        return run_suite(suite, device, dtypes[0] if dtypes else "bfloat16", repeats, only, output)
    if not models:
        raise ValueError("give at least one model, by name or as a checkpoint, or a --suite")
    named: dict[str, nn.Module] = {model: open_model(model, (), checkpoint, arguments) for model in models}
    for spec in methods:
        model = open_model(models[0], tuple(spec.split("+")), checkpoint, arguments)
        named[f"{models[0]} {spec}"] = fuse(model, verify=False) if fused else model
    result = compare(named, device=device, batches=batches or None, dtypes=dtypes or None, modes=modes, repeats=repeats)
    result.print()
    if output is not None:
        console().print(f"wrote {result.save(output)}")
