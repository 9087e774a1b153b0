"""leanformer bench: models side by side, with measured time."""

import tempfile
from pathlib import Path
from typing import Any

from ..export import runtime_opener
from ..measure.bench import Comparison, compare
from ..measure.console import console
from ..measure.repeat_runs import disagreements
from ..measure.results import read_rows
from ..measure.timing import shared_kernels
from ..speed import optimize
from .common import Apply, Models, Set, side_by_side


def bench(
    models: Models = (),
    methods: Apply = (),
    checkpoint: Path | None = None,
    arguments: Set = (),
    device: str | None = None,
    batches: tuple[int, ...] = (),
    dtypes: tuple[str, ...] = (),
    modes: tuple[str, ...] = ("eager", "compiled"),
    runtime: tuple[str, ...] = (),
    repeats: int = 11,
    fused: bool = True,
    against: Path | None = None,
    output: Path | None = None,
) -> int | None:
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
        modes: eager, compiled, optimised (as lf.optimize makes them, every step that applies taken), and on a GPU graph
            (compiled and captured in a CUDA graph).
        runtime: Other runtimes to export the models to and time beside PyTorch: onnxruntime, openvino, torch, aoti,
            executorch.
        repeats: How often each row is timed, in turn with the others.
        fused: Fuse the models with methods first, as they would be deployed.
        against: The result of an earlier run of the same; say which figures differ by more than both spreads.
        output: Write the result as JSON, for example results/bench.json.
    """
    if not models:
        raise ValueError("give at least one model, by name or as a checkpoint")
    before = None if against is None else read_rows(against)
    named = side_by_side(models, methods, checkpoint, arguments, fused)
    with tempfile.TemporaryDirectory() as folder, shared_kernels():
        others = {name: runtime_opener(name, Path(folder), fused) for name in runtime}
        result = compare(
            named,
            device=device or ("cpu" if others else None),
            batches=batches or None,
            dtypes=dtypes or None,
            modes=modes,
            repeats=repeats,
            runtimes=others,
            optimize=optimize,
        )
    result.print()
    if output is not None:
        console().print(f"wrote {result.save(output)}")
    return None if before is None else _compare_with(before, result, against)


def _compare_with(before: list[dict[str, Any]], result: Comparison, against: Path | None) -> int:
    """Say whether two runs agree; 1, the code of failure, if they do not."""
    differing = disagreements(before, result.record()["rows"])
    for line in differing:
        console().print(line, highlight=False)
    console().print(f"{len(differing) or 'no'} figures differ from {against} by more than both spreads")
    return 1 if differing else 0
