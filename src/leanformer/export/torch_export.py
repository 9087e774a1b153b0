"""torch: the traced program itself, a .pt2 file that any PyTorch runs without leanformer's code."""

import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from .source import Exported, export
from .target import Run, Target


def to_torch(model: nn.Module, path: str | Path, **options: Any) -> Exported:
    """Write an ExportedProgram for any batch size and compare it with the model; see `export`.

    >>> import leanformer as lf
    >>> lf.export.torch(lf.create("deit_tiny_patch16_224"), "lean.pt2")  # doctest: +SKIP
    """
    return export(model, path, TORCH, **options)


def _write(program: ExportedProgram, path: Path, metadata: dict[str, str]) -> None:
    files = {f"{key}.json": value for key, value in metadata.items()}
    whole = io.BytesIO()  # torch's own writer ends the process where the disk is full
    torch.export.save(program, whole, extra_files=files)
    with open(path, "wb") as file:
        file.write(whole.getbuffer())


def open_torch(path: Path) -> Run:
    """A .pt2 file as a function."""
    program = torch.export.load(path).module()

    def run(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return program(images)

    return run


TORCH = Target(
    name="torch",
    suffix=".pt2",
    runtime="torch",
    write=_write,
    open=open_torch,
    dtypes=(torch.float32, torch.float16, torch.bfloat16, torch.float64),
)
