"""python -m lab imagenet-times: how fast the students of the study on photographs are, all forms in one run.

over timm   over the fastest form of timm's ViT-Ti: what a user gains
over own    over the ViT-Ti after the same `lf.optimize`: what the student itself gains

Speed does not depend on what was learnt, so that nothing has to be trained first.
"""

import functools
from pathlib import Path

import torch

import leanformer as lf
from leanformer.core import fold
from leanformer.measure import choose, commit, console, record, write_result

from .arguments import device_of
from .contest import Conditions, Contest, run_contests
from .contest_table import contest_table
from .imagenet import pruned_students, students
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
        output: The result file.
    """
    place = device_of(device)
    teacher = teacher_of(checkpoint)
    kind = dtype or ("bfloat16" if place.type == "cuda" else "float32")
    conditions = Conditions(device=place, batch=batch, dtype=kind, repeats=repeats)
    photos = functools.cache(functools.partial(unlabelled, data, None))
    builds = students(plans) | pruned_students(checkpoint, photos)
    chosen = choose(builds, only)
    found: list[Contest] = []
    for start in range(0, len(chosen), AT_ONCE):
        leans = {name: fold(builds[name](teacher)) for name in chosen[start : start + AT_ONCE]}
        backbone = fold(lf.apply(teacher))
        found += run_contests("vit_tiny_patch16_224", timms_vit(checkpoint), backbone, leans, conditions)
        torch.compiler.reset()
        rows = [{"model": contest.label, **contest.row(), "commit": commit()} for contest in found]
        write_result(record("imagenet times", rows, place), output)  # what is timed is kept
    console().print(contest_table(found))
