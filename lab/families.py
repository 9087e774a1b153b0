"""Does `lf.optimize` ever lose? One model of every family, with no method and with each method it takes.

    loss: images a second of the optimised model < 0.99 x those of torch.compile, in a CUDA graph where that is faster

The yardstick of a family without a method is timm's own model where timm has it; that of a lean model is the same lean
model under torch.compile. All forms are called as their user calls them, and timed in turn.
"""

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from rich.table import Table
from torch import nn

import leanformer as lf
from leanformer.backbones.census import FAMILIES
from leanformer.measure import Timing, choose, command_line, commit, console, interleave, record, write_result
from leanformer.speed import Optimized

from .compile_together import compile_together, told
from .contest import Conditions, compiled_forms
from .fresh_device import fresh_device
from .suite import Options, rows_of_this_commit
from .suite_rows import Entry
from .tables import as_table, number

MODELS = {
    "vision_transformer": "vit_small_patch16_224",
    "vision_transformer_hybrid": "vit_tiny_r_s16_p8_224",
    "deit": "deit3_small_patch16_224",
    "swin_transformer": "swin_tiny_patch4_window7_224",
    "mlp_mixer": "mixer_b16_224",
    "metaformer": "caformer_s18",
    "poolformer": "poolformer_s12",
    "lvvit": "lvvit_s",
    "gfnet": "gfnet_h_ti",
}
"""Family → the model that stands for it: those of timm in the census, then those that this library adds."""
assert set(FAMILIES) <= set(MODELS), "every family of the census has a model"
TOLERANCE = 0.01
"""A loss of less than this share is noise."""


@dataclass(frozen=True)
class FamilyRow:
    """One model at one batch: torch.compile, and `lf.optimize` without and with its search."""

    family: str
    model: str
    method: str
    batch: int
    dtype: str
    forms: dict[str, float] = field(default_factory=dict)
    """Form → images a second: 'eager', 'compiled', 'compiled, graph', 'optimised', 'searched'."""
    spread: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    """'optimised' and 'searched' over torch.compile, turn by turn."""
    ratio_spread: dict[str, float] = field(default_factory=dict)
    steps: dict[str, tuple[str, ...]] = field(default_factory=dict)
    failed: str = ""

    @property
    def loss(self) -> str:
        """The forms that are slower than torch.compile; empty where there is none."""
        return ", ".join(form for form, ratio in self.ratios.items() if ratio < 1 - TOLERANCE)

    @property
    def label(self) -> str:
        """How the row is chosen by name."""
        return f"{self.family}: {self.method or 'backbone'} batch {self.batch}."

    def row(self) -> dict[str, Any]:
        """As a row of a result file."""
        return asdict(self) | {"loss": self.loss, "command": command_line(), "commit": commit()}


def run_families(options: Options, search: bool = False) -> int:
    """Measure every family, print it, and write it after each row; rows of this commit are not measured again.

    Args:
        options: device, dtype, batches, ….
        search: time `lf.optimize` with its search as well. It times what it tries, so nothing else may run then: with
            several workers it is made once beforehand, which compiles all that it asks for, and again when it is alone.

    Returns:
        The exit code: 1 where optimize loses or a row failed.
    """
    kind = options.kind("families")
    rows = [_read(row) for row in rows_of_this_commit(options.output, kind)]
    done = {(row.label, row.dtype) for row in rows if ("searched" in row.forms) >= search}
    jobs = [job for job in _jobs(options, search) if (job.blank.label, options.dtype) not in done]
    results = compile_together(jobs, options.workers, options.go)
    for job, found in told(results, len(jobs), lambda job: job.blank.label):
        row = found or replace(job.blank, failed="its process ended early")
        again = set() if row.failed else {(row.label, row.dtype)}
        rows = [old for old in rows if (old.label, old.dtype) not in again] + [row]
        if options.output is not None:
            write_result(record(kind, [row.row() for row in rows], options.device), options.output)
    console().print(families_table(rows))
    lost = not options.dry_run and any(row.loss for row in rows)  # tiny models say nothing of speed
    return 1 if lost or any(row.failed for row in rows) else 0


@dataclass(frozen=True)
class FamilyJob:
    """One row to measure."""

    entry: Entry
    blank: FamilyRow
    options: Options
    search: bool

    def __call__(self, ready: Callable[[], None] | None = None) -> FamilyRow:
        with fresh_device(self.options.device):
            try:
                return self._measured(ready)
            except Exception as error:  # the other rows are worth having
                return replace(self.blank, failed=f"{type(error).__name__}: {error}"[:500])

    def _measured(self, ready: Callable[[], None] | None) -> FamilyRow:
        conditions = Conditions(device=self.options.device, batch=self.blank.batch, dtype=self.blank.dtype)
        lean = self.entry.lean()
        yardstick = lean if self.entry.methods else self.entry.timms()
        images = conditions.images(lean)
        calls: dict[str, Callable[[], Any]] = compiled_forms(conditions.ready_model(yardstick), images)
        fast = {"optimised": conditions.optimised(lean)}
        calls["optimised"] = functools.partial(fast["optimised"], images)
        if self.search:
            if ready is not None:
                _searched(lean, conditions)  # others compile meanwhile: what it finds does not count
                _wait(calls, ready)
                ready = None
            fast["searched"] = _searched(lean, conditions)
            calls["searched"] = functools.partial(fast["searched"], images)
        timings = interleave(calls, conditions.device, self.options.repeats, ready=ready)
        steps = {form: tuple(model.choice.steps) for form, model in fast.items()}
        return judged(replace(self.blank, steps=steps), timings)


