"""python -m lab imagenet: a trained ViT-Ti made lean without labels, judged on ImageNet photographs.

teacher  ViT-Ti as it is        students  soft answers of the teacher on COCO photographs, no labels
judged   on photographs nobody chose by: top-1 on one half of imagenet5k; recipes are chosen on the other half
"""

import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import leanformer as lf
from leanformer.backbones import create_teacher
from leanformer.core import fold, input_of
from leanformer.data import Arrays, sample_images
from leanformer.measure import choose, commit, console, count, record, write_result
from leanformer.train import quick_precision

from .arguments import device_of
from .peers import installed, pruned
from .photographs import answers_of, compared, labelled, photographs, teacher_of, timms_vit, unlabelled
from .plans_found import build_of, found_plans
from .studies.file_lock import file_lock, read_row, write_row

Build = Callable[[nn.Module], nn.Module]
LEAN = (1.25, 1.5, 2.0, 2.5, 3.0)
PRUNED, PRUNED_BY = "Torch-Pruning", 512
"""The peer's rows, and how many photographs its channels are chosen by."""


def students(plans: Path | None = None) -> dict[str, Build]:
    """Name of a row → how its student is made from the teacher.

    Args:
        plans: the folder in which `python -m lab plans` left what it found, or the file that it wrote.
    """

    def method(*methods: Any) -> Build:
        return lambda teacher: lf.apply(teacher, *methods)

    rows: dict[str, Build] = {}
    for rate in (0.9, 0.8, 0.7, 0.6, 0.5):
        rows[f"EViT {rate}"] = method(lf.EViT.finetune(keep_rate=rate))
    for pairs in (8, 11, 13, 16, 19):
        rows[f"ToMe {pairs} a block"] = method(lf.ToMe(merged=pairs))
    for rate in (0.7, 0.5):
        rows[f"ToMe {rate} in blocks 3, 6, 9"] = method(lf.ToMe(keep_rate=rate, at=(3, 6, 9)))
    rows["SiT late"] = method(lf.SiT())
    for ratio in (0.25, 0.5, 0.75):
        rows[f"RePa {ratio}"] = method(lf.RePa(idle_ratio=ratio))
        for steps, told in ((100, ""), (0, ", least squares alone"), (400, ", refined four times as long")):
            kept = lf.RePa(idle_ratio=ratio, norm="layer", refine_steps=steps)
            rows[f"RePa {ratio}, norms kept{told}"] = method(kept)
    rows["RePa 0.25 + ToMe 13 a block"] = method(lf.RePa(idle_ratio=0.25), lf.ToMe(merged=13))
    for blocks in (1, 2):
        rows[f"RIFormer in {blocks} blocks"] = method(lf.RIFormer(blocks=tuple(range(blocks)), start="fit"))
    for size in (208, 192, 176, 160, 144, 128):
        rows[f"{size} px"] = functools.partial(lf.resize, img_size=size)
    for name, plan in (found_plans(plans) if plans is not None else {}).items():
        rows[name] = build_of(plan)
    return rows


def pruned_students(checkpoint: Path, photos: Callable[[], Arrays]) -> dict[str, Build]:
    """Rows of what a user would take instead: channels removed by Torch-Pruning (group Taylor), where it is installed.

    Args:
        checkpoint: weights of vit_tiny_patch16_224.
        photos: opens photographs, some of which choose the channels; asked for once a row.
    """

    def build(teacher: nn.Module, giga: float) -> nn.Module:
        images = sample_images(teacher, photos(), PRUNED_BY, seed=0)
        return lf.adopt(pruned(timms_vit(checkpoint), int(giga * 1e9), images))

    sizes = (0.97, 0.8, 0.61) if installed("torch-pruning") else ()
    return {f"{PRUNED} to {giga} GMACs": functools.partial(build, giga=giga) for giga in sizes}


