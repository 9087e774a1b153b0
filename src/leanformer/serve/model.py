"""What answers: a PyTorch model or an opened ONNX file, as one function from a batch to answers.

B images of size (C, H, W), K tokens that are left after the last location of token reduction.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core import (
    Decision,
    blocks_of,
    decision_paths,
    input_of,
    one_line,
    plain_of,
    reducers,
    single_patches,
    taps,
    trace,
)
from ..core.checked import check_view
from .onnx_file import OnnxFile

DTYPES = {"FLOAT": torch.float32, "FLOAT16": torch.float16}
"""ONNX's element types → those that images are given in."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a model says of one image."""

    probabilities: Tensor  # (classes,)
    kept: list[int] | None
    """The patches that are left at the end, numbered row by row; None where the model drops none or does not tell."""

    def top(self, count: int, classes: Sequence[str]) -> list[dict[str, Any]]:
        """The `count` most probable classes.

        >>> Answer(torch.tensor([0.25, 0.75]), None).top(1, ["cat", "dog"])
        [{'index': 1, 'name': 'dog', 'probability': 0.75}]
        """
        values, indices = self.probabilities.topk(min(count, len(self.probabilities)))
        return [
            {"index": index, "name": classes[index], "probability": round(value, 6)}
            for value, index in zip(values.tolist(), indices.tolist())
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """A model ready to be served: `forward` takes (B, C, H, W) and gives logits and, where known, kept patches."""

    name: str
    runtime: str
    config: dict[str, Any]
    """Input size, normalisation and crop, as `input_of` gives them."""
    classes: Sequence[str]
    forward: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    grid: tuple[int, int] | None = None
    """Rows and columns of patches, where kept ones are told."""

    def __call__(self, images: Tensor) -> list[Answer]:
        logits, kept = self.forward(images)  # (B, classes), (B, K)
        probabilities = logits.float().softmax(-1).cpu()
        patches: list[Any] = [None] * len(images) if kept is None else kept.cpu().tolist()
        # below 0 stand fused tokens, which are no single patch
        return [
            Answer(row, None if left is None else sorted(patch for patch in left if patch >= 0))
            for row, left in zip(probabilities, patches)
        ]

    def warm_up(self, batch: int) -> None:
        """Compute once with one image and once with a full batch, and refuse a model that answers nonsense."""
        for size in (1, batch):
            for answer in self(torch.zeros(size, *self.config["input_size"])):
                if len(answer.probabilities) != len(self.classes):
                    raise ValueError(f"{self.name} has {len(answer.probabilities)} outputs, {len(self.classes)} names")
                if not math.isfinite(answer.probabilities.sum().item()):
                    raise ValueError(f"{self.name} answers with numbers that are not finite; its weights are broken")


def of_model(model: nn.Module, name: str, classes: Sequence[str]) -> Served:
    """A PyTorch model, on the device where it is; with the kept patches where its tokens can be traced.

    >>> import leanformer as lf
    >>> tiny = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=2, num_classes=2)
    >>> of_model(lf.apply(tiny, lf.EViT()), "tiny", ["cat", "dog"]).grid
    (4, 4)
    """
    model = model.eval()
    # an optimised model does not tell what it chose on the way
    like, paths = next(model.parameters()), _traceable(model) if plain_of(model) is model else []
    grid = next(iter(blocks_of(model).values())).grid if paths else None

    @torch.inference_mode()
    def forward(images: Tensor) -> tuple[Tensor, Tensor | None]:
        with taps(model, paths) as chosen:
            logits = model(images.to(like.device, like.dtype))
        return logits, single_patches(trace(model, chosen)[-1]).expand(len(images), -1) if paths else None

    return Served(
        name=name,
        runtime="torch",
        config=input_of(model),
        classes=classes,
        forward=forward,
        grid=None if grid is None else (int(grid.size[0]), int(grid.size[1])),
    )


def _traceable(model: nn.Module) -> list[str]:
    """Where a model chooses patches; nowhere if a method mixes them softly, so that no patch is left as it was."""
    chosen = all(isinstance(reducer.decision, Decision) for reducer in reducers(model).values())
    return decision_paths(model) if chosen else []


def of_file(file: OnnxFile, run: Callable[[Tensor], Tensor], name: str, classes: Sequence[str]) -> Served:
    """An ONNX file and the function that computes with it.

    >>> of_file(OnnxFile.read("lean.onnx"), lf.export.open_file("lean.onnx"), "lean", names)  # doctest: +SKIP
    """
    if file.preprocess is not None:
        raise ValueError(
            f"{file.path} takes raw images of {file.preprocess[0]} x {file.preprocess[1]} pixels only; "
            "serve one that was exported without preprocessing"
        )
    if "input" not in file.card:
        raise ValueError(f"the card of {file.path} does not say how its input is normalised: {one_line(file.card)}")
    if file.input_type not in DTYPES:
        raise ValueError(f"{file.path} takes {file.input_type}; served files take {' or '.join(DTYPES)}")
    dtype, config = DTYPES[file.input_type], check_view(file.card["input"])
    if "input_size" not in config:
        raise ValueError(f"the card of {file.path} does not say the size of its images")
    return Served(
        name=name,
        runtime="onnxruntime",
        config=config,
        classes=classes,
        forward=lambda images: (run(images.to(dtype)), None),
    )
