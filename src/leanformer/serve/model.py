"""What answers: a PyTorch model or an opened ONNX file, as one function from a batch to answers.

B images of size (C, H, W), K tokens that are left after the last location of token reduction.
"""

import contextlib
import copy
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
from ..prediction.forms import headless
from ..prediction.settings import task_name
from ..speed import Optimized
from ..train.objectives import logits_of
from .dense import ServedDense, of_dense
from .images import Decoder, Refused, Seen
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


Forward = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""Images (B, C, H, W) → logits (B, classes) and, where known, the kept patches (B, K)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """A model ready to be served.

    Attributes:
        name: What answers call it.
        runtime: What computes it.
        config: Input size, normalisation and crop, as `input_of` gives them.
        classes: The names of the classes.
        forward: What answers a batch.
        telling: The same with the kept patches, for a model whose fast form does not tell them.
        embed: Images → embeddings (B, D); None where the model gives none.
        grid: Rows and columns of patches, where kept ones are told.
        batch: Images that it was optimised for, so that no more are given at once; None for any number.
        task: What it is made for.
    """

    name: str
    runtime: str
    config: dict[str, Any]
    classes: Sequence[str]
    forward: Forward
    telling: Forward | None = None
    embed: Callable[[Tensor], Tensor] | None = None
    grid: tuple[int, int] | None = None
    batch: int | None = None
    task: str = "classification"

    def wants(self) -> dict[str, Callable[[Tensor], Sequence[Any]]]:
        """What can be asked of it → what computes the answers."""
        found: dict[str, Callable[[Tensor], Sequence[Any]]] = {"classes": self}
        found |= {} if self.telling is None else {"kept": self.tell}
        return found if self.embed is None else {**found, "embedding": self.vectors}

    def decoder(self, max_pixels: int) -> Decoder:
        """Makes what it sees of the bytes of an image."""
        return Decoder(self.config, max_pixels)

    def told(self, seen: Seen, answer: Any, top: int = 0, **other: Any) -> dict[str, Any]:
        """What is said of one image.

        Args:
            seen: The image.
            answer: What was computed of it: an `Answer`, or an embedding.
            top: How many classes are named.
        """
        numbers = answer.probabilities if isinstance(answer, Answer) else answer
        if not numbers.isfinite().all():
            raise Refused(500, "the model's answer is not finite numbers; its weights may be broken")
        if not isinstance(answer, Answer):
            return {"embedding": numbers.tolist()}
        kept = None
        if answer.kept is not None and self.grid is not None:
            kept = {"grid": self.grid, "box": seen.box, "patches": answer.kept}
        return {"classes": answer.top(top, self.classes), "kept": kept}

    def __call__(self, images: Tensor) -> list[Answer]:
        return _answers(*self.forward(images))

    def tell(self, images: Tensor) -> list[Answer]:
        """The answers with the kept patches, whatever that costs."""
        return _answers(*(self.telling or self.forward)(images))

    def vectors(self, images: Tensor) -> list[Tensor]:
        """The embedding (D,) of each image."""
        assert self.embed is not None, "asked only of models that give embeddings"
        return list(self.embed(images).float().cpu())

    def warm_up(self, batch: int) -> None:
        """Compute once with one image and once with a full batch, and refuse a model that answers nonsense."""
        for size in (1, min(batch, self.batch or batch)):
            for answer in self(torch.zeros(size, *self.config["input_size"])):
                if len(answer.probabilities) != len(self.classes):
                    raise ValueError(f"{self.name} has {len(answer.probabilities)} outputs, {len(self.classes)} names")
                if not math.isfinite(answer.probabilities.sum().item()):
                    raise ValueError(f"{self.name} answers with numbers that are not finite; its weights are broken")


def _answers(logits: Tensor, kept: Tensor | None) -> list[Answer]:
    probabilities = logits.float().softmax(-1).cpu()  # (B, classes)
    patches: list[Any] = [None] * len(logits) if kept is None else kept.cpu().tolist()
    # below 0 stand fused tokens, which are no single patch
    return [
        Answer(row, None if left is None else sorted(patch for patch in left if patch >= 0))
        for row, left in zip(probabilities, patches)
    ]


