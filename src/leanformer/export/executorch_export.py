"""ExecuTorch: a .pte file for phones and boards, its linear algebra handed to XNNPACK.

ExecuTorch plans its memory for the largest batch, so that one is stated (`max_batch`). It takes attention apart with
guards against rows that are masked throughout, all of them outside of XNNPACK; attention in steps needs a third less
time for a ViT-Ti. Its check of lists of tensors, as a split gives them, would fix the batch size.
"""

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.export import ExportedProgram

from .rewrite import in_steps
from .source import Exported, export
from .target import Run, Target

MAX_BATCH = 8


def to_executorch(model: nn.Module, path: str | Path, *, max_batch: int = MAX_BATCH, **options: Any) -> Exported:
    """Write an ExecuTorch program with XNNPACK and compare it with the model in ExecuTorch's runtime; see `export`.

    >>> import leanformer as lf
    >>> lf.export.executorch(lf.create("deit_tiny_patch16_224"), "lean.pte")  # doctest: +SKIP
    """
    if max_batch < 5:
        raise ValueError(f"max_batch={max_batch} is too small: files are compared at batches up to 5")
    return export(model, path, EXECUTORCH, max_batch=max_batch, **options)


def _write(program: ExportedProgram, path: Path, metadata: dict[str, str]) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (  # type: ignore[import-not-found]
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower  # type: ignore[import-not-found]

    program = in_steps(program)
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()], constant_methods=metadata)
    path.write_bytes(lowered.to_executorch().buffer)


def open_executorch(path: Path) -> Run:
    """An ExecuTorch program as a function."""
    from executorch.runtime import Runtime  # type: ignore[import-not-found]

    data = path.read_bytes()
    program = Runtime.get().load_program(data)
    method = program.load_method("forward")

    def run(images: Tensor, owners: Any = (data, program)) -> Tensor:  # the method points into both: they must stay
        return method.execute([images.contiguous()])[0].clone()  # the runtime writes the next answer there

    return run


EXECUTORCH = Target(
    name="executorch",
    suffix=".pte",
    runtime="executorch",
    write=_write,
    open=open_executorch,
    packages=("executorch",),
    extra="executorch",
    max_batch=MAX_BATCH,
)
