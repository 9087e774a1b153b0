"""The student with its objective as one module, and the teachers beside it.

    step = {images, targets, student's answer and taps, teachers' answers and taps}  →  objective  →  {term: loss}

One module, so that data parallelism sees the parameters of both; the teachers are no part of it and get no gradient.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from ..core import Branch, Objective, Step, Sum, View, blocks_of, card_of, input_of, taps
from ..data.kinds import Data
from ..layers.patches import disjoint, patch_product
from .answer_features import features_of
from .objectives import CrossEntropy, SoftDistillation, parse_objective

Ask = Callable[[Objective, Callable[..., Any], Any, Any], Any]
"""Asks a student about images and targets: what `train.task.Task.answer` is."""


class Learner(nn.Module):
    """Runs the student once and returns the weighted terms of the objective.

    With `compile`, the compiled student is used while the methods' settings stand still (`steady`); a keep rate that
    moves at every step would otherwise compile anew at every step.
    """

    def __init__(self, student: nn.Module, objective: Objective, compile: bool = False, ask: Ask | None = None):
        super().__init__()
        self._ask = ask or (lambda objective, student, images, targets: objective.answer(student, images))
        self.student = student
        self.objective = objective
        self.steady = True
        self._taps = contextlib.ExitStack()
        self._seen = self._taps.enter_context(taps(student, objective.student_taps()))
        # behind a tuple, since the compiled module shares the student's parameters and must not register them twice
        tapped = bool(objective.student_taps())
        self._compiled = (_compiled(student, tapped, dynamic=False),) if compile else ()
        if compile:
            self._taps.callback(patches_as_products(student))

    def forward(
        self, images: Any, targets: Any = None, teachers: dict[str, View] | None = None, epoch: float = 0.0
    ) -> Any:
        """The terms of a training step; without targets only the student's answer."""
        learns = targets is not None  # an evaluation is short: compiling for it as well would not pay
        run = self._compiled[0] if self._compiled and self.steady and learns else self.student
        output = self._ask(self.objective, run, images, targets) if learns else run(images)
        view = View(output, dict(self._seen))
        self._seen.clear()
        if not learns or teachers is None:
            return output
        return self.objective(Step(images, targets, view, teachers, epoch))

    def close(self) -> None:
        """Remove the taps from the student."""
        self._taps.close()


def _compiled(model: nn.Module, tapped: bool, **options: Any) -> Any:
    """The model compiled; what was compiled before is used again where it has the same taps, and only there.

    By default compiled code is not asked about hooks: a model compiled without taps would go on without them, and a
    later run in the same process that reads them would find nothing. To be asked costs a millisecond a call, so it
    begins with the first run that has taps.
    """
    if tapped and torch._dynamo.config.skip_nnmodule_hook_guards:
        torch._dynamo.config.skip_nnmodule_hook_guards = False
        torch._dynamo.reset()  # nothing that was compiled until now is asked
    return torch.compile(model, **options)


class PatchConv(nn.Module):
    """A convolution whose patches do not overlap, computed as a matrix product, several times faster both ways.

    It holds the convolution's own parameters under their own names.

    >>> conv, x = nn.Conv2d(3, 8, 4, 4), torch.randn(2, 3, 8, 8)
    >>> torch.allclose(PatchConv(conv)(x), conv(x), atol=1e-5)
    True
    """

    def __init__(self, conv: nn.Conv2d):
        super().__init__()
        self.patch = conv.kernel_size
        self.weight, self.bias = conv.weight, conv.bias

    def forward(self, x: Tensor) -> Tensor:
        return patch_product(x, self.weight.flatten(1), self.bias, self.patch)


def patches_as_products(model: nn.Module) -> Callable[[], None]:
    """Put products in the places of the model's disjoint convolutions; the call returned puts those back."""
    found = {path: module for path, module in model.named_modules() if disjoint(module)}
    for path, conv in found.items():
        model.set_submodule(path, PatchConv(conv))  # type: ignore[arg-type]

    def undo() -> None:
        for path, conv in found.items():
            model.set_submodule(path, conv)

    return undo


