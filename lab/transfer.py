"""python -m lab transfer: the lean students of a ViT-Ti on another task, the 37 breeds of Oxford Pets at 224 px.

teacher   the ImageNet ViT-Ti, fine-tuned on the official trainval split
students  the teacher made lean by plans that were found on ImageNet photographs, then distilled on the same pictures
judged    on the official test split; every seed has its own teacher
"""

import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from torchvision.transforms.v2 import functional as pictures

import leanformer as lf
from leanformer.core import fold
from leanformer.data import Arrays, open_scenes
from leanformer.measure import choose, commit, console, count, record, write_result
from leanformer.train import quick_precision

from .arguments import device_of
from .imagenet import distillation, fitted, students, trained
from .photographs import answers_of, compared, teacher_of
from .studies.file_lock import file_lock, read_row, write_row

TEACHER, BREEDS = "teacher", 37
SIDE = 256
"""Pictures are kept as squares of so many pixels: the short side scaled, the middle cut out."""


def transfer(
    checkpoint: Path,
    pets: Path,
    plans: Path | None = None,
    only: str = "",
    epochs: int = 3,
    teacher_epochs: int = 6,
    batch_size: int = 32,
    learning_rate: float = 1e-4,
    seeds: tuple[int, ...] = (0, 1, 2),
    device: str | None = None,
    runs: Path = Path("runs/transfer"),
    output: Path = Path("results/study_pets.json"),
) -> None:
    """Fine-tune a trained ViT-Ti on Oxford Pets, make it lean, distil the lean models, and judge all of them.

    Example: python -m lab transfer --checkpoint vit_tiny.safetensors --pets pets/ --plans results/lean_search_cpu.json

    Args:
        checkpoint: Weights of vit_tiny_patch16_224.
        pets: The folder of Oxford Pets (images, annotations).
        plans: The folder of `python -m lab plans`, or the file that it wrote, for the rows called lean.
        only: Only the students whose name contains this text, or the one whose whole name it is; several parted by |.
        epochs: Of each student.
        teacher_epochs: Of the teacher, whose head is new.
        batch_size: Images an update.
        learning_rate: The highest one.
        seeds: Of heads, batches and new weights.
        device: cpu or cuda; by default the GPU if there is one.
        runs: Folder of the run folders; several processes may share it.
        output: The result file.
    """
    place = device_of(device)
    rows = students(plans)
    train, val = breeds(pets, "train"), breeds(pets, "val")
    about = {"batch_size": batch_size, "learning_rate": learning_rate, "images": len(train)}

    def run(name: str, model: nn.Module, folder: Path, seed: int, teacher: nn.Module | None) -> None:
        began = time.perf_counter()
        precision = quick_precision(model, place)
        macs = count(fold(model)).macs
        recipe = distillation(
            epochs=teacher_epochs if teacher is None else epochs, batch_size=batch_size, learning_rate=learning_rate,
            mixup=0.0, cutmix=0.0, crop_scale=(0.25, 1.0),
        )  # fmt: skip
        model = trained(name, model, recipe=recipe, data=train, teacher=teacher, seed=seed, device=str(place),
                        precision=precision).eval().to(place)  # fmt: skip
        logits = answers_of(model, val, rounded=precision == "bf16")
        kept = runs / f"{TEACHER}, seed {seed}" / "answers.pt"
        if teacher is None:
            torch.save(logits, kept)
        row = {"model": name, "seed": seed, **about, "epochs": recipe.epochs, "precision": precision, "macs": macs,
               "commit": commit(), **compared(logits, val, torch.load(kept), "test")}  # fmt: skip
        lf.save(model, folder / "model.safetensors")
        write_row(folder, row | {"seconds": round(time.perf_counter() - began, 1)})
        console().print(f"{name}, seed {seed}: {row['test_top1']:.2f}%, {time.perf_counter() - began:.0f} s")

    for seed in seeds:
        first = runs / f"{TEACHER}, seed {seed}"
        with file_lock(first, wait=True):
            if read_row(first) is None:
                torch.manual_seed(seed)
                run(TEACHER, lf.with_head(teacher_of(checkpoint), BREEDS), first, seed, None)
        teacher = lf.load(first / "model.safetensors").eval()
        for name in choose(rows, only):
            folder = runs / f"{name}, seed {seed}"
            with file_lock(folder) as mine:
                if mine and read_row(folder) is None:
                    torch.manual_seed(seed)
                    student = fitted(rows[name](teacher.cpu()), teacher, train, place)
                    run(name, student, folder, seed, lf.apply(teacher))
    gathered: list[dict[str, Any]] = [row for row in map(read_row, sorted(runs.iterdir())) if row is not None]
    write_result(record("transfer", gathered, place), output)
    console().print(f"{len(gathered)} rows in {output}")


def breeds(root: Path, split: str) -> Arrays:
    """The pictures of a split as squares, each with its breed.

    Args:
        root: the folder of Oxford Pets.
        split: train (the official trainval) or val (test).
    """
    scenes = open_scenes(f"pets:{root}", split, "masks")
    images = torch.empty(len(scenes), 3, SIDE, SIDE, dtype=torch.uint8)
    for index, entry in enumerate(scenes.entries):
        with Image.open(entry.path) as file:
            whole = pictures.pil_to_tensor(file.convert("RGB"))
        small = pictures.resize(whole, [SIDE], pictures.InterpolationMode.BICUBIC)
        images[index] = pictures.center_crop(small, [SIDE])
    return Arrays(images, torch.tensor([entry.label for entry in scenes.entries]), scenes.classes, name=scenes.name)
