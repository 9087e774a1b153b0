"""python -m lab study: a teacher, the students made from it, several seeds, one table."""

import dataclasses
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from leanformer.core import environment, parse_options
from leanformer.measure import command as shown_command
from leanformer.measure import console, count, read_rows, shared_kernels
from leanformer.visualise import trade_off

from .arguments import Set
from .process_group import end_with_starter, process_group
from .studies.digest import losses, points, summary
from .studies.dino import DinoStudy, study_dino
from .studies.evit import evit
from .studies.metaformers import metaformers
from .studies.riformer import riformer
from .studies.rows import rows_in
from .studies.scale import Scale
from .studies.sit import sit
from .studies.speed import measure_study
from .studies.student import Study
from .studies.study import run_study
from .studies.vit_small import vit_small
from .studies.vit_tiny import vit_tiny
from .tables import as_table

STUDIES: dict[str, Callable[..., Study]] = {
    "vit_tiny": vit_tiny, "riformer": riformer, "metaformers": metaformers, "vit_small": vit_small,
    "sit": sit,
    "evit": evit,
}  # fmt: skip


def study(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")],
    scale: Annotated[Scale, tyro.conf.arg(name="")],
    checkpoint: Path | None = None,
    teacher: Path | None = None,
    other: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    arguments: Set = (),
    only: str = "",
    workers: int = 1,
    measure: Literal["after", "only", "never"] = "after",
    measure_batch: int = 256,
    repeats: int = 5,
    runs: Path | None = None,
    output: Path | None = None,
    figure: Path | None = None,
    beside: tuple[Path, ...] = (),
) -> None:
    """Train a teacher and the students made from it, and print one table; what has a result already is skipped.

    Example: python -m lab study vit_tiny --data pack:tiny_imagenet --checkpoint vit_tiny.safetensors --only "EViT 0.7"

    Args:
        name: vit_tiny (all five systems on a trained ViT-Ti), vit_small (the same on a ViT-S grown from it),
            metaformers (MetaFormers from scratch), riformer (the paper's guidelines on PoolFormer-S12), sit (the
            paper's ablations on LV-ViT+-Ti), evit (the paper's tables on a DeiT) or dino (a ViT pre-trained without
            labels, with and without RePa, then EViT and ToMe on it; --teacher-epochs of DINO, --set
            dino=prototypes=4096,local_crops=6 for its own settings).
        scale: The data, and at which size the study is run.
        checkpoint: Weights that the teacher's backbone starts from.
        teacher: A trained teacher, as a leanformer checkpoint, instead of training one.
        other: One of the study's other teachers as name=file, a leanformer checkpoint or ImageNet weights, instead of
            training it; may be given several times.
        arguments: An argument of the backbone as name=value; may be given several times.
        only: Only the students whose name contains this text, or the one whose whole name it is; several texts are
            parted by |.
        workers: Processes that share the queue of runs, on one GPU too: one compiles while another one trains. When
            timing, so many compile at the same time and are timed in turn.
        measure: When the fused students are timed beside the teacher: after training, only that, or never.
        measure_batch: Images a batch when timing.
        repeats: Repeats of each timing.
        runs: The folder of the run folders; by default runs/study-NAME.
        output: The result file; by default results/study_NAME.json.
        figure: Draw accuracy against measured throughput, or MACs while nothing has been timed, as PNG or SVG.
        beside: Result files of other studies: what the students of all of them lose to their teachers, side by side.
    """
    if name not in STUDIES and name != "dino":
        raise ValueError(f"unknown study '{name}'; known: {', '.join(STUDIES)}, dino")
    others = {path.stem: read_rows(path) for path in beside}  # before hours of training, if one cannot be read
    build = chosen = None
    given: dict[str, Path] = {}
    if name != "dino":
        build = functools.partial(STUDIES[name], checkpoint, **parse_options(arguments))
        chosen = build()
        chosen.chosen(only)  # before data are opened, if there is none
        given = _given(chosen, teacher, other)
    command = _of_any_row(
        name, data=scale.data, checkpoint=checkpoint, teacher=teacher, other=other, set=arguments,
        teacher_epochs=None if teacher else scale.teacher_epochs, images=scale.images,
        first_classes=scale.first_classes, batch_size=scale.batch_size, device=scale.device,
        precision=None if scale.precision == "no" else scale.precision, compile=scale.compile or None,
    )  # fmt: skip
    scale = dataclasses.replace(scale, command=command)
    output = output or Path("results") / f"study_{name}.json"
    runs = runs or Path("runs") / f"study-{name}"
    if build is None or chosen is None:
        return study_dino(DinoStudy.of(scale, arguments, output, runs, (measure_batch, repeats), measure), only)
    if measure != "only":
        if workers > 1:
            _in_parallel(workers, runs)
        else:
            with shared_kernels():
                run_study(chosen, scale, output, runs, only, given, _worker())
    new = any("speedup" not in row for row in rows_in(output))
    if measure == "only" or (measure == "after" and new):
        measure_study(build, scale, output, runs, only, measure_batch, repeats, workers)
    _show(name, chosen, rows_in(output), output, others, figure)


