"""The page that tells what lean chose and why: the trade-off, the plan block by block, kept tokens, what it gained."""

import math
from typing import Any

from torch import Tensor, nn

from ..core import METHODS, Decision, blocks_of, reducers
from ..visualise import Page, kept_tokens, slimming, trade_off
from .choose import MISSED
from .clock import MACS_A_SECOND
from .cost import Costs, tokens_by_block
from .plan import Plan
from .progress import in_words

WANTED = {"speedup": "speed-up", "latency": "seconds a batch", "max_drop": "points lost at most"}
"""Fields of a target, as the page calls them."""


def page(record: dict[str, Any], plan: Plan, model: nn.Module, teacher: nn.Module, images: Tensor) -> Page:
    """One HTML page for a run of `lean`.

    Args:
        record: what plan.json holds.
        plan: the plan that was chosen.
        model: the lean model, fused.
        teacher: the model it was made from.
        images: a few images as the lean model takes them.
    """
    shown = Page("A lean model")
    shown.text(_verdict(record))
    shown.table(_before_and_after(record))
    points = _points(record)
    if len(points) > 1:
        shown.heading("What was tried")
        shown.text(
            "Each point is a plan that was judged without training: its speed, predicted or, where the plan was timed, "
            "measured, and its agreement with the model."
        )
        shown.pictures([trade_off(points, x="speedup", y="agreement", by="kind", names=False)])
    shown.heading("Block by block")
    shown.text(f"Images of {plan.size[0]} x {plan.size[1]} pixels.")
    shown.table(_blocks(record, plan, teacher))
    found = reducers(model).values()
    if found:
        mixed = any(not isinstance(each.decision, Decision) for each in found)
        shown.heading("Tokens on your images")
        if not mixed:
            shown.text(
                "What fades was dropped. Patches that were merged have the mean colour of all that their token stands "
                "for, within its outline."
            )
        shown.pictures([(slimming if mixed else kept_tokens)(model, images)])
    shown.heading("How")
    shown.facts(_about(record))
    steps = record.get("steps", [])
    if steps:
        shown.table([{"step": each["step"], "took": in_words(each["seconds"])} for each in steps])
    return shown


def _verdict(record: dict[str, Any]) -> str:
    final, target = record["final"], record["about"]["target"]
    wanted = ", ".join(f"{WANTED[key]} {value:g}" for key, value in target.items() if value is not None)
    short = final["met"] and (
        final["speedup"] < (target["speedup"] or 0) or final["seconds"] > (target["latency"] or math.inf)
    )
    nearly = "is met, but for what timing varies by"
    if record["about"]["place"][-1] == "macs":
        nearly = f"is met to within {MISSED - 1:.0%}"
    verdict = nearly if short else "is met" if final["met"] else "is not met"
    gained = f"the lean model is {final['speedup']:.2f} times as fast as the model it was made from"
    if record["about"]["place"][-1] == "macs":
        gained = f"the lean model takes {final['speedup']:.2f} times fewer multiplications; nothing was timed"
    elif record["about"]["place"][-1] == "torch":
        gained += ", both in their fastest form"
    missed = f" {final['missed'].capitalize()}." if "missed" in final else ""
    return f"The target ({wanted}) {verdict}: {gained}.{missed}"


def _about(record: dict[str, Any]) -> dict[str, Any]:
    """Where the models were timed and what they were judged by, in words."""
    about = record["about"]
    device, batch, dtype, runtime = about["place"]
    choosing, training, judging = (f"{images:,} images ({name})" for name, images in about["data"])
    where = f"{device}, batch {batch}, {dtype.removeprefix('torch.')}, {runtime}"
    return {
        **({"counted for": f"batch {batch}"} if runtime == "macs" else {"timed on": where}),
        "searched with": choosing,
        "trained on": _trained(record, training),
        "judged on": f"{judging}; agreement on {record['final']['images']:,} of them",
        "minutes": f"{record['final'].get('took', 0.0) / 60:.1f}",
    }


def _trained(record: dict[str, Any], images: str) -> str:
    """What the lean model was trained on, and whether that was kept."""
    if record.get("distilled") is None:
        return "nothing"
    if "training" in record:
        images = f"{record['training']['images']:,} of {images}, {record['training']['epochs']} epochs"
    kept = "" if record["distilled"]["kept"] == "trained" else "; it lost more than it gained and was not kept"
    return f"{images}{kept}"


def _before_and_after(record: dict[str, Any]) -> list[dict[str, Any]]:
    final, (_, batch, _, runtime) = record["final"], record["about"]["place"]
    form = ", optimised" if runtime == "torch" else ""
    before: dict[str, Any] = {"model": f"as it was{form}"}
    after: dict[str, Any] = {"model": f"lean{form}"}
    for row, seconds in ((before, final["teacher_seconds"]), (after, final["seconds"])):
        if runtime == "macs":
            row["million multiplications an image"] = seconds * MACS_A_SECOND / batch / 1e6
        else:
            row["images a second"] = batch / seconds
    before["speed-up"], after["speed-up"] = 1.0, final["speedup"]
    for key, title in (("top1", "top-1, %"), ("knn_top1", "top-1 by neighbours, %")):
        if key in final:
            before[title], after[title] = final[f"teacher_{key}"], final[key]
    before["agreement, %"], after["agreement, %"] = 100.0, final["agreement"]
    return [before, after]


def _points(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The plans that were judged, and the one that was chosen, as points of one picture."""
    teacher, chosen = record["teacher"]["seconds"], record.get("chosen", {}).get("plan")
    return [
        {
            "model": str(Plan.from_json(each["plan"])),
            "speedup": teacher / each.get("measured", each["predicted"]),
            "agreement": each["agreement"],
            "kind": "chosen" if each["plan"] == chosen else _kind(each["plan"]),
        }
        for each in record.get("candidates", ())
    ]


def _kind(plan: dict[str, Any]) -> str:
    return " + ".join(METHODS[name].__name__ for name in plan["shares"]) or "fewer pixels"


def _blocks(record: dict[str, Any], plan: Plan, teacher: nn.Module) -> list[dict[str, Any]]:
    costs = Costs.from_json(record["costs"])
    left = tokens_by_block(plan, costs.tokens[plan.size], costs.prefix)
    rows = []
    for index, (path, (before, behind)) in enumerate(zip(blocks_of(teacher), left)):
        changes = [
            f"{METHODS[name].__name__} {dict(given)[index]:.0%}" for name, given in plan.shares if index in dict(given)
        ]
        rows.append({"block": path, "tokens in": before, "tokens out": behind, "changed": ", ".join(changes) or "no"})
    return rows
