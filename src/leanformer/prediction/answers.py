"""What a row says of a picture: columns with their types, and the tasks that fill them.

A task computes on the device and turns what comes back into columns. Classification is here, detection and
segmentation are in `dense`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..core import blocks_of, decision_paths, reducers, taps, trace
from ..core.reduce import refuse_untraceable

HALVES = ("float16", "float32")


@dataclasses.dataclass(frozen=True)
class Field:
    """One column.

    Attributes:
        name: Of the column.
        kind: text, bytes, or the name of a numpy dtype.
        shape: Of a value: () for a single one, (n,) for a vector, None for a length that differs from row to row, so
            that (None, 4) holds any number of boxes.
    """

    name: str
    kind: str
    shape: tuple[int | None, ...] = ()


Found = dict[str, Tensor | list[Tensor]]
"""What was computed of a batch by name: a tensor, or a list of tensors, with one entry an image."""


class Answers(Protocol):
    """A task: what is computed of a batch, and the columns that it gives."""

    @property
    def fields(self) -> Sequence[Field]:
        """The columns behind `path` and before `error`."""
        ...

    def compute(self, images: Any) -> Found:
        """What the model says of each image; where it can, without waiting for the device.

        Args:
            images: What the task's view gives: (B, C, H, W), black where a picture could not be read, or a list.
        """
        ...

    def columns(self, found: dict[str, Any]) -> dict[str, Any]:
        """The columns by name: an array or a list with one entry an image each.

        Args:
            found: What `compute` gave, on the host, as arrays.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Classification:
    """Classes with their scores and, if asked for, probabilities, embeddings and token maps.

    Attributes:
        forward: Images → logits, or → embeddings where `classifier` is given.
        classes: The names of the classes; empty where rows name none.
        top: How many classes a row names, the most probable first.
        probabilities: Whether a row has the probabilities of all classes.
        embedding: (length, dtype) of the embedding in a row; None for none.
        classifier: Embeddings → logits.
        traced: A model whose token reduction is told in a column `kept`.
        patches: How many patches `traced` cuts an image into.
    """

    forward: Callable[[Tensor], Tensor]
    classes: Sequence[str]
    top: int = 5
    probabilities: bool = False
    embedding: tuple[int, str] | None = None
    classifier: Callable[[Tensor], Tensor] | None = None
    traced: nn.Module | None = None
    patches: int = 0

    @property
    def fields(self) -> list[Field]:
        fields = []
        if self.classes:
            fields += [Field("class", "int32"), Field("name", "text"), Field("score", "float32")]
            if self.top > 1:
                shape = (min(self.top, len(self.classes)),)
                fields += [Field("top_classes", "int32", shape), Field("top_scores", "float32", shape)]
            if self.probabilities:
                fields.append(Field("probabilities", "float32", (len(self.classes),)))
        if self.embedding is not None:
            fields.append(Field("embedding", self.embedding[1], (self.embedding[0],)))
        if self.traced is not None:
            fields.append(Field("kept", "int32", (self.patches,)))
        return fields

    def compute(self, images: Tensor) -> Found:
        found: Found = {}
        if self.traced is not None:
            with taps(self.traced, decision_paths(self.traced)) as decided:
                output = self.forward(images)
            found["kept"] = token_map(trace(self.traced, decided)[-1]).expand(len(images), -1)  # (B, P)
        else:
            output = self.forward(images)
        if self.embedding is not None:
            found["embedding"] = output.to(getattr(torch, self.embedding[1]))  # (B, D)
        if self.classes:
            logits = output if self.classifier is None else self.classifier(output)  # (B, classes)
            probabilities = logits.float().softmax(-1)
            scores, indices = probabilities.topk(max(1, min(self.top, len(self.classes))))  # (B, K)
            found |= {"top_scores": scores, "top_classes": indices.int()}
            if self.probabilities:
                found["probabilities"] = probabilities
        return found

    def columns(self, found: dict[str, np.ndarray]) -> dict[str, Any]:
        columns: dict[str, Any] = dict(found)
        if self.classes:
            columns["class"] = found["top_classes"][:, 0]  # (B,)
            columns["name"] = [self.classes[index] for index in columns["class"].tolist()]
            columns["score"] = found["top_scores"][:, 0]  # (B,)
        return {field.name: columns[field.name] for field in self.fields}


def token_map(rows: Tensor) -> Tensor:
    """The token that each patch is part of at the end, (B, P) from what tokens stand for (B, M, P); -1 for none.

    Args:
        rows: How much of each patch every token stands for.

    >>> token_map(torch.tensor([[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]]))
    tensor([[ 1,  0, -1]], dtype=torch.int32)
    """
    most, token = rows.max(1)  # (B, P)
    return torch.where(most > 0, token, -1).int()


def require_tokens(model: nn.Module) -> int:
    """The number of patches of a model that drops or merges tokens; refuses one that does not, or cannot say which."""
    if not reducers(model):
        raise ValueError("kept: no method in this model drops patches or merges them; apply one that does first")
    refuse_untraceable(model)
    grid = next(iter(blocks_of(model).values())).grid
    assert grid is not None, "tokens are reduced in sequences alone, and those have a grid"
    return int(grid.size[0] * grid.size[1])
