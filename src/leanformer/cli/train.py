"""leanformer train: any model with any methods on it, with or without teachers, new or resumed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ..settings import Settings
from .checks import at_least, open_device, output_files, output_folder
from .common import Apply, Set, open_model
from .train_dino import backbone, dino_config, is_dino, with_own

if TYPE_CHECKING:
    from torch import nn

    from ..papers.recipes import Published
    from ..train import Recipe, Result

Teachers = Annotated[tuple[str, ...], tyro.conf.arg(name="teacher"), tyro.conf.UseAppendAction]
STOPPED = 143
PARTS = {
    "the data": "data",
    "the data by themselves": "data_alone",
    "the teachers by themselves": "teachers",
    "the host, to ask for an update": "host",
    "update on a batch that is kept": "kept_update",
    "whole update": "update",
}
"""What a profile tells of an update, by the name of its time."""


def train(
    model: Annotated[str | None, tyro.conf.Positional] = None,
    data: str | None = None,
    output: Path | None = None,
    recipe: str | None = None,
    methods: Apply = (),
    teachers: Teachers = (),
    checkpoint: Path | None = None,
    arguments: Set = (),
    classes: int | None = None,
    task: str = "classification",
    detector: str | None = None,
    segmenter: str | None = None,
    val: str | None = None,
    objective: str | None = None,
    resume: Path | None = None,
    profile: Path | None = None,
    settings: Annotated[Settings, tyro.conf.arg(name="")] = Settings(),  # noqa: B008
) -> int:
    """Train a model, distilled from teachers if there are any; a run that was stopped goes on with --resume alone.

    Example: leanformer train deit_small_patch16_224 --checkpoint deit_small.pth --apply {tokens}
    --apply {ffn} --teacher self --recipe finetune:epochs=30 --data imagenet/ --output runs/lean

    Without labels: leanformer train vit_small_patch16_224 --task dino --recipe dino:epochs=100 --data images:photos/
    --output runs/dino pre-trains a backbone by DINO; runs/dino/ema.safetensors, the teacher, is what to go on with.

    Args:
        model: A model's name or a leanformer checkpoint; a published recipe brings its own.
        data: A folder with train and val, pack:PATH, hfds/PATH or wds/PATH; images:FOLDER takes all pictures below a
            folder without labels, to be learnt from a teacher, and so does a folder without folders in it. For
            detectors and segmenters a folder of COCO, VOC, Oxford Pets (also pets_species:, pets_heads:), CamVid, or
            pictures and label maps.
        output: The run folder, for logs, checkpoints and the trained model.
        recipe: A recipe as name:setting=value,setting=value; leanformer recipes lists the names. By default finetune,
            for detectors and segmenters dense, for dino the preset dino.
        methods: A method as name:option=value,option=value, instead of the recipe's; may be given several times.
        teachers: self (the model before the methods), a leanformer checkpoint, or name:weights-file, any of timm's;
            with role= before it for further teachers, for example imitation=poolformer_s12:poolformer_s12.pth. A recipe
            that learns token labels has its annotator here.
        checkpoint: Weights for a model given by name.
        arguments: An argument of the model as name=value; may be given several times.
        classes: Give the model a head for so many classes; rows of ImageNet classes that it knows are kept.
        task: classification, detection or segmentation, with options as in segmentation:size=(352,480); by default what
            the model is made for. Or dino, for a backbone without a classifier from images without labels, with
            settings as in dino:prototypes=4096,local_crops=6. DINO's log shows the loss, the entropy of the teacher's
            answers and the nats by which they tell images apart, and where the data have labels how often 20
            neighbours are right.
        detector: Put the model into retinanet, faster_rcnn or mask_rcnn; with options as in mask_rcnn:min_size=480.
        segmenter: Put the model into fpn or upernet; with options as in fpn:channels=128.
        val: Images for validation, where they are not found under data.
        objective: Terms as in 'cross_entropy + soft:temperature=2', instead of the recipe's.
        resume: A run folder; nothing else is needed then, but --allow-remote where the data come that way.
        profile: Do not train, but time the parts of an update, and write them to this result file.
        settings: How the run is carried out.
    """
    import torch

    from ..core import apply as apply_methods
    from ..core import parse_method
    from ..papers.recipes import find, parse_recipe
    from ..tasks import dino
    from ..train import fit
    from .train_dense import Dense

    if resume is not None:
        return _report(_resume(resume, settings.allow_remote))
    _check(settings, classes, output, profile)
    published = find(recipe or "")
    pre_trains = is_dino(task) or (published is not None and is_dino(published.task))
    dense = None if pre_trains else Dense.asked_for(task, detector, segmenter)
    if data is None or (output is None and profile is None):
        raise ValueError("train needs --data and --output (or --profile), or --resume RUN")
    torch.manual_seed(settings.seed)  # fresh weights are part of what the seed decides
    if pre_trains:
        unused = {"teacher": teachers, "objective": objective, "classes": classes, "profile": profile,
                  "detector": detector, "segmenter": segmenter}  # fmt: skip
        config = dino_config(published, task, unused)
        start = backbone(model, published, checkpoint, arguments)
    else:
        config, start = None, _start(model, published, checkpoint, arguments)
        dense = dense or Dense.of(start)
        start = start if dense else _fitting(start, classes, data)
    if dense and profile is not None:
        raise ValueError("--profile times classification alone")
    chosen = parse_recipe(recipe or ("dino" if pre_trains else "dense" if dense else "finetune"))
    if published and not (teachers or objective or dense):
        published.refuse_alone(chosen)
    given = tuple(parse_method(spec) for spec in methods)
    student = published.student(start, given) if published else apply_methods(start, *given)
    if config is not None:
        found = dino.fit(student, recipe=chosen, data=data, val=val, dino=config, output=output, settings=settings)
        return _report(found)
    student = dense.around(student, data, classes) if dense else student
    known = dict(dense.teacher(s, start) if dense else _teacher(s, start, classes, data) for s in teachers)
    if profile is not None:
        return _profile(student, chosen, data, known, objective, settings, profile)
    result = fit(
        student, recipe=chosen, data=data, val=val, teacher=known or None, objective=objective, output=output,
        settings=settings, task=dense.task if dense else None,
    )  # fmt: skip
    return _report(result)


def _check(settings: Settings, classes: int | None, output: Path | None, profile: Path | None) -> None:
    at_least(1, classes=classes)
    output_folder(output)
    output_files(profile)
    open_device(settings.device)


def _start(
    model: str | None,
    published: Published | None,
    checkpoint: Path | None,
    arguments: tuple[str, ...],
) -> nn.Module:
    """The model before the methods, with its own head."""
    if model is not None:
        opened = open_model(model, (), checkpoint, arguments)
        return published.sized(opened) if published and not arguments else opened
    if published is not None:
        return open_model(published.model, (), checkpoint, with_own(published, arguments))
    raise ValueError("name a model, or a published recipe that brings one: leanformer recipes lists them")


def _fitting(model: nn.Module, classes: int | None, data: str) -> nn.Module:
    from ..backbones import with_head
    from ..data.sources import class_names

    if classes is None or model.num_classes == classes:
        return model
    return with_head(model, classes, class_names(data))


def _teacher(spec: str, start: nn.Module, classes: int | None, data: str) -> tuple[str, nn.Module]:
    """`role=` and then self, a leanformer checkpoint, or name:weights."""
    from ..backbones import create_teacher, knows_classes
    from ..core import apply as apply_methods
    from ..data.sources import class_names

    role, equals, rest = spec.partition("=")
    role, what = (role, rest) if equals and role.isidentifier() else ("teacher", spec)
    if what == "self":
        return role, apply_methods(start)
    if what.endswith(".safetensors") and ":" not in what:
        return role, open_model(what)
    name, _, weights = what.partition(":")
    if not weights:
        raise ValueError(
            f"the teacher '{what}' needs weights: give name:weights-file, a leanformer checkpoint, or self"
        )
    teacher = create_teacher(name, weights)
    fitted = _fitting(teacher, classes, data)
    if fitted is not teacher and not knows_classes(teacher, class_names(data)):
        told = f"{name} answers for {teacher.num_classes} classes, so that the head for {classes} is new"
        print(f"leanformer: the teacher '{role}' has learnt nothing to answer: {told}; train it first", file=sys.stderr)
    return role, fitted


def _resume(folder: Path, allow_remote: bool) -> Result:
    """What came of the rest of a run."""
    from ..backbones import load
    from ..tasks import dino
    from ..tasks.fitting import task_from
    from ..train import Recipe, fit, read_run
    from ..train.runs import settings_of

    run = read_run(folder)
    if "train" not in run["data"]:
        raise ValueError(f"{folder} was trained on tensors in memory; resume it from Python with the same call")
    student = load(folder / "student.safetensors")
    same: dict[str, Any] = {
        "recipe": Recipe.from_json(run["recipe"]), "data": run["data"]["train"], "val": run["data"].get("val"),
        "output": folder, "resume": True, "settings": settings_of(run, allow_remote),
    }  # fmt: skip
    if is_dino(run["objective"]):
        return dino.fit(student, dino=dino.Config().with_text(run["objective"]), **same)
    teachers = {name: load(folder / f"{name}.teacher.safetensors") for name in run["teachers"]} or None
    task = task_from(run.get("task"))
    return fit(student, teacher=teachers, objective=run["objective"], task=task, **same)


def _profile(
    student: nn.Module, recipe: Recipe, data: str, teachers: dict[str, nn.Module], objective: str | None,
    settings: Settings, output: Path,
) -> int:  # fmt: skip
    from rich.table import Table

    from ..core import card_of
    from ..measure.results import record, write_result
    from ..measure.terminal import console
    from ..train.profiling import profile as time_update

    place = str(open_device(settings.device))
    options = {name: getattr(settings, name) for name in ("seed", "precision", "compile", "accumulate", "workers")}
    spent = time_update(
        student, recipe=recipe, data=data, teacher=teachers or None, objective=objective, device=place, **options
    )
    card = card_of(student)
    row = {"model": card.backbone, "methods": [repr(m) for m in card.methods], "batch": recipe.batch_size, **spent}
    write_result(record("training step", [row], place, **options), output)
    table = Table("part", "ms", "share", title=f"an update of {recipe.batch_size} images", title_justify="left")
    for name, part in PARTS.items():
        spread = f" ± {spent[f'{part}_spread']:.0%}" if f"{part}_spread" in spent else ""
        table.add_row(name, f"{spent[f'{part}_ms']:.1f}{spread}", f"{spent[f'{part}_ms'] / spent['update_ms']:.1%}")
    console().print(table)
    clocks = f", {spent['clock_mhz']:.0f} MHz ({spent['kept_clock_mhz']:.0f} on a batch that is kept)"
    told = clocks if spent["clock_mhz"] else ""
    console().print(f"{spent['images_per_second']:,.0f} images a second{told}")
    return 0


def _report(result: Result) -> int:
    if int(os.environ.get("RANK", "0")):  # of processes that train together, the first one speaks
        return 0 if result.finished else STOPPED
    if not result.finished:
        print(f"stopped after update {result.updates}; go on with: leanformer train --resume {result.folder}")
        return STOPPED
    for name, found in (("trained", result.evaluation), ("moving average", result.ema_evaluation)):
        if found is not None:
            print(f"{name}: {_figures(found)} of {found.images} images")
    print(f"{result.updates} updates in {result.seconds:.0f} s; the model is {result.folder}/model.safetensors")
    return 0


def _figures(found: Any) -> str:
    """What an evaluation came to, in words."""
    if hasattr(found, "top1"):
        by = "k-NN " if "knn_top1" in found.summary() else ""
        return f"{by}top-1 {found.top1:.2f}%, top-5 {found.top5:.2f}%"
    return ", ".join(f"{name.replace('_', ' ')} {value:.2f}%" for name, value in found.summary().items())
