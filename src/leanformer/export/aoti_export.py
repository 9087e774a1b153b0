"""aoti: compiled ahead of time by Inductor into a package that needs no compiler where it runs."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from .source import Exported, export
from .target import Run, Target


def to_aoti(model: nn.Module, path: str | Path, **options: Any) -> Exported:
    """Compile a package for any batch size on this kind of CPU and compare it with the model; see `export`.

    >>> import leanformer as lf
    >>> lf.export.aoti(lf.create("deit_tiny_patch16_224"), "lean.aoti.pt2")  # doctest: +SKIP
    """
    return export(model, path, AOTI, **options)


def _write(program: ExportedProgram, path: Path, metadata: dict[str, str]) -> None:
    from torch._inductor import aoti_compile_and_package
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        aoti_compile_and_package(
            program, package_path=str(path), inductor_configs={"aot_inductor.metadata": dict(metadata)}
        )
    except InvalidCxxCompiler as error:
        raise ValueError("the format 'aoti' needs a C++ compiler on this machine, such as g++") from error


def open_aoti(path: Path) -> Run:
    """A compiled package as a function."""
    from torch._inductor import aoti_load_package

    program = aoti_load_package(str(path))

    def run(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return program(images)

    return run


AOTI = Target(
    name="aoti",
    suffix=".aoti.pt2",
    runtime="aoti",
    write=_write,
    open=open_aoti,
    dtypes=(torch.float32, torch.float16, torch.bfloat16),
)
