"""docs/results.md: the papers' tables beside ours, and every file in results/ as a table. Written, never edited.

paper's parameters, MACs, accuracy, speed | our parameters, MACs | our speed-up, from results/ where it was measured
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from leanformer.backbones import create
from leanformer.core import apply, fold, write_atomically
from leanformer.measure import COMPONENTS, count, flat, read_results
from leanformer.papers.table import Row, agrees
from leanformer.visualise import shown

from .contest_result import OPTIMISED, TORCH, is_timms
from .studies.digest import COMMAND, digest
from .suite_rows import SUITES, Entry

TOLERANCE = 1e-4
"""Two models of the same parameters and MACs within this share are the same model."""
INTRO = """# Results

Written by `python -m lab results` from the files in `results/` and from the tables of the
papers; not edited by hand. Parameters in millions, MACs in billions for one image; a paper's figures as printed."""


@dataclass(frozen=True)
class Measurement:
    """A speed-up that was measured, and the size of its model in M and G, before and after fuse."""

    sizes: tuple[tuple[float, float], ...]
    speedup: float
    paper: str
    where: str

    def fits(self, params: float, macs: float) -> bool:
        return any(abs(p / params - 1) < TOLERANCE and abs(m / macs - 1) < TOLERANCE for p, m in self.sizes)


def write_page(systems: Mapping[str, tuple[Sequence[Row], str]], path: Path, folder: Path) -> tuple[Path, list[str]]:
    """Write the page for systems (name → rows, remarks); returns it and a line for each figure that is off."""
    results = read_results(folder)
    lines, wrong = papers_table(systems, list(measurements(results)))
    parts = [INTRO, "## The papers' models", lines]
    parts += [f"**{name}.** {' '.join(remark.split())}" for name, (_, remark) in systems.items() if remark]
    for result in results:
        if result.get("rows"):
            parts += [f"## {result['file'].removesuffix('.json')}", _about(result), shown_result(result)]
    text = "\n\n".join(parts) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from error
    return write_atomically(path, lambda name: Path(name).write_text(text, encoding="utf-8")), wrong


def papers_table(
    systems: Mapping[str, tuple[Sequence[Row], str]], measured: Sequence[Measurement]
) -> tuple[str, list[str]]:
    """All systems in one Markdown table, and a line for each figure that is off without a stated reason."""
    head = ("system", "table", "model", "params paper", "params ours", "MACs paper", "MACs ours", "top-1 paper",
            "img/s paper", "speed-up paper", "speed-up ours", "remark")  # fmt: skip
    body, wrong = [], []
    for system, (rows, _) in systems.items():
        for row in rows:
            if row.build is None:
                quoted = (row.published.get("top-1", ""), row.published.get("img/s", ""), "", "", row.differs)
                body.append((system, row.table, row.model, row.params, "", row.macs, "", *quoted))
                continue
            (params, macs), (as_paper, macs_as_paper) = row.both()
            fine = agrees(row.params, as_paper) and agrees(row.macs, macs_as_paper)
            if not fine and not row.differs:
                wrong.append(f"{system}, {row.table} {row.model}: paper {row.params} M {row.macs} G, "
                             f"ours {as_paper:.3f} M {macs_as_paper:.3f} G")  # fmt: skip
            mine = [each for each in measured if each.fits(params, macs)]
            remark = row.differs or ("" if fine else "off")
            if abs(macs_as_paper / macs - 1) > TOLERANCE:
                remark = "; ".join(filter(None, (remark, f"{macs_as_paper:.2f} G counted as the paper does")))
            body.append((
                system, row.table, row.model, row.params, f"{as_paper:.2f}", row.macs, f"{macs:.2f}",
                row.published.get("top-1", ""), row.published.get("img/s", ""), mine[0].paper if mine else "",
                "; ".join(f"{each.speedup:.2f} ({each.where})" for each in mine), remark,
            ))  # fmt: skip
    return markdown(head, body), wrong


def measurements(results: Iterable[Mapping[str, Any]]) -> Iterable[Measurement]:
    """The suites' speed-ups; of several runs of one row the newest."""
    entries = {entry.label: entry for entry, _ in SUITES["gpu"](())}
    newest: dict[tuple, Measurement] = {}
    for result in results:
        if not str(result.get("kind", "")).startswith("suite"):
            continue
        chip = result["hardware"].get("gpu") or result["hardware"].get("cpu")
        for row in result["rows"]:
            speedup = _over_timm(row)
            if row.get("label") in entries and speedup is not None:
                where = f"{chip}, batch {row['batch']}, {row['dtype']}"
                sizes = _sizes(entries[row["label"]])
                newest[row["label"], where] = Measurement(sizes, speedup, row.get("paper_speedup", ""), where)
    return newest.values()


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table.

    >>> print(markdown(["model", "top-1"], [["a|b", 80.0]]))
    | model | top-1 |
    | --- | --- |
    | a\\|b | 80 |
    """
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return shown(value).replace("|", "\\|").replace("\n", " ")


def _sizes(entry: Entry) -> tuple[tuple[float, float], ...]:
    """Parameters in M and MACs in G of an entry's lean model, before and after fuse."""
    with torch.device("meta"):
        lean = apply(create(entry.backbone, **entry.arguments), *entry.methods)
        counts = [count(each) for each in (lean, fold(lean))]
    return tuple((found.parameters / 1e6, found.macs / 1e9) for found in counts)