def _given(study: Study, teacher: Path | None, others: tuple[str, ...]) -> dict[str, Path]:
    """Checkpoints of trained teachers by name, "" being the study's own."""
    found = {} if teacher is None else {"": teacher}
    for text in others:
        name, equals, file = text.partition("=")
        if not equals or name not in study.others:
            known = ", ".join(study.others) or "none"
            raise ValueError(f"--other {text}: give name=file; the other teachers of this study: {known}")
        if not Path(file).is_file():
            raise ValueError(f"--other {text}: there is no file {file}")
        found[name] = Path(file)
    return found


def _show(
    name: str,
    study: Study,
    rows: list[dict[str, Any]],
    output: Path,
    others: dict[str, list[dict[str, Any]]],
    figure: Path | None,
) -> None:
    """Print the table and, where asked for, the students of other studies beside it and a figure."""
    console().print(summary(name, rows))
    if others:
        lost = losses({output.stem: rows, **others})
        missing = f"no student is in {' and '.join(others)} as well"
        console().print(as_table("points below the teacher", lost) if lost else missing)
    if figure is not None:
        drawn = points(rows, count(study.teacher(1000)).macs)
        if not drawn:
            raise ValueError(f"no student of {output} has been trained yet: there is nothing to draw")
        axis = "throughput" if any("throughput" in point for point in drawn) else "macs"
        console().print(f"wrote {trade_off(drawn, x=axis, by='family').save(figure)}")


def _of_any_row(name: str, **options: Any) -> str:
    """The command, with the options that all rows share."""
    words = ["python", "-m", "lab", "study", name]
    for option, value in options.items():
        for each in value if isinstance(value, tuple) else () if value is None else (value,):
            words += [f"--{option.replace('_', '-')}", *(() if each is True else (str(each),))]
    return shown_command(words)


def _worker() -> tuple[int, int]:
    """Which process of how many this is; one of several ends with the command that started it."""
    worker, _, workers = environment("LEANFORMER_WORKER", "0/1").partition("/")
    if int(workers) > 1:
        end_with_starter()
    return int(worker), int(workers)


def _in_parallel(workers: int, runs: Path) -> None:
    """Start this command so many times; each process takes runs from the queue and writes its own log."""
    runs.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "lab", *sys.argv[1:], "--workers", "1", "--measure", "never"]
    shared = {**os.environ, "LEANFORMER_COMMAND": shown_command(sys.argv)}  # results name the command that was given
    own = [{**shared, "LEANFORMER_WORKER": f"{worker}/{workers}"} for worker in range(workers)]
    logs = [runs / f"worker-{worker}.log" for worker in range(workers)]
    with process_group([command] * workers, logs, own) as started:
        console().print(f"{workers} processes at work; their logs: {runs}/worker-*.log")
        failed = [worker for worker, process in enumerate(started) if process.wait() != 0]
    for worker in failed:
        lines = logs[worker].read_text().splitlines()[-15:]
        console().print(f"worker {worker} ended early:\n" + "\n".join(lines), markup=False)
    if failed:
        raise RuntimeError(f"{len(failed)} of {workers} processes ended early; start again to repeat what is missing")