def of_model(
    model: nn.Module, name: str, classes: Sequence[str], fast: Callable[[nn.Module], Optimized] | None = None
) -> Served | ServedDense:
    """A PyTorch model, on the device where it is; with the kept patches where its tokens can be traced.

    Args:
        model: A classifier, detector or segmenter; a classifier made by `lf.optimize` answers in its fast form.
        name: What answers call it.
        classes: The names of its classes.
        fast: Makes the fast form in which a plain model answers, for example `lf.optimize` at a batch size.

    >>> import leanformer as lf
    >>> tiny = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=2, num_classes=2)
    >>> of_model(tiny, "tiny", ["cat", "dog"]).task
    'classification'
    """
    if task_name(model) != "classification":
        return of_dense(model, name, classes)
    plain = plain_of(model).eval()
    if isinstance(model, Optimized):
        like = next(model.parameters())
        plain = copy.deepcopy(plain).to(like.device, like.dtype)
    forward, grid = _traced(plain)
    body, head = _split(plain)
    optimized = model if isinstance(model, Optimized) else None
    if optimized is None and fast is not None:
        optimized = fast(plain if body is None or head is None else body)
    told = Served(
        name=name, runtime="torch", config=input_of(model), classes=classes, forward=forward, grid=grid,
        embed=None if body is None else _cast(body),
    )  # fmt: skip
    if optimized is None:
        return told
    quick, size = _padded(optimized), optimized.choice.batch
    if optimized is model or head is None:
        answer, embed = quick, told.embed
    else:  # one fast form gives embeddings, and a layer behind it classes
        answer, embed = _behind(quick, _cast(head)), quick
    return dataclasses.replace(
        told, runtime="torch, optimised", batch=size, telling=forward if grid else None, embed=embed,
        forward=_by_size(_cast(plain), answer, size, next(plain.parameters()).device),
    )  # fmt: skip


def _behind(first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda images: second(first(images))


def _traced(model: nn.Module) -> tuple[Forward, tuple[int, int] | None]:
    """The model as it is, telling the patches it keeps where they can be traced, and the grid of its patches then."""
    paths, run = _traceable(model), _cast(model)
    if not paths:
        return lambda images: (run(images), None), None
    grid = next(iter(blocks_of(model).values())).grid
    assert grid is not None, "tokens are reduced in sequences alone, and those have a grid"

    @torch.inference_mode()
    def forward(images: Tensor) -> tuple[Tensor, Tensor | None]:
        with taps(model, paths) as chosen:
            logits = run(images)
        return logits, single_patches(trace(model, chosen)[-1]).expand(len(images), -1)  # (B, classes), (B, K)

    return forward, (int(grid.size[0]), int(grid.size[1]))


def _traceable(model: nn.Module) -> list[str]:
    """Where a model chooses patches; nowhere if a method mixes them softly, so that no patch is left as it was."""
    chosen = all(isinstance(reducer.decision, Decision) for reducer in reducers(model).values())
    return decision_paths(model) if chosen else []


def _split(model: nn.Module) -> tuple[nn.Module | None, nn.Module | None]:
    """The model without its head and, where one layer makes classes of embeddings, that layer."""
    for classes in (True, False):
        with contextlib.suppress(ValueError):
            return headless(model, classes)
    return None, None


def _cast(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The model as a function of images in any dtype on any device, without gradients."""
    like = next(model.parameters())

    @torch.inference_mode()
    def run(images: Tensor) -> Tensor:
        return logits_of(model(images.to(like.device, like.dtype)))

    return run


def _padded(model: Optimized) -> Callable[[Tensor], Tensor]:
    """The fast form, always called with the batch that it was compiled for."""
    run, size = _cast(model), model.choice.batch

    def forward(images: Tensor) -> Tensor:
        filled = torch.cat([images, images.new_zeros(size - len(images), *images.shape[1:])])  # (size, C, H, W)
        return run(filled)[: len(images)]

    return forward


def _by_size(
    plain: Callable[[Tensor], Tensor], fast: Callable[[Tensor], Tensor], size: int, device: torch.device
) -> Forward:
    """The fast form; on a CPU batches of less than half its size go through the plain one, which needs no filling."""
    least = size / 2 if device.type == "cpu" else 0
    return lambda images: ((plain if len(images) < least else fast)(images), None)


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
