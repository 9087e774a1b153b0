"""Functions that tests share: `from helpers import randomise`."""

from pathlib import Path

import torch
from torch import nn

SHARED = Path(__file__).parents[2] / "shared"


def parity_files(pattern: str) -> list[Path]:
    """The official answers whose file names match; empty where the folder is missing."""
    return sorted((SHARED / "parity").glob(pattern))


def randomise(model: nn.Module, seed: int = 0, scale: float = 0.1) -> nn.Module:
    """Move every parameter and every batch-norm statistic away from its start, so that nothing hides in zeros."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        parameter.data.add_(noise.to(parameter) * scale)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.add_(torch.randn(buffer.shape, generator=generator).to(buffer) * scale)
        if name.endswith("running_var"):
            buffer.mul_(torch.rand(buffer.shape, generator=generator).to(buffer) + 0.5)
    return model
