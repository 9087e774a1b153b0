"""python -m lab: what the numbers in results/ come from, one verb each; every verb has --help."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from leanformer.papers.tables import TABLES

from .kernel_suite import run_kernels
from .profile_suite import profile
from .results_page import write_page
from .study import study
from .suite import run_suite
from .training_free import training_free


def suite(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SUITE")],
    device: str | None = None,
    dtype: str = "bfloat16",
    repeats: int = 11,
    only: str = "",
    fp8: bool = False,
    workers: int = 1,
    output: Path | None = None,
) -> int:
    """A fixed list of lean models, each against the fastest forms of its backbone, in one run.

    Example: python -m lab suite gpu --only "DeiT-S" --output results/suite_gpu.json

    Args:
        name: gpu (the models with published speed-ups) or growth (sizes, batches and resolutions).
        device: cpu or cuda; by default the GPU if there is one.
        dtype: float32, bfloat16 or float16.
        repeats: How often each form is timed, in turn with the others.
        only: Only the rows whose name contains this text, as "DeiT-S batch 1." or "384 px"; several texts are parted
            by |.
        fp8: The lean models with fp8 products as well; they do not count for the speed-ups.
        workers: Compile so many backbones at the same time; they are still timed in turn.
        output: Write the result as JSON after every backbone.
    """
    return run_suite(name, device, dtype, repeats, only, output, fp8, workers)


def kernels(
    device: str | None = None,
    dtype: str = "bfloat16",
    batches: tuple[int, ...] = (),
    repeats: int = 11,
    only: str = "",
    output: Path | None = None,
) -> None:
    """Each kernel against the same work in plain torch, compiled.

    Example: python -m lab kernels --only pool --output results/kernels.json

    Args:
        device: cpu or cuda; by default the GPU if there is one.
        dtype: float32, bfloat16 or float16.
        batches: Batch sizes; by default 256 and 1.
        repeats: How often each form is timed, in turn with the others.
        only: Only the cases whose name contains this text; several texts are parted by |.
        output: Write the result as JSON after every case.
    """
    run_kernels(device, dtype, repeats, only, output, batches)


def results(page: Path = Path("docs/results.md"), folder: Path = Path("results")) -> int:
    """Write one page of the papers' tables beside ours and of every file in results/.

    Example: python -m lab results --page docs/results.md

    Args:
        page: The Markdown file to write.
        folder: The folder of the result files.
    """
    content = {name: (paper.rows, paper.counting) for name, paper in TABLES.items()}
    written, wrong = write_page(content, page, folder)
    print(f"wrote {written}")
    for line in wrong:
        print(f"off: {line}", file=sys.stderr)
    return 1 if wrong else 0


VERBS = {
    "study": study,
    "suite": suite,
    "kernels": kernels,
    "profile": profile,
    "training-free": training_free,
    "results": results,
}


def main() -> int:
    """Run one verb; what a user can get wrong ends in one line."""
    try:
        return tyro.extras.subcommand_cli_from_dict(VERBS, prog="python -m lab") or 0
    except ValueError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
