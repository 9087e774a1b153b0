"""python -m lab plans: what `lean` chooses for a row of speed-ups, beside plans made by hand at one time.

costs    timed once, alone on the device       search   for each target, on photographs without labels
check    predicted against measured time, for the plans chosen and for random ones
"""

import json
import random
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import leanformer as lf
from leanformer.core import fold
from leanformer.data.samples import sample_images
from leanformer.measure import record, write_result
from leanformer.measure.console import console
from leanformer.search.clock import Clock
from leanformer.search.cost import Costs, Place, calibrate_scale, measure_costs
from leanformer.search.explore import Explorer
from leanformer.search.judge import Judge
from leanformer.search.plan import Plan, Space, space_of

from .imagenet import LEAN, teacher_of, unlabelled

BY_HAND = {
    "EViT in blocks 3, 6, 9": ("evit", (3, 6, 9)),
    "ToMe in blocks 3, 6, 9": ("tome", (3, 6, 9)),
    "ToMe in every block": ("tome", tuple(range(12))),
    "RePa in every block": ("repa", tuple(range(12))),
}


def plans(
    checkpoint: Path,
    data: str,
    step: Literal["costs", "search", "check", "all"] = "all",
    targets: tuple[float, ...] = LEAN,
    images: int = 512,
    evaluations: int = 400,
    few: int = 128,
    random_plans: int = 60,
    batch: int = 256,
    device: str | None = None,
    dtype: str | None = None,
    repeats: int = 7,
    seed: int = 0,
    worker: str = "0/1",
    folder: Path = Path("runs/plans"),
    output: Path = Path("results/lean_plans.json"),
) -> None:
    """Search plans for several speed-ups over the optimised model, with their predicted and measured times.

    Example: python -m lab plans --checkpoint vit_tiny.safetensors --data pack:coco --output results/plans.json

    Args:
        checkpoint: Weights of vit_tiny_patch16_224.
        data: Photographs without labels, for choosing.
        step: costs (nothing else may run then), search, check (nothing else may run then either), or all.
        targets: Speed-ups over the optimised model.
        images: Photographs on which plans are compared.
        evaluations: Plans tried for each target.
        few: Photographs on which every plan is tried.
        random_plans: So many plans drawn at random whose predicted time is compared with the measured one.
        batch: Images at a time.
        device: cpu or cuda; by default the GPU if there is one.
        dtype: bfloat16 on a GPU, float32 on a CPU by default.
        repeats: How often each model is timed.
        seed: Of the search.
        worker: Which of how many processes this is, as 0/4, when compiling for the check ahead of it.
        folder: For what the steps leave to each other.
        output: The result file.
    """
    place = _place(device, batch, dtype)
    teacher = teacher_of(checkpoint)
    space = space_of(teacher)
    folder.mkdir(parents=True, exist_ok=True)
    if step in ("costs", "all"):
        costs, seconds = measured_costs(teacher, space, place, repeats)
        (folder / "costs.json").write_text(json.dumps({"costs": costs.to_json(), "teacher": seconds}))
    kept = json.loads((folder / "costs.json").read_text())
    costs, seconds = Costs.from_json(kept["costs"]), kept["teacher"]
    if step in ("search", "all"):
        for target in targets:
            found = searched(teacher, space, costs, seconds / target, place, data, images, few, evaluations, seed)
            (folder / f"lean {target:g}.json").write_text(json.dumps({"target": target, **found}))
    if step in ("check", "all"):
        check(teacher, space, costs, seconds, place, folder, output, random_plans, repeats, worker)


def _place(device: str | None, batch: int, dtype: str | None) -> Place:
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    kind = dtype or ("bfloat16" if where.type == "cuda" else "float32")
    return Place(where, batch, getattr(torch, kind))


def measured_costs(teacher: nn.Module, space: Space, place: Place, repeats: int) -> tuple[Costs, float]:
    """The table of costs on this device, and what the teacher's own optimised form takes a batch."""
    ends = (space.sizes[0], space.sizes[-1])
    timed = Clock(place, repeats=repeats).times({size: fold(Plan(size).build(teacher)) for size in ends})
    costs = measure_costs(teacher, space, place, repeats, said=lambda text: console().print(text, highlight=False))
    calibrate_scale(costs, space, {size: timing.median for size, timing in timed.items()})
    return costs, timed[ends[0]].median