class Teachers:
    """Teachers by name, in evaluation mode, each with its own input size and normalisation.

    Args:
        models: The teachers.
        paths: For each, the modules whose outputs are read.
        config: What `core.input_of` gives of the student, for which images are normalised.
        compile: Whether to compile them.
        inputs: What `core.input_of` gives of a teacher, or what a task tells instead.
        any_size: Whether teachers are shown the student's images whatever their own size is.

    >>> Teachers({}, {}, {"mean": (0.5,), "std": (0.5,), "input_size": (3, 32, 32)})(torch.zeros(1, 3, 32, 32))
    {}
    """

    def __init__(
        self,
        models: dict[str, nn.Module],
        paths: dict[str, frozenset[str]],
        config: dict[str, Any],
        compile: bool = False,
        inputs: Callable[[nn.Module], dict[str, Any]] = input_of,
        any_size: bool = False,
    ):
        self.config, self.any_size = config, any_size
        self._taps = contextlib.ExitStack()
        self.models, self.seen, self.inputs, self.run = {}, {}, {}, {}
        for name, model in models.items():
            self.models[name] = model.eval()
            self.seen[name] = self._taps.enter_context(taps(model, paths.get(name, ())))
            self.inputs[name] = inputs(model)
            self.run[name] = _compiled(model, bool(paths.get(name))) if compile else model
            if compile:
                self._taps.callback(patches_as_products(model))

    def sizes(self) -> list[tuple[int, int]]:
        """The input sizes (height, width) of teachers that are not the student's: views that a batch must bring."""
        own = tuple(self.config["input_size"][1:])
        if self.any_size:
            return []
        return sorted({tuple(wanted["input_size"][1:]) for wanted in self.inputs.values()} - {own})

    @torch.no_grad()
    def __call__(self, images: Any, views: dict[tuple[int, int], Tensor] | None = None) -> dict[str, View]:
        """What each teacher answers to the images, or to the view of them in its own size.

        Args:
            images: As the student sees them, (B, C, H, W), or a list of (C, H, W).
            views: The same images in the sizes of teachers that differ from the student's.
        """
        found = {}
        for name, run in self.run.items():
            mine = images if self.any_size else self._view(name, images, views or {})
            if isinstance(mine, Tensor):
                output = run(renormalised(mine, self.config, self.inputs[name]))
            else:
                output = run([renormalised(image, self.config, self.inputs[name]) for image in mine])
            found[name] = View(output, dict(self.seen[name]))
            self.seen[name].clear()
        return found

    def _view(self, name: str, images: Tensor, views: dict[tuple[int, int], Tensor]) -> Tensor:
        size, shown = tuple(self.inputs[name]["input_size"][1:]), {tuple(images.shape[2:]): images, **views}
        assert size in shown, f"no view of {size} for the teacher '{name}', only {sorted(shown)}"
        return shown[size]

    def close(self) -> None:
        """Remove the taps from the teachers."""
        self._taps.close()


def renormalised(images: Tensor, given: dict[str, Any], wanted: dict[str, Any]) -> Tensor:
    """Images normalised for one model, as another one wants them.

    Args:
        images: ([B,] C, H, W)
        given: Mean and std that the images have been normalised with.
        wanted: Mean and std of the other model.
    """
    if tuple(given["mean"]) == tuple(wanted["mean"]) and tuple(given["std"]) == tuple(wanted["std"]):
        return images
    old, new = (_statistics(config, images) for config in (given, wanted))
    return (images * old[1] + old[0] - new[0]) / new[1]


def _statistics(config: dict[str, Any], like: Tensor) -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(config[k], device=like.device, dtype=like.dtype)[:, None, None] for k in ("mean", "std"))
    return mean, std


