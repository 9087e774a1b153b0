"""python -m lab: what the numbers in results/ come from, one verb each; every verb has --help."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from leanformer.papers.tables import TABLES
from leanformer.speed.asked import check_counts, device_asked, dtype_asked
from leanformer.speed.fp8 import require_fp8

from .dense import dense
from .dense_study import dense_study
from .families import run_families
from .figures import figure
from .halves import halves
from .imagenet import imagenet
from .imagenet_times import imagenet_times
from .kernel_suite import run_kernels
from .orderings import orderings
from .papers import papers
from .plans import plans
from .predict_bench import predict_bench
from .predict_kills import predict_kills
from .predict_million import predict_million
from .predict_ray import predict_ray
from .process_group import exit_on_terminate
from .profile_suite import profile
from .results_page import write_page
from .seeds import seeds
from .serve_load import serve_load
from .spread import spread
from .study import study
from .suite import Options, run_suite
from .trade_off import trade_off
from .training_free import training_free
from .transfer import transfer

Batches = Annotated[tuple[int, ...], tyro.conf.arg(aliases=["--batch"])]


def suite(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SUITE")],
    device: str | None = None,
    dtype: str | None = None,
    batches: Batches = (),
    repeats: int = 11,
    only: str = "",
    fp8: bool = False,
    search: bool = False,
    workers: int = 1,
    go: Path | None = None,
    dry_run: bool = False,
    output: Path | None = None,
) -> int:
    """A fixed list of models, all forms of each timed in one run.

    Example: python -m lab suite gpu --only "DeiT-S" --batches 1 8 32 256 1024 --output results/suite_gpu.json

    Args:
        name: gpu (lean models against timm's fastest form and their own optimised backbone), cpu (the same in float32,
            in ONNX Runtime and OpenVINO too), peers (what other libraries make of the same backbone), growth (sizes,
            batches and resolutions) or families (does lf.optimize ever lose?).
        device: cpu or cuda; by default the GPU if there is one, and the CPU for the suite cpu.
        dtype: float32, bfloat16 or float16; by default bfloat16 on a GPU and float32 on a CPU.
        batches: Batch sizes instead of the suite's own.
        repeats: How often each form is timed, in turn with the others.
        only: Only the rows whose name contains this text, as "DeiT-S batch 1." or "swin"; several texts are parted
            by |.
        fp8: The lean models with fp8 products as well, and with torchao's where it is installed; they do not count for
            the speed-ups.
        search: For families: lf.optimize with its search as well.
        workers: Compile so many backbones at the same time; they are still timed in turn.
        go: A file. With several workers timing begins when it is there; other work may go on until then.
        dry_run: Tiny models at a tiny batch, once: does every row run here?
        output: Write the result as JSON as rows come; the same command at the same commit goes on where it stopped.
    """
    if search and name != "families":
        raise ValueError(f"the suite {name} times what lf.optimize makes without its search; leave out --search")
    check_counts(repeats=repeats, batches=min(batches, default=1))
    chosen = device_asked(device or ("cpu" if name == "cpu" else None))
    dtype = dtype_asked(dtype, chosen)
    if fp8:
        require_fp8(chosen, dtype)
    options = Options(
        device=chosen, dtype=dtype, batches=batches, repeats=1 if dry_run else repeats, only=only, fp8=fp8,
        workers=workers, go=go, dry_run=dry_run, output=output,
    )  # fmt: skip
    return run_families(options, search) if name == "families" else run_suite(name, options)


def kernels(
    device: str | None = None,
    dtype: str = "bfloat16",
    batches: tuple[int, ...] = (),
    repeats: int = 11,
    only: str = "",
    output: Path | None = None,
) -> None:
    """Each kernel against the same work written in torch and compiled.

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
    "imagenet": imagenet,
    "imagenet-times": imagenet_times,
    "halves": halves,
    "plans": plans,
    "transfer": transfer,
    "seeds": seeds,
    "orderings": orderings,
    "predict-bench": predict_bench,
    "predict-kills": predict_kills,
    "predict-million": predict_million,
    "predict-ray": predict_ray,
    "serve-load": serve_load,
    "suite": suite,
    "kernels": kernels,
    "dense": dense,
    "dense-study": dense_study,
    "profile": profile,
    "training-free": training_free,
    "figure": figure,
    "results": results,
    "spread": spread,
    "trade-off": trade_off,
    "papers": papers,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; what a user can get wrong ends in one line.

    Args:
        arguments: the words behind `python -m lab`; by default those of the command line.
    """
    try:
        with exit_on_terminate():
            return tyro.extras.subcommand_cli_from_dict(VERBS, prog="python -m lab", args=arguments) or 0
    except ValueError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
