"""leanformer bench: models side by side, with measured time."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checks import DTYPES, at_least, one_of, open_device, output_files
from .common import NOTHING, Compared

if TYPE_CHECKING:
    from ..measure.bench import Comparison

MODES = ("eager", "compiled", "optimised", "graph")


def bench(
    rows: Compared = NOTHING,
    device: str | None = None,
    batches: tuple[int, ...] = (),
    dtypes: tuple[str, ...] = (),
    modes: tuple[str, ...] = ("eager", "compiled"),
    runtime: tuple[str, ...] = (),
    repeats: int = 11,
    compare_with: Path | None = None,
    output: Path | None = None,
) -> int | None:
    """Throughput, latency, memory and MACs of models side by side; the first is the yardstick of the speed-ups.

    --apply A --apply B adds the first model with both methods on it, and each --against one more row.

    Example: leanformer bench deit_small_patch16_224 --apply {tokens} --apply {ffn} --against {tokens}

    Args:
        rows: The models, and what is put on the first of them.
        device: cpu or cuda; by default the GPU if there is one.
        batches: Batch sizes; by default 1 and one that fills the device.
        dtypes: float32, bfloat16 or float16; by default bfloat16 on a GPU and float32 on a CPU.
        modes: eager, compiled, optimised (as lf.optimize makes them, every step that applies taken), and on a GPU graph
            (compiled and captured in a CUDA graph).
        runtime: Other runtimes to export the models to and time beside PyTorch: onnxruntime, openvino, torch, aoti,
            executorch.
        repeats: How often each row is timed, in turn with the others.
        compare_with: The result of an earlier run of the same; say which figures differ by more than both spreads.
        output: Write the result as JSON, for example results/bench.json.
    """
    from ..export import runtime_opener
    from ..measure.bench import compare
    from ..measure.terminal import console
    from ..measure.timing import shared_kernels
    from ..speed import optimize

    at_least(1, batches=batches, repeats=repeats)
    one_of(DTYPES, dtypes=dtypes)
    one_of(MODES, modes=modes)
    output_files(output)
    place = open_device(device or ("cpu" if runtime else None))
    before = None if compare_with is None else _earlier(compare_with)
    with tempfile.TemporaryDirectory() as folder, shared_kernels():
        others = {name: runtime_opener(name, Path(folder), rows.fused) for name in runtime}
        result = compare(
            rows.open(),
            device=place,
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
    return None if before is None else _compare_with(before, result, compare_with)


def _earlier(path: Path) -> list[dict[str, Any]]:
    """The rows of an earlier bench; anything else is refused before time is spent."""
    from ..measure.repeat_runs import KEY
    from ..measure.results import read_rows

    rows = read_rows(path)
    if not all(set(KEY) <= set(row) for row in rows):
        raise ValueError(f"{path} is no result of leanformer bench: its rows lack {', '.join(KEY)}")
    return rows


def _compare_with(before: list[dict[str, Any]], result: Comparison, earlier: Path | None) -> int:
    """Say whether two runs agree; 1, the code of failure, if they do not or have nothing in common."""
    from ..measure.repeat_runs import disagreements
    from ..measure.terminal import console

    try:
        differing = disagreements(before, result.record()["rows"])
    except ValueError as error:
        console().print(str(error))
        return 1
    for line in differing:
        console().print(line, highlight=False)
    console().print(f"{len(differing) or 'no'} figures differ from {earlier} by more than both spreads")
    return 1 if differing else 0