def choose_objective(
    spec: str | Objective | None,
    student: nn.Module,
    teachers: dict[str, nn.Module],
    recipe_spec: str,
    data: Data | None = None,
) -> Objective:
    """The objective asked for; by default the methods' own, or soft distillation and labels, or labels alone.

    Args:
        spec: An objective, or terms as text; None for the recipe's.
        student: The model that is trained; without a head, auto and soft mean that it learns its teacher's features.
        teachers: By name.
        recipe_spec: The recipe's terms; auto chooses.
        data: The training images; from images without labels only what teachers say is learnt.
    """
    labelled = data is None or data.labelled
    chosen = spec if isinstance(spec, Objective) else _named(spec or recipe_spec, student, teachers, labelled)
    if not labelled and chosen.needs_labels():
        raise ValueError(
            f"{data.name if data else ''} has no labels, which the objective needs; "
            + (
                "take one that learns from the teacher alone, such as soft"
                if teachers
                else "give a teacher to learn from"
            )
        )
    return _prepared(chosen, student, teachers)


def _named(spec: str, student: nn.Module, teachers: dict[str, nn.Module], labelled: bool) -> Objective:
    if getattr(student, "num_classes", None) == 0 and spec in ("auto", "soft"):
        return features_of(teachers)
    if spec != "auto":
        return parse_objective(spec)
    if not teachers:
        return CrossEntropy()
    first = teachers.get("teacher", next(iter(teachers.values())))
    own = [method.objective(student, first) for method in card_of(student).methods]
    found = [objective for objective in own if objective is not None and (labelled or not objective.needs_labels())]
    if found:
        return found[0] if len(found) == 1 else Sum(*found)
    soft = SoftDistillation(teacher="teacher" if "teacher" in teachers else next(iter(teachers)))
    return CrossEntropy() + soft if labelled else soft


def _prepared(objective: Objective, student: nn.Module, teachers: dict[str, nn.Module]) -> Objective:
    for part in objective.modules():
        if isinstance(part, Objective):
            part.meet(teachers)
        prepare = getattr(part, "prepare", None)
        if callable(prepare):
            prepare(student)
    return objective


def in_their_roles(objective: Objective, teachers: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """The teachers by the names that the objective asks for: a single one plays the only part there is.

    >>> list(in_their_roles(SoftDistillation(teacher="large"), {"teacher": nn.Identity()}))
    ['large']
    """
    wanted = list(objective.teacher_taps())
    if len(teachers) == len(wanted) == 1 and wanted[0] not in teachers:
        return {wanted[0]: next(iter(teachers.values()))}
    return teachers


def check_teachers(objective: Objective, teachers: dict[str, nn.Module], student: nn.Module) -> None:
    """Refuse an objective that asks for a teacher that was not given, and a teacher that would be trained itself."""
    mine = {id(parameter) for parameter in student.parameters()}
    for name, teacher in teachers.items():
        if any(id(parameter) in mine for parameter in teacher.parameters()):
            raise ValueError(
                f"the teacher '{name}' shares its weights with the student; give a copy: lf.apply(teacher)"
            )
    for name in objective.teacher_taps():
        if name not in teachers:
            given = ", ".join(teachers) or "none"
            raise ValueError(f"the objective needs a teacher called '{name}'; given: {given}")


def set_drop_path(model: nn.Module, rate: float, grows: bool = True) -> None:
    """Stochastic depth in both branches of every block: growing linearly from 0 to `rate`, or `rate` everywhere.

    Args:
        model: The model, changed itself.
        rate: How often the last block's branches are left out.
        grows: Whether the rate grows over the blocks.

    >>> import leanformer as lf
    >>> set_drop_path(lf.create("deit_tiny_patch16_224"), 0.1)
    """
    blocks = list(blocks_of(model).values())
    for index, block in enumerate(blocks):
        probability = rate * index / max(1, len(blocks) - 1) if grows else rate
        slots = [getattr(block, slot) for slot in block.slots]
        for module in block.modules():
            if isinstance(module, Branch) or (module in slots and hasattr(module, "drop")):
                module.drop = DropPath(probability) if probability else nn.Identity()
