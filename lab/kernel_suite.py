"""The suite `kernels`: each kernel against the same work written in torch and compiled, at the shapes that models have.

On a GPU every form is captured in a CUDA graph, so that launches cost nothing and batch 1 is judged by its work. The
floor of a case is what it must move over the memory rate, or what it must multiply over the matrix rate, both measured
in the same run.
"""

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from leanformer.measure import (
    capture,
    choose,
    commit,
    console,
    interleave,
    matrix_peak,
    memory_rate,
    record,
    write_result,
)
from leanformer.speed.asked import device_asked, dtype_asked

from .compile_together import told
from .kernel_cases import Case, cases
from .suite import rows_of_this_commit

TORCH = "torch, compiled"
"""The form that a kernel is compared with."""


@dataclass
class Measured:
    """A case with its times in microseconds, and the error of the kernel against float32."""

    label: str
    dtype: str
    microseconds: dict[str, float] = field(default_factory=dict)
    speedup: float | None = None
    error: float | None = None
    floor: float | None = None
    share_of_floor: float | None = None
    gigabytes_a_second: float | None = None
    failed: str = ""


FIELDS = tuple(Measured.__dataclass_fields__)


def run_kernels(
    device: str | None, dtype: str, repeats: int, only: str, output: Path | None, batches: tuple[int, ...] = ()
) -> None:
    """Measure all cases, print them, and write them as JSON after each; cases of this commit are not measured again."""
    place = device_asked(device)
    kind = getattr(torch, dtype_asked(dtype, place))
    known = {case.label: case for case in cases(batches or (256, 1))}
    chosen = [known[label] for label in choose(known, only)]
    memory, matrix = memory_rate(place), matrix_peak(place, kind)
    rates = {"bytes_a_second": memory, "flops_a_second": matrix}
    rows = [Measured(**{name: row[name] for name in FIELDS}) for row in rows_of_this_commit(output, "kernels")]
    done = {(row.label, row.dtype) for row in rows}
    left = [case for case in chosen if (case.label, dtype) not in done]
    measured = ((case, _measured(case, place, kind, repeats, memory, matrix)) for case in left)
    for _, row in told(measured, len(left), lambda case: case.label):
        rows.append(row)
        if output is not None:
            entries = [asdict(row) | {"commit": commit()} for row in rows]
            write_result(record("kernels", entries, place, **rates), output)
    console().print(kernel_table(rows))


def _measured(
    case: Case, device: torch.device, dtype: torch.dtype, repeats: int, memory: float, matrix: float
) -> Measured:
    row = Measured(case.label, str(dtype).removeprefix("torch."))
    try:
        arguments = case.arguments(device, dtype)
        with torch.inference_mode():
            row.error = _error(case.kernel(*arguments), case.reference(*map(_wide, arguments)))
        timings = interleave(_forms(case, arguments, device), device, repeats, seconds=0.02)
    except Exception as error:  # a kernel that this device refuses must not cost the rows of the others
        row.failed = f"{type(error).__name__}: {error}"[:500]
        return row
    row.microseconds = {form: 1e6 * timing.median for form, timing in timings.items()}
    bytes_moved = case.moved * dtype.itemsize
    row.floor = 1e6 * max(bytes_moved / memory, case.flops / matrix)
    row.share_of_floor = row.floor / row.microseconds["kernel"]
    row.gigabytes_a_second = bytes_moved / row.microseconds["kernel"] / 1e3
    row.speedup = row.microseconds[TORCH] / row.microseconds["kernel"]
    return row


def _forms(case: Case, arguments: tuple[Any, ...], device: torch.device) -> dict[str, Callable[[], Any]]:
    torch.compiler.reset()  # each case is a new shape, and compilers give up after eight
    compiled = functools.partial(torch.compile, fullgraph=True, dynamic=False)
    kernel = compiled(case.kernel) if case.compiled else case.kernel
    functions = {"kernel": kernel, TORCH: compiled(case.reference), **case.also}
    calls = {form: functools.partial(_call, function, arguments) for form, function in functions.items()}
    return {form: capture(call, device) for form, call in calls.items()} if device.type == "cuda" else calls


@torch.inference_mode()
def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16) else value


def _error(found: Any, truth: Any) -> float:
    """The largest error of the outputs, each as a share of its norm."""
    pairs = zip(*((t if isinstance(t, tuple) else (t,)) for t in (found, truth)), strict=True)
    wide = ((f.float(), t.float()) for f, t in pairs if t.numel())
    return max(((f - t).norm() / t.norm().clamp(min=1e-30)).item() for f, t in wide)


def kernel_table(rows: list[Measured]) -> Table:
    """The cases as one rich table."""
    table = Table(title="kernels, µs a call", title_justify="left")
    for name in ("kernel", "ours", TORCH, "gain", "floor", "of floor", "GB/s", "error"):
        table.add_column(name, justify="left" if name == "kernel" else "right")
    for row in rows:
        if row.failed:
            table.add_row(row.label, row.failed)
            continue
        ours, theirs = row.microseconds["kernel"], row.microseconds[TORCH]
        table.add_row(
            row.label, f"{ours:.1f}", f"{theirs:.1f}", f"{row.speedup:.2f}x", f"{row.floor:.1f}",
            f"{row.share_of_floor:.0%}", f"{row.gigabytes_a_second:,.0f}", f"{row.error:.1e}",
        )  # fmt: skip
    return table
