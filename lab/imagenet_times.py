"""python -m lab imagenet-times: how fast the students of the study on photographs are, all forms in one run.

over timm   over the fastest form of timm's ViT-Ti: what a user gains
over own    over the ViT-Ti after the same `lf.optimize`: what the student itself gains

Speed does not depend on what was learnt, so that nothing has to be trained first.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import leanformer as lf
from leanformer.core import fold
from leanformer.measure import choose, commit, console, record, write_result

from .arguments import device_of
from .compile_together import compile_together
from .contest import Conditions, run_contests
from .contest_result import Contest
from .contest_table import contest_table
from .fresh_device import fresh_device
from .imagenet import Build, pruned_students, students
from .photographs import teacher_of, timms_vit, unlabelled

AT_ONCE = 6
"""Students that are timed in turn with each other and the teacher; more would take long between two turns of one."""


def imagenet_times(
    checkpoint: Path,
    data: str,
    plans: Path | None = None,
    only: str = "",
    batch: int = 256,
    device: str | None = None,
    dtype: str | None = None,
    repeats: int = 7,
    workers: int = 1,
    go: Path | None = None,
    output: Path = Path("results/study_imagenet_times.json"),
) -> None:
    """Time the students of the study on photographs beside timm's ViT-Ti and the optimised one.

    Example: python -m lab imagenet-times --checkpoint vit_tiny.safetensors --data pack:coco --only "lean 2|160 px"

    Args:
        checkpoint: Weights of vit_tiny_patch16_224.
        data: Photographs without labels, by which the peer chooses its channels.
        plans: The folder of `python -m lab plans`, or the file it wrote.
        only: Only the rows whose name contains this text, or the one whose whole name it is; several parted by |.
        batch: Images at a time.
        device: cpu or cuda; by default the GPU if there is one.
        dtype: bfloat16 on a GPU, float32 on a CPU by default.
        repeats: How often each form is timed.
        workers: Processes that compile side by side; they still time in turn.
        go: A file. With several workers timing begins when it is there; other work may go on until then.
        output: The result file.
    """
    place = device_of(device)
    kind = dtype or ("bfloat16" if place.type == "cuda" else "float32")
    conditions = Conditions(device=place, batch=batch, dtype=kind, repeats=repeats)
    together = functools.partial(_together, checkpoint, data, plans, conditions)
    chosen = choose(_builds(checkpoint, data, plans), only)
    jobs = [functools.partial(together, chosen[i : i + AT_ONCE]) for i in range(0, len(chosen), AT_ONCE)]
    found: list[Contest] = []
    for job, contests in compile_together(jobs, workers, go):
        if contests is None:
            console().print(f"not timed, its process ended early: {', '.join(job.args[-1])}", highlight=False)
        found += contests or []
        rows = [{"model": contest.label, **contest.row(), "commit": commit()} for contest in found]
        write_result(record("imagenet times", rows, place), output)  # what is timed is kept
    console().print(contest_table(found))


def _builds(checkpoint: Path, data: str, plans: Path | None) -> dict[str, Build]:
    photos = functools.cache(functools.partial(unlabelled, data, None))
    return students(plans) | pruned_students(checkpoint, photos)


def _together(
    checkpoint: Path,
    data: str,
    plans: Path | None,
    conditions: Conditions,
    names: Sequence[str],
    ready: Callable[[], None] | None = None,
) -> list[Contest]:
    """Some students, timed in turn with each other and with all forms of the teacher."""
    teacher, builds = teacher_of(checkpoint), _builds(checkpoint, data, plans)
    with fresh_device(conditions.device):
        leans = {name: fold(builds[name](teacher)) for name in names}
        backbone = fold(lf.apply(teacher))
        return run_contests("vit_tiny_patch16_224", timms_vit(checkpoint), backbone, leans, conditions, ready=ready)
