"""leanformer study: a teacher, the students made from it, several seeds, one table."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ..measure.console import console
from ..studies.riformer import riformer
from ..studies.study import Scale, Study, run_study, summary
from ..studies.vit_tiny import vit_tiny
from .common import Set, parse_arguments

STUDIES: dict[str, Callable[..., Study]] = {"vit_tiny": vit_tiny, "riformer": riformer}


def study(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")],
    data: str,
    epochs: int = 12,
    teacher_epochs: int = 12,
    seeds: tuple[int, ...] = (0,),
    checkpoint: Path | None = None,
    teacher: Path | None = None,
    arguments: Set = (),
    only: str = "",
    batch_size: int = 256,
    learning_rate: float | None = None,
    images: int | None = None,
    device: str | None = None,
    precision: Literal["no", "bf16", "fp16"] = "no",
    compile: bool = False,
    runs: Path | None = None,
    output: Path | None = None,
) -> None:
    """Train a teacher and the students made from it, and print one table; what has a result already is skipped.

    Example: leanformer study vit_tiny --data pack:tiny_imagenet --checkpoint vit_tiny.safetensors --only "EViT 0.7"

    Args:
        name: vit_tiny (all five systems on a trained ViT-Ti) or riformer (the paper's guidelines on PoolFormer-S12).
        data: A data set with the splits train and val: a folder, or pack:PATH.
        epochs: Epochs of each student.
        teacher_epochs: Epochs of the teacher.
        seeds: Each student is trained once for every seed.
        checkpoint: Weights that the teacher's backbone starts from.
        teacher: A trained teacher, as a leanformer checkpoint, instead of training one.
        arguments: An argument of the backbone as name=value; may be given several times.
        only: Only the students whose name contains this text.
        batch_size: Images an update.
        learning_rate: Instead of the study's own.
        images: Only the first so many training images.
        device: cpu, cuda, …; the fastest there is by default.
        precision: no, bf16 or fp16.
        compile: Compile teacher and student for training.
        runs: The folder of the run folders; by default runs/study-NAME.
        output: The result file; by default results/study_NAME.json.
    """
    if name not in STUDIES:
        raise ValueError(f"unknown study '{name}'; known: {', '.join(STUDIES)}")
    chosen = STUDIES[name](checkpoint, **parse_arguments(arguments))
    scale = Scale(
        data=data, epochs=epochs, teacher_epochs=teacher_epochs, seeds=seeds, batch_size=batch_size,
        learning_rate=learning_rate, images=images, device=device, precision=precision, compile=compile,
        modes=("eager", "compiled") if compile else ("eager",),
    )  # fmt: skip
    output = output or Path("results") / f"study_{name}.json"
    rows = run_study(chosen, scale, output, runs or Path("runs") / f"study-{name}", only, teacher)
    console().print(summary(name, rows))
