"""python -m lab plans: what `lean` chooses for a row of speed-ups, beside plans made by hand at one time.

costs    timed once, alone on the device       search   for each target, on photographs without labels
judge    top-1 and agreement of these plans on labelled photographs, without training
check    predicted against measured time, for the plans chosen and for random ones
again    what the table of costs predicts of the plans in the file that check wrote, with every unchanged model in it
table    all of it, and what `python -m lab imagenet --plans FOLDER` made of the plans by distillation, side by side

With --runtime macs nothing is timed, so that any machine will do:
python -m lab plans --runtime macs --gmacs 0.62 0.72 --targets 1.5 2 2.5 3 --step search|judge …
"""

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leanformer.data import Arrays, sample_images
from leanformer.measure import console
from leanformer.search.clock import MACS_A_SECOND, Clock, Place, clock_for
from leanformer.search.cost import Costs, fit_to_whole_models
from leanformer.search.cost_table import measure_costs, whole_models
from leanformer.search.explore import Explorer
from leanformer.search.judge import Judge
from leanformer.search.plan import Plan, Space, space_of

from .arguments import device_of
from .compile_together import wait_for
from .imagenet import LEAN
from .photographs import photographs, teacher_of, unlabelled
from .plans_again import Timed, predict_again
from .plans_by_hand import by_hand
from .plans_checked import Check
from .plans_judged import judge_plans
from .plans_table import plans_table


@dataclass(frozen=True)
class Study:
    """What every step needs."""

    teacher: nn.Module
    space: Space
    clock: Clock
    folder: Path

    def say(self, text: str) -> None:
        console().print(text, highlight=False, markup=False)


def plans(
    checkpoint: Path,
    data: str | None = None,
    step: Literal["costs", "search", "judge", "check", "again", "table", "all"] = "all",
    judge: str | None = None,
    photos: int = 800,
    targets: tuple[float, ...] = LEAN,
    gmacs: tuple[float, ...] = (),
    methods: tuple[str, ...] = (),
    images: int = 512,
    evaluations: int = 400,
    minutes: float = 5.0,
    few: int = 128,
    random_plans: int = 60,
    batch: int = 256,
    device: str | None = None,
    dtype: str | None = None,
    runtime: str = "torch",
    repeats: int = 7,
    seed: int = 0,
    workers: int = 1,
    go: Path | None = None,
    distilled: Path | None = None,
    folder: Path = Path("runs/plans"),
    output: Path = Path("results/lean_plans.json"),
) -> None:
    """Search plans for several speed-ups over the optimised model, with their predicted and measured times.

    Example: python -m lab plans --checkpoint vit_tiny.safetensors --data pack:coco --output results/plans.json

    Args:
        checkpoint: Weights of vit_tiny_patch16_224.
        data: Photographs without labels, for choosing; by default the half of --judge that no model is judged by.
        step: costs (nothing else may run then), search, judge, check (nothing else may run then either), again (what
            check found, predicted anew), table (what judge, check and a study of the plans found), or all.
        judge: Labelled photographs, for the step judge.
        photos: How many of them.
        targets: Speed-ups over the optimised model.
        gmacs: More targets, as billions of multiplications an image, with --runtime macs.
        methods: Only these methods are searched; all that serve the model by default.
        images: Photographs on which plans are compared.
        evaluations: Plans tried for each target.
        minutes: Of search for each target at most.
        few: Photographs on which a promising plan is tried.
        random_plans: So many plans drawn at random whose predicted time is compared with the measured one.
        batch: Images at a time.
        device: cpu or cuda; by default the GPU if there is one.
        dtype: bfloat16 on a GPU, float32 on a CPU by default.
        runtime: torch, eager, onnxruntime, openvino, or macs: multiplications counted instead of time.
        repeats: How often each model is timed.
        seed: Of the search.
        workers: Processes that compile side by side for the step check; they still time in turn.
        go: For the steps costs and check (with several workers): a file. What is compiled is timed when it is there.
        distilled: What `python -m lab imagenet --plans FOLDER` wrote, for the step table.
        folder: For what the steps leave to each other.
        output: The result file.
    """
    if step == "table":
        return plans_table(output, distilled)
    if step == "again":
        return predict_again(output)
    teacher = teacher_of(checkpoint)
    space = space_of(teacher, methods or None)
    study = Study(teacher, space, clock_for(_place(device, batch, dtype), runtime, repeats), folder)
    folder.mkdir(parents=True, exist_ok=True)
    if step in ("costs", "all"):
        costs, whole = measured_costs(study, go)
        (folder / "costs.json").write_text(json.dumps(Timed(costs, whole).to_json()))
    timed = Timed.from_json(json.loads((folder / "costs.json").read_text()))
    costs, seconds = timed.costs, timed.teacher
    wanted = {f"{target:g} times": seconds / target for target in targets}
    wanted |= {f"{giga:g} GMACs": giga * 1e9 * batch / MACS_A_SECOND for giga in gmacs}
    if step in ("search", "judge", "all"):
        pool = _pool(data, judge, 4 * images)
        explorer = _explorer(study, costs, pool, images, few, seed)
        if step != "judge":
            search(study, explorer, wanted, evaluations, minutes)
        if step == "judge" or (step == "all" and judge is not None):
            if judge is None:
                raise ValueError("the step judge needs labelled photographs; give --judge")
            judge_plans(study.folder, explorer.judge, judge, photos, output)
    if step == "check" or (step == "all" and runtime != "macs"):
        Check(checkpoint, study.clock, timed).run(space, folder, random_plans, workers, output, go)


