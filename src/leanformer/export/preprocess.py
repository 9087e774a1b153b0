"""Preprocessing inside the exported file: raw pixels in, logits out.

    uint8 (B, C, H, W) → resize the shorter side → cut out the middle → normalise → model

Resizing is a linear map of rows and one of columns. The source size is fixed, so both are constants of the file and
every runtime computes them as two matrix products, with the antialiased filter that the model was evaluated with.

B batch, C channels, H x W source, S x S the model's input.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..core import input_of
from ..data.augment import resampler
from ..data.view import EvaluationView


class Preprocessed(nn.Module):
    """A model that takes uint8 images of one size.

    >>> import leanformer as lf
    >>> tiny = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=5)
    >>> Preprocessed(tiny, (48, 64))(torch.zeros(2, 3, 48, 64, dtype=torch.uint8)).shape
    torch.Size([2, 5])
    """

    rows: Tensor
    columns: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, source: tuple[int, int]):
        super().__init__()
        config = input_of(model)
        dtype = next(model.parameters()).dtype
        self.model = model
        self.source = source
        rows, columns = _maps(source, config)
        self.register_buffer("rows", rows)  # (S, H)
        self.register_buffer("columns", columns)  # (W, S)
        self.register_buffer("mean", torch.tensor(config["mean"]).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(config["std"]).view(-1, 1, 1))
        self.dtype = dtype

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.rows @ (pixels.float() / 255) @ self.columns  # (B, C, S, S)
        return self.model(((x.clamp(0, 1) - self.mean) / self.std).to(self.dtype))


def _maps(source: tuple[int, int], config: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The rows' map (S, H) and the columns' (W, S), rounded to whole pixels as the evaluation rounds them."""
    if min(source) < 1:
        raise ValueError(f"preprocess={source} is no size of an image; give height and width in pixels")
    view = EvaluationView(config)
    top, left, tall, wide = (torch.tensor([edge]) for edge in view.box(*source))
    rows = resampler(top, tall, source[0], view.size[0], view.kernel, None)[0]  # (S, H)
    columns = resampler(left, wide, source[1], view.size[1], view.kernel, None)[0]  # (S, W)
    return rows, columns.T.contiguous()
