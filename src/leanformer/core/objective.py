"""Training objectives are modules that turn one step's tensors into named, weighted loss terms.

A step runs the student once and every teacher once; an objective says beforehand which inner outputs it needs
(`student_taps`, `teacher_taps`: module paths), and finds them in the step.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass
class View:
    """What one model answered in a step: its output and the tapped inner outputs by module path."""

    output: Any
    taps: dict[str, Tensor] = field(default_factory=dict)

    def logits(self) -> Tensor:
        """The class logits in float32, which come first where a model gives several outputs."""
        return learnable(self.output if isinstance(self.output, Tensor) else self.output[0]).float()


@dataclass
class Step:
    """One training step as objectives see it. `targets` are class indices or soft labels (B, classes)."""

    images: Tensor
    targets: Tensor
    student: View
    teachers: dict[str, View] = field(default_factory=dict)
    epoch: float = 0.0

    def teacher(self, name: str = "teacher") -> View:
        if name not in self.teachers:
            known = ", ".join(self.teachers) or "none"
            raise ValueError(f"this objective needs a teacher called '{name}'; given: {known}")
        return self.teachers[name]


def learnable(tensor: Tensor) -> Tensor:
    """The tensor; its clone where it is of inference mode, which cannot take part in a backward pass."""
    return tensor.clone() if tensor.is_inference() else tensor


class Objective(nn.Module):
    """Base of objectives: `forward(step)` returns {term: weighted scalar}; the engine adds them and logs each."""

    def meet(self, teachers: dict[str, nn.Module]) -> None:
        """Told once, before training, which teachers there are, for an objective that makes do with fewer."""

    def needs_labels(self) -> bool:
        """Whether the loss reads `step.targets`; one that does not can be trained on images without labels."""
        return True

    def teacher_form(self, name: str, teacher: nn.Module) -> nn.Module:
        """The teacher called `name` in the form whose answers the objective reads; by default as it is."""
        return teacher

    def data_form(self, data: Any, seed: int) -> Any:
        """The training images with the targets that the objective reads; by default as they are."""
        return data

    def crops(self, recipe: Any, config: dict[str, Any]) -> Sequence[tuple[Any, tuple[int, int]]]:
        """How each of several crops of an image is augmented, and its size; by default an image is seen once."""
        return ()

    def answer(self, student: Callable[[Any], Any], images: Any) -> Any:
        """What the student says to a batch: images, or a tuple of crops where `crops` asks for them."""
        return student(images)

    def advance(self, update: int, total: int, updates_per_epoch: int, groups: list[dict[str, Any]]) -> None:
        """Set what changes during training, before each update; `groups` are the optimizer's."""

    def average(self, student: nn.Module) -> Any:
        """A moving average of the student that the objective keeps itself; None: the recipe decides."""
        return None

    def notices(self) -> list[str]:
        """What the log should say about the updates since the last time it was asked."""
        return []

    def figures(self) -> dict[str, float]:
        """Figures beside the loss that the log should show."""
        return {}

    judge: Callable[..., Any] | None = None
    """How a model is evaluated, called as `train.Task.measure` is; None: by the answers of its classifier."""
    decays_vectors = True
    """Whether vectors among the objective's own parameters (biases, norms) have weight decay."""

    def student_taps(self) -> frozenset[str]:
        """Paths of the student's modules whose outputs the objective reads."""
        return frozenset()

    def teacher_taps(self) -> dict[str, frozenset[str]]:
        """Teacher name → paths of its modules whose outputs the objective reads."""
        return {}

    def forward(self, step: Step) -> dict[str, Tensor]:
        raise NotImplementedError(f"{type(self).__name__} does not compute a loss")

    def __add__(self, other: "Objective") -> "Sum":
        if not isinstance(other, Objective):
            return NotImplemented
        return Sum(self, other)


class Sum(Objective):
    """Objectives side by side: `a + b`. Terms of the same name are added up."""

    def __init__(self, *parts: Objective):
        super().__init__()
        flat = [inner for part in parts for inner in (part.parts if isinstance(part, Sum) else [part])]
        self.parts = nn.ModuleList(flat)

    def needs_labels(self) -> bool:
        return any(part.needs_labels() for part in self._objectives())

    def teacher_form(self, name: str, teacher: nn.Module) -> nn.Module:
        for part in self._objectives():
            teacher = part.teacher_form(name, teacher)
        return teacher

    def data_form(self, data: Any, seed: int) -> Any:
        for part in self._objectives():
            data = part.data_form(data, seed)
        return data

    @property
    def judge(self) -> Callable[..., Any] | None:  # type: ignore[override]
        """The way of the first part that has one."""
        return next((part.judge for part in self._objectives() if part.judge is not None), None)

    def student_taps(self) -> frozenset[str]:
        return frozenset().union(*(part.student_taps() for part in self._objectives()))

    def teacher_taps(self) -> dict[str, frozenset[str]]:
        wanted: dict[str, frozenset[str]] = {}
        for part in self._objectives():
            for name, paths in part.teacher_taps().items():
                wanted[name] = wanted.get(name, frozenset()) | paths
        return wanted

    def forward(self, step: Step) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = {}
        for part in self._objectives():
            for name, term in part(step).items():
                terms[name] = terms[name] + term if name in terms else term
        return terms

    def _objectives(self) -> Iterator[Objective]:
        yield from self.parts  # type: ignore[misc]


@contextmanager
def taps(model: nn.Module, paths: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """Within the context, each forward pass of `model` leaves the outputs of the modules at `paths` in the dict.

    >>> import torch, leanformer as lf
    >>> model = lf.create("deit_tiny_patch16_224")
    >>> with taps(model, ["blocks.3.mix"]) as seen:
    ...     _ = model(torch.zeros(1, 3, 224, 224))
    >>> seen["blocks.3.mix"].shape
    torch.Size([1, 197, 192])
    """
    seen: dict[str, Tensor] = {}

    def keep(path: str):
        return lambda module, inputs, output: seen.__setitem__(path, output)

    with ExitStack() as hooks:
        for path in sorted(set(paths)):
            try:
                module = model.get_submodule(path)
            except AttributeError:
                raise ValueError(f"{type(model).__name__} has no module '{path}' to tap") from None
            hooks.enter_context(module.register_forward_hook(keep(path)))
        yield seen