def searched(
    teacher: nn.Module, space: Space, costs: Costs, budget: float, place: Place, data: str, images: int, few: int,
    evaluations: int, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """The best plan within the budget, and the best made by hand at the same predicted time."""
    pool = unlabelled(data, 4 * images)
    teacher = teacher.to(place.device)

    def view(size: tuple[int, int]) -> Tensor:
        return sample_images(Plan(size).build(teacher), pool, images, seed=seed)

    judge = Judge(teacher, space, view)
    explorer = Explorer(space, costs, judge, few=few, seed=seed)
    best = explorer.best(budget, evaluations)
    hand: dict[str, Any] = {}
    for name, (method, blocks) in BY_HAND.items():
        plan = explorer.within(budget, {method: dict.fromkeys(blocks, 1.0)}, space.sizes[0])
        if plan is not None:
            hand[name] = _told(plan, costs, judge)
    for size in space.sizes:
        if costs.predict(Plan(size)) <= budget:
            hand["fewer pixels"] = _told(Plan(size), costs, judge)
            break
    found = [_told(each.plan, costs, judge) for each in best]
    console().print(
        f"{1e3 * budget:.3f} ms: {best[0].plan}, agreement {best[0].verdict.agreement:.1f}%", highlight=False
    )
    return {"best": found[:5], "hand": hand, "tried": len(explorer.seen)}


def _told(plan: Plan, costs: Costs, judge: Judge) -> dict[str, Any]:
    verdict = judge(plan)
    return {
        "plan": plan.to_json(),
        "predicted": costs.predict(plan),
        "loss": verdict.loss,
        "agreement": verdict.agreement,
    }


def check(
    teacher: nn.Module, space: Space, costs: Costs, seconds: float, place: Place, folder: Path, output: Path,
    random_plans: int, repeats: int, worker: str,
) -> None:  # fmt: skip
    """Measure the plans chosen, those made by hand, and random ones; several workers only compile ahead of that."""
    wanted: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("lean *.json")):
        found = json.loads(path.read_text())
        wanted[f"lean {found['target']:g}"] = found["best"][0]
        wanted |= {f"{name}, {found['target']:g}": told for name, told in found["hand"].items()}
    for index, plan in enumerate(drawn(space, costs, seconds, random_plans)):
        wanted[f"random {index}"] = {"plan": plan.to_json(), "predicted": costs.predict(plan)}
    mine, workers = (int(number) for number in worker.split("/"))
    names = list(wanted)[mine::workers]
    clock = Clock(place, repeats=repeats)
    rows = []
    for start in range(0, len(names), 6):
        some = {
            name: fold(Plan.from_json(wanted[name]["plan"]).build(teacher.cpu())) for name in names[start : start + 6]
        }
        timed = clock.times({"teacher": fold(lf.apply(teacher)), **some})
        for name in some:
            speedup, spread = timed[name].speedup(timed["teacher"])
            error = wanted[name]["predicted"] / timed[name].median - 1
            rows.append({"model": name, **wanted[name], "measured": timed[name].median, "error": error,
                         "speedup": speedup, "spread": spread})  # fmt: skip
        torch._dynamo.reset()
    if workers > 1:
        return
    errors = torch.tensor([row["error"] for row in rows if row["model"].startswith("random")]).abs()
    about = {"teacher_seconds": seconds, "batch": place.batch, "dtype": str(place.dtype)}
    if len(errors):
        about |= {
            "median_error": errors.median().item(),
            "worst_error": errors.max().item(),
            "plans_checked": len(errors),
        }
    write_result(record("lean plans", rows, place.device, **about), output)
    chosen = {row["model"]: row for row in rows if row["model"].startswith("lean")}
    (folder / "plans.json").write_text(json.dumps({"plans": chosen}, indent=1))
    console().print(about)


def drawn(space: Space, costs: Costs, seconds: float, count: int, seed: int = 1) -> list[Plan]:
    """Plans at random: any method in any blocks at any strength, at most sizes, within the costs that were timed."""
    draw = random.Random(seed)
    explorer = Explorer(space, costs, judge=None)  # type: ignore[arg-type]
    found: list[Plan] = []
    while len(found) < count:
        direction = explorer._with_another({}, draw)
        for _ in range(draw.randint(1, 6)):
            direction, size = explorer.varied((direction, draw.choice(space.sizes)), (direction, space.sizes[0]), draw)
        plan = explorer._at(direction, size, draw.uniform(0.2, 1.0))
        if plan not in found and 0.2 * seconds < costs.predict(plan) < seconds:
            found.append(plan)
    return found