def _about(result: Mapping[str, Any]) -> str:
    hardware = result.get("hardware", {})
    chip = hardware.get("gpu") or f"{hardware.get('cpu')}, {hardware.get('threads', hardware.get('cores'))} threads"
    versions = ", ".join(f"{name} {version}" for name, version in result.get("versions", {}).items())
    data = f" Data: {result['data']}, {shown(result.get('images'))} images." if "data" in result else ""
    commit = (result.get("commit") or "unknown")[:10]
    about = f"{chip}; {versions}; commit {commit}; {result.get('when', '')[:10]}.{data}"
    told_by_row = all(COMMAND in row for row in result["rows"]) and _kind(result) == "study"
    return about if told_by_row else f"{about}\n\n    {result.get('command', '')}"


def _kind(result: Mapping[str, Any]) -> str:
    """The first word of a result's kind; the suite of families has columns of its own."""
    kind = str(result.get("kind") or "")
    return kind if kind in COLUMNS else kind.partition(" ")[0]


def shown_result(result: Mapping[str, Any]) -> str:
    """The rows of a result file as a Markdown table, without the columns that nothing fills."""
    kind, said = _kind(result), ""
    if kind == "study" and "student" in result["rows"][0]:
        said, rows = _with_commands(digest(result["rows"]))
    else:
        rows = [COLUMNS[kind](row) if kind in COLUMNS else _figures(row) for row in result["rows"]]
    head = [
        key for key in dict.fromkeys(k for row in rows for k in row) if any(row.get(key) is not None for row in rows)
    ]
    return said + markdown(head, ([row.get(key) for key in head] for row in rows))


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it is, but for the bits that tell photograph by photograph what was right: they stay in the file."""
    return {key: value for key, value in flat(dict(row)).items() if not key.endswith("_right")}


def _with_commands(lines: Sequence[dict[str, str]]) -> tuple[str, list[dict[str, Any]]]:
    """What the commands of all lines begin with, told once, and the lines with the rest of theirs; no empty columns."""
    commands = [line[COMMAND] for line in lines]
    start = os.path.commonprefix(commands).rpartition(" --")[0]
    rows = [{**line, COMMAND: f"`{line[COMMAND].removeprefix(start).strip()}`"} for line in lines] if start else lines
    filled = [column for column in lines[0] if any(line[column] for line in lines)]
    said = f"The command of a row is this and what stands behind the row:\n\n    {start}\n\n" if start else ""
    return said, [{column: row[column] for column in filled} for row in rows]


def _suite(row: Mapping[str, Any]) -> dict[str, Any]:
    forms, lean = row["forms"], row.get("runtime", TORCH)
    lean = OPTIMISED if lean == TORCH else lean
    return {
        "model": row["label"], "runtime": row.get("runtime"), "batch": row["batch"], "px": row["size"],
        "dtype": row["dtype"], "timm eager, img/s": forms.get("backbone eager"),
        "timm's best, img/s": max((rate for form, rate in forms.items() if is_timms(form)), default=None),
        "backbone optimised, img/s": forms.get(f"backbone {lean}"), "lean compiled, img/s": forms.get("compiled"),
        "lean optimised, img/s": forms.get(lean), "over timm": _two_digits(_over_timm(row)),
        "±": _per_cent(row.get("over_timm_spread")), "over own": _two_digits(row.get("over_own")),
        "± ": _per_cent(row.get("over_own_spread")), "MAC ratio": _two_digits(row.get("mac_ratio")),
        "share": _two_digits(row.get("share")), "paper's": row.get("paper_speedup", ""),
        "failed": row.get("failed") or None,
    }  # fmt: skip


def _over_timm(row: Mapping[str, Any]) -> float | None:
    """The speed-up over timm's fastest form; in older files the fastest form of the lean model counted."""
    return row.get("over_timm", row.get("speedup"))


def _two_digits(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def _per_cent(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}"


def _family(row: Mapping[str, Any]) -> dict[str, Any]:
    forms, ratios = row["forms"], row["ratios"]
    told = {"family": row["family"], "model": row["model"], "method": row["method"], "batch": row["batch"]}
    compiled = max((rate for form, rate in forms.items() if form.startswith("compiled")), default=None)
    return {
        **told, "dtype": row["dtype"], "compiled, img/s": compiled, "optimised, img/s": forms.get("optimised"),
        "over compiled": _two_digits(ratios.get("optimised")), "searched, img/s": forms.get("searched"),
        "over compiled ": _two_digits(ratios.get("searched")), "loss": row["loss"] or row["failed"] or None,
    }  # fmt: skip


def _bench(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": row["model"], "mode": row["mode"], "batch": row["batch"], "dtype": row["dtype"],
        "img/s": row["throughput"], "±": f"{row['spread']:.1%}", "speed-up": f"{row['speedup']:.2f}",
        "p50 ms": f"{row['latency_p50'] * 1e3:.2f}", "p99 ms": f"{row['latency_p99'] * 1e3:.2f}",
        "params M": f"{row['parameters'] / 1e6:.2f}", "MACs G": f"{row['macs'] / 1e9:.3f}",
        "of peak": f"{row['share_of_peak']:.0%}",
    }  # fmt: skip


def _profile(row: Mapping[str, Any]) -> dict[str, Any]:
    told = {"model": row["model"], "mode": row["mode"], "batch": row["batch"], "ms": f"{row['whole'] * 1e3:.2f}"}
    shares = {name: f"{row['parts'].get(name, 0) / row['whole']:.1%}" for name in COMPONENTS}
    return {**told, **shares, "rest": f"{1 - sum(row['parts'].values()) / row['whole']:.1%}"}


def _sweep(row: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in row.items() if key not in ("top1", "top5", "macs")}
    accuracy = {"top-1": f"{row['top1']:.1f}", "top-5": f"{row['top5']:.1f}"}
    return {**rest, **accuracy, "MACs G": f"{row['macs'] / 1e9:.3f}"}


COLUMNS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "suite": _suite, "imagenet times": _suite, "suite families": _family, "bench": _bench, "profile": _profile,
    "sweep": _sweep,
}  # fmt: skip
