"""The page that tells what lean chose and why: the trade-off, the plan block by block, kept tokens, what it gained."""

from typing import Any

from torch import Tensor, nn

from ..core import METHODS, blocks_of, reducers
from ..visualise import Page, kept_tokens, trade_off
from .cost import Costs, tokens_by_block
from .plan import Plan


def page(record: dict[str, Any], plan: Plan, model: nn.Module, teacher: nn.Module, images: Tensor) -> Page:
    """One HTML page for a run of `lean`.

    Args:
        record: what plan.json holds.
        plan: the plan that was chosen.
        model: the lean model, fused.
        teacher: the model it was made from.
        images: a few images as the lean model takes them.
    """
    final = record["final"]
    shown = Page("A lean model")
    verdict = "The target is met" if final["met"] else "The target is not met"
    shown.text(f"{verdict}: {final['speedup']:.2f} times as fast as the optimised model itself. {plan}")
    shown.table(_before_and_after(record))
    if record.get("candidates"):
        shown.heading("What was tried")
        shown.text(
            "Each point is a plan that was judged without training: predicted speed, and agreement with the model."
        )
        shown.pictures([trade_off(_points(record), x="speedup", y="agreement", by="kind")])
    shown.heading("Block by block")
    shown.table(_blocks(record, plan, teacher))
    if reducers(model):
        shown.heading("Tokens on your images")
        shown.pictures([kept_tokens(model, images)])
    shown.heading("How")
    shown.facts(
        {"target": record["about"]["target"], "place": record["about"]["place"], "data": record["about"]["data"]}
    )
    return shown


def _before_and_after(record: dict[str, Any]) -> list[dict[str, Any]]:
    final, batch = record["final"], record["about"]["place"][1]
    before = {"model": "as it was, optimised", "images a second": batch / final["teacher_seconds"]}
    after = {"model": "lean, optimised", "images a second": batch / final["seconds"]}
    if "top1" in final:
        before["top-1, %"], after["top-1, %"] = final["teacher_top1"], final["top1"]
    before["agreement, %"], after["agreement, %"] = 100.0, final["agreement"]
    return [before, after]


def _points(record: dict[str, Any]) -> list[dict[str, Any]]:
    teacher = record["teacher"]["seconds"]
    return [
        {
            "model": str(Plan.from_json(each["plan"])),
            "speedup": teacher / each["predicted"],
            "agreement": each["agreement"],
            "kind": " + ".join(METHODS[name].__name__ for name in each["plan"]["shares"]) or "fewer pixels",
        }
        for each in record["candidates"]
    ]


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