def _place(device: str | None, batch: int, dtype: str | None) -> Place:
    where = device_of(device)
    kind = dtype or ("bfloat16" if where.type == "cuda" else "float32")
    return Place(where, batch, getattr(torch, kind))


def _pool(data: str | None, judge: str | None, most: int) -> Arrays:
    """Photographs for choosing: what plans lose depends on them, so best of the kind that plans are judged by."""
    if data is not None:
        return unlabelled(data, most)
    if judge is None:
        raise ValueError("give photographs to choose by: --data, or --judge, of which one half is for choosing")
    return Arrays.unlabelled(photographs(judge)["choose"].images[:most])


def measured_costs(study: Study, go: Path | None = None) -> tuple[Costs, dict[Any, float]]:
    """The table of costs on this device, and the seconds a batch of the whole unchanged models that it was fitted to.

    Args:
        study: the teacher, what plans are made of, and the clock.
        go: a file; nothing is timed before it is there.
    """
    whole = whole_models(study.teacher, study.space, study.clock)
    if go is not None:
        with tempfile.TemporaryDirectory() as folder:  # the compiler finds them again when they are timed
            for model in whole.values():
                study.clock.whole(model, Path(folder))

    def compiled(ready: int, total: int) -> None:
        if ready == total - study.clock.repeats:
            wait_for(go)

    costs = measure_costs(study.teacher, study.space, study.clock, compiled)
    timed = {name: timing.median for name, timing in study.clock.models(whole).items()}
    fit_to_whole_models(costs, timed)
    return costs, timed


def _explorer(study: Study, costs: Costs, pool: Arrays, images: int, few: int, seed: int) -> Explorer:
    teacher = study.teacher.to(study.clock.place.device)

    def view(size: tuple[int, int]) -> Tensor:
        return sample_images(Plan(size).build(teacher), pool, images, seed=seed)

    judge, kept = Judge(teacher, study.space, view), study.folder / "judged.json"
    judge.read_json(json.loads(kept.read_text()) if kept.is_file() else [])
    return Explorer(study.space, costs, judge, few=few, seed=seed)


def search(study: Study, explorer: Explorer, wanted: dict[str, float], evaluations: int, minutes: float) -> None:
    """The best plan for each target, and those made by hand at the same predicted time, each in a file.

    What was judged is kept in the folder; a search that the minutes have stopped goes on from there when called again.
    """
    for target, budget in wanted.items():
        began = time.monotonic()
        best = explorer.best(budget, evaluations, seconds=60 * minutes)
        (study.folder / "judged.json").write_text(json.dumps(explorer.judge.to_json()))
        if not best:
            study.say(f"{target}: out of reach")
            continue
        took = time.monotonic() - began
        hand = {name: _told(plan, explorer) for name, plan in by_hand(explorer, budget)}
        found = [_told(each.plan, explorer) for each in best]
        study.say(f"{target}: {best[0].plan}, agreement {best[0].verdict.agreement:.1f}%, {took:.0f} s")
        content = {"target": target, "best": found, "hand": hand, "tried": len(explorer.judge.known), "seconds": took}
        (study.folder / f"lean {target}.json").write_text(json.dumps(content))


def _told(plan: Plan, explorer: Explorer) -> dict[str, Any]:
    verdict = explorer.judge(plan)
    return {
        "plan": plan.to_json(), "predicted": explorer.costs.predict(plan), "loss": verdict.loss,
        "agreement": verdict.agreement, "family": " + ".join(explorer.family(plan)),
    }  # fmt: skip