def judged(row: FamilyRow, timings: Mapping[str, Timing]) -> FamilyRow:
    """A row with its speeds, and each optimised form over the faster of the compiled ones.

    Args:
        row: which model, method, batch and dtype.
        timings: form → its timing.

    >>> compiled, slower = Timing([1.0, 1.0]), Timing([1.1, 1.1])
    >>> judged(FamilyRow("f", "m", "", 1, "float32"), {"compiled": compiled, "optimised": slower}).loss
    'optimised'
    """
    yardstick = min((t for form, t in timings.items() if form.startswith("compiled")), key=lambda t: t.median)
    over = {form: timings[form].speedup(yardstick) for form in ("optimised", "searched") if form in timings}
    return replace(
        row,
        forms={form: row.batch / timing.median for form, timing in timings.items()},
        spread={form: timing.spread for form, timing in timings.items()},
        ratios={form: ratio for form, (ratio, _) in over.items()},
        ratio_spread={form: spread for form, (_, spread) in over.items()},
    )


def _jobs(options: Options, search: bool) -> list[FamilyJob]:
    batches = [min(batch, 2) if options.dry_run else batch for batch in options.batches or (256, 1)]
    blanks = [
        FamilyRow(family, model, method, batch, options.dtype)
        for batch in batches
        for family, model in MODELS.items()
        for method in ("", *lf.METHODS)
    ]
    chosen = choose((blank.label for blank in blanks), options.only)
    entries = [(blank, _entry(blank, options.dry_run)) for blank in blanks if blank.label in chosen]
    pairs = {(blank.family, blank.method): entry for blank, entry in entries}  # whatever the batch
    taken = {pair for pair, entry in pairs.items() if takes_its_methods(entry)}
    return [FamilyJob(entry, b, options, search) for b, entry in entries if (b.family, b.method) in taken]


def _entry(row: FamilyRow, tiny: bool) -> Entry:
    """What the row measures: each method with its default options."""
    entry = Entry(row.label, row.model, (lf.METHODS[row.method](),) if row.method else ())
    return entry.tiny() if tiny else entry


def takes_its_methods(entry: Entry) -> bool:
    """Whether an entry's backbone takes its methods.

    Args:
        entry: a backbone and methods.

    >>> takes_its_methods(Entry("", "mixer_s16_224", (lf.EViT(),)))
    False
    """
    try:
        with torch.device("meta"):
            lf.apply(lf.create(entry.backbone, **entry.arguments), *entry.methods)
    except ValueError:
        return False
    return True


def _searched(model: nn.Module, conditions: Conditions) -> Optimized:
    """What `lf.optimize` makes of a model with its search, of which nothing is remembered."""
    with _no_memory_of_earlier_searches():
        return lf.optimize(model, device=conditions.device, batch=conditions.batch, dtype=conditions.dtype)


def _wait(calls: Mapping[str, Callable[[], Any]], ready: Callable[[], None]) -> None:
    """Until it is this job's turn to time, all that is called until now being compiled."""
    for call in calls.values():
        call()
    ready()


@contextlib.contextmanager
def _no_memory_of_earlier_searches() -> Iterator[None]:
    """Within this, `lf.optimize` remembers in a folder of its own, which is empty."""
    before = os.environ.get("LEANFORMER_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LEANFORMER_CACHE"] = folder
        try:
            yield
        finally:
            del os.environ["LEANFORMER_CACHE"]
            if before is not None:
                os.environ["LEANFORMER_CACHE"] = before


def _read(row: Mapping[str, Any]) -> FamilyRow:
    """A row of a result file as what it was."""
    return FamilyRow(**{name: row[name] for name in FamilyRow.__dataclass_fields__ if name in row})


def families_table(rows: Sequence[FamilyRow]) -> Table:
    """One line a row; `loss` names the forms that are slower than torch.compile.

    Args:
        rows: what was measured.

    >>> families_table([]).row_count
    0
    """
    lines = []
    for row in rows:
        compiled = max((rate for form, rate in row.forms.items() if form.startswith("compiled")), default=None)
        line = {"family": row.family, "model": row.model, "method": row.method, "batch": str(row.batch)}
        line["compiled"] = number(compiled, ",.0f")
        for form, blank in (("optimised", ""), ("searched", " ")):
            line[form] = number(row.forms.get(form), ",.0f")
            line[f"ratio{blank}"] = number(row.ratios.get(form), ".2f")
            line[f"±{blank}"] = number(row.ratio_spread.get(form), ".1%")
        lines.append({**line, "loss": row.failed or row.loss})
    title = "lf.optimize against torch.compile, in a graph where that is faster"
    return as_table(title, lines, left=("family", "model", "method", "loss"))