def imagenet(
    checkpoint: Path,
    data: str,
    judge: str,
    plans: Path | None = None,
    only: str = "",
    epochs: int = 10,
    images: int | None = None,
    fit_images: int = 512,
    batch_size: int = 512,
    learning_rate: float = 1e-4,
    mixup: float = 0.8,
    cutmix: float = 0.0,
    crop: float = 0.25,
    objective: str = "soft",
    second: Path | None = None,
    seed: int = 0,
    halves: tuple[Literal["choose", "judge"], ...] = ("choose", "judge"),
    beside: str | None = None,
    before: bool = True,
    rounded: bool = False,
    variant: str = "",
    device: str | None = None,
    compile: bool = False,
    runs: Path = Path("runs/imagenet"),
    output: Path = Path("results/study_imagenet.json"),
) -> None:
    """Distil students of a trained ViT-Ti on photographs without labels, and judge them on ImageNet photographs.

    Example: python -m lab imagenet --checkpoint vit_tiny.safetensors --data pack:coco --judge pack:imagenet5k

    Args:
        checkpoint: Weights of vit_tiny_patch16_224.
        data: Photographs without labels to distil on.
        judge: Labelled photographs; one half chooses among recipes, the other judges.
        plans: The folder of `python -m lab plans`, or the file it wrote, for the rows called lean and those made by
            hand beside them.
        only: Only the rows whose name contains this text, or the one whose whole name it is; several parted by |.
        epochs: Of each student.
        images: Only the first so many photographs to distil on.
        fit_images: By how many of them what can be fitted to the teacher is fitted before.
        batch_size: Images an update.
        learning_rate: The highest one.
        mixup: Strength of mixing pairs of images; 0 for none.
        cutmix: Strength of pasting boxes of other images; 0 for none.
        crop: The smallest share of an image that a crop shows.
        objective: What is learnt from the teacher.
        second: Weights of EfficientNet-Lite2, a teacher of another kind: the objective knows it as `second`, as in
            "soft:weight=0.5 + soft:weight=0.5,teacher=second".
        seed: Of batches and new weights.
        halves: Which halves of the labelled photographs are looked at.
        beside: More labelled photographs of the same classes, all of which judge: their figures are called beside_…
        before: Judge each student before its training as well; for a second seed that says nothing new.
        rounded: Judge in bf16 on a CPU too, in half the time; a GPU always does.
        variant: A name for other settings than the default ones, kept with the row.
        device: cpu or cuda; by default the GPU if there is one.
        compile: Compile teacher and student for training.
        runs: Folder of the run folders; several processes may share it.
        output: The result file.
    """
    place = device_of(device)
    teacher = teacher_of(checkpoint)
    others = {} if second is None else {"second": create_teacher("tf_efficientnet_lite2", second).eval()}
    photos = functools.cache(functools.partial(unlabelled, data, images))
    rows = students(plans) | pruned_students(checkpoint, photos)
    chosen = choose(rows, only)
    half = {name: part for name, part in photographs(judge).items() if name in halves}
    if beside is not None:
        half["beside"] = labelled(beside)
    answers = {name: answers_of(teacher.to(place), part, rounded) for name, part in half.items()}

    def judged(model: nn.Module) -> dict[str, Any]:
        logits = {name: answers_of(model, part, rounded) for name, part in half.items()}
        return everywhere(logits, half, answers)

    for name in chosen:
        folder = runs / f"{name}{f' {variant}' if variant else ''}, {epochs} epochs, seed {seed}".replace("/", "-")
        with file_lock(folder) as mine:
            if not mine or read_row(folder) is not None:
                continue
            training = photos()
            began = time.perf_counter()
            student = fitted(rows[name](teacher.cpu()), teacher, training, place, fit_images)
            row: dict[str, Any] = {
                "model": name, "variant": variant, "epochs": epochs, "images": len(training),
                "fit_images": fit_images, "seed": seed,
                "learning_rate": learning_rate, "mixup": mixup, "cutmix": cutmix, "crop": crop, "objective": objective,
                "batch_size": batch_size, "precision": quick_precision(student, place), "rounded": rounded,
                "macs": count(fold(student)).macs, "commit": commit(),
            }  # fmt: skip
            if before:
                row |= {f"before_{key}": value for key, value in judged(student).items()}
            if epochs:
                recipe = distillation(
                    epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, mixup=mixup, cutmix=cutmix,
                    crop_scale=(crop, 1.0),
                )  # fmt: skip
                student = trained(
                    name, student, recipe=recipe, data=training, teacher={"teacher": lf.apply(teacher), **others},
                    objective=objective, seed=seed, device=str(place), precision=row["precision"], compile=compile,
                )  # fmt: skip
            student = student.eval().to(place)
            row |= judged(student)
            if not name.startswith(PRUNED):  # no card could say how to rebuild it
                lf.save(student, folder / "model.safetensors")
            write_row(folder, row | {"seconds": round(time.perf_counter() - began, 1)})
            found = ", ".join(f"{row[f'{part}_top1']:.2f} ({part})" for part in half)
            console().print(f"{name}: {found}, {time.perf_counter() - began:.0f} s", highlight=False)
    gathered = [row for row in map(read_row, sorted(runs.iterdir())) if row is not None]
    write_result(record("study imagenet", gathered, place, teacher=everywhere(answers, half, answers)), output)
    console().print(f"{len(gathered)} rows in {output}")


def everywhere(
    logits: Mapping[str, Tensor], half: Mapping[str, Arrays], teacher: Mapping[str, Tensor]
) -> dict[str, Any]:
    """What `compared` says of the answers to each set of photographs, all in one.

    Args:
        logits: name of a set → a model's answers to it.
        half: name of a set → its photographs.
        teacher: name of a set → the teacher's answers to it.
    """
    return {
        key: value
        for name, part in half.items()
        for key, value in compared(logits[name], part, teacher[name], name).items()
    }


def distillation(epochs: int, **settings: Any) -> Any:
    """The recipe of all students: `finetune` with light colours, and neither an average of weights nor smoothed labels.

    Args:
        epochs: of training.
        settings: of the recipe, by name.
    """
    light = {"ema": None, "auto_augment": None, "color_jitter": 0.2, "label_smoothing": 0.0}
    return lf.recipes.finetune(epochs=epochs, warmup_epochs=min(1, epochs / 5), **light, **settings)


def trained(name: str, model: nn.Module, **options: Any) -> nn.Module:
    """The model after its training, which a signal may stop: then no row is written of it.

    Args:
        name: of the row.
        model: it is changed itself.
        options: what `lf.train.fit` takes.
    """
    result = lf.train.fit(model, calibrate=0, evaluate_every=0, quiet=True, **options)
    if not result.finished:
        raise SystemExit(f"stopped while {name} was trained; the same command trains it again")
    return result.model


def fitted(
    student: nn.Module, teacher: nn.Module, data: Arrays, device: torch.device, fit_images: int = 512
) -> nn.Module:
    """The student with all that can be fitted to the teacher fitted, on some photographs, and in evaluation mode.

    Args:
        student: a model with methods on it, perhaps of another image size.
        teacher: the trained model.
        data: photographs without labels.
        device: where they run.
        fit_images: how many of the photographs it is fitted by.
    """
    size = input_of(student)["input_size"][1:]
    like = teacher if size == input_of(teacher)["input_size"][1:] else lf.resize(teacher, img_size=size)
    images = sample_images(student, data, fit_images, seed=0).to(device)
    return lf.calibrate(student.to(device), like.to(device), images).eval()
