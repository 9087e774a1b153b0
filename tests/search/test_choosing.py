"""From predicted times to the plan that is built: which families are asked again, what is drawn, what is timed."""

import random
import types

import pytest
import torch
from families import BACKBONES, backbone

import leanformer as lf
from leanformer.core import blocks_of, fold, reducers
from leanformer.measure import Timing
from leanformer.search.choose import LADDER, Chooser, told
from leanformer.search.clock import Part, Place, clock_for
from leanformer.search.cost import LAST, fit_to_whole_models
from leanformer.search.cost_table import _example, _kinds, measure_costs, whole_models
from leanformer.search.directions import Direction, starts, varied, with_another
from leanformer.search.distil import Distiller
from leanformer.search.explore import Candidate, Explorer
from leanformer.search.final import Finish
from leanformer.search.judge import Judge, Verdict
from leanformer.search.memory import Memory
from leanformer.search.parts import split
from leanformer.search.plan import Plan, space_of
from leanformer.search.progress import Progress
from leanformer.search.shared import Shared, shareable
from leanformer.search.target import Options, Target
from leanformer.train.answer_features import AnswerFeatures

SIZE = (32, 32)
HERE = Place(torch.device("cpu"), 2, torch.float32)


def row(measured: float, loss: float, spread: float = 0.0, **shares) -> dict:
    plan = Plan.of(SIZE, shares)
    return {**told(Candidate(plan, 1.0, Verdict([loss] * 4, [1] * 4))), "measured": measured, "spread": spread}


def chooser_of(explorer, seconds: float = 1.0, trials: bool = False) -> Chooser:
    options = Options(target=Target(speedup=2.0), place=HERE, evaluations=4)
    return Chooser(
        backbone("vit"), seconds, explorer, None, None, options, Progress(quiet=True), Memory({}, lambda: None), trials
    )  # type: ignore[arg-type]  # fmt: skip


def explored() -> Explorer:
    teacher = backbone("vit")
    space = space_of(teacher)
    pixels = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    judge = Judge(teacher, space, lambda size: torch.nn.functional.interpolate(pixels, size))
    costs = measure_costs(teacher, space, clock_for(HERE, "macs"))
    fit_to_whole_models(costs, {SIZE: 1.0})
    return Explorer(space, costs, judge, few=8)


@pytest.mark.parametrize(
    ("tries", "trials", "settled"),
    [
        ([row(0.5, 0.3, tome={1: 0.3})], False, True),
        ([row(0.4, 0.3, tome={1: 0.3})], False, False),  # it gives away more than was asked for
        ([row(0.5, 0.3, tome={1: 0.3}), row(0.53, 0.2, evit={1: 0.3})], False, False),
        ([row(0.5, 0.3, tome={1: 0.3}), row(0.53, 0.4, evit={1: 0.3})], False, True),
        ([row(0.5, 0.3, tome={1: 0.3}), row(0.53, 0.4, evit={1: 0.3})], True, False),  # training may turn it round
        ([row(0.53, 0.2, evit={1: 0.3})], False, False),
        ([row(0.5, 0.3, spread=0.1, tome={1: 0.3})], False, False),  # the next timing may find it too slow
        ([row(0.48, 0.3, spread=0.1, tome={1: 0.3})], False, True),
        ([row(0.48, 0.3, spread=0.5, tome={1: 0.3})], False, True),  # not more than so much is given for noise
    ],
    ids=[
        "near",
        "far",
        "better missed",
        "worse missed",
        "worse missed before a trial",
        "none met",
        "noisy",
        "noisy and below",
        "very noisy and below",
    ],
)
def test_a_family_that_missed_and_may_be_better_is_asked_again(tries, trials, settled):
    explorer = types.SimpleNamespace(family=lambda plan: tuple(name for name, _ in plan.shares))
    assert chooser_of(explorer, trials=trials)._settled(tries, budget=0.5) is settled


def test_on_a_noisy_machine_the_search_is_asked_again_for_a_plan_that_keeps_the_budget_when_timed_again(monkeypatch):
    chooser, asked = chooser_of(explored()), []
    timed = iter([row(0.5, 0.2, spread=0.08, tome={1: 0.3}), row(0.48, 0.3, spread=0.08, tome={1: 0.4})])
    plans = iter(Plan.of(SIZE, {"tome": {1: share}}) for share in (0.3, 0.4))

    def searched(self, budget, share):
        asked.append(budget)
        return [Candidate(next(plans), budget, Verdict([0.1], [1]))]

    monkeypatch.setattr(Chooser, "searched", searched)
    monkeypatch.setattr(Chooser, "_timed", lambda self, found: [next(timed)])
    assert chooser.within(budget=0.5, entries={})["measured"] == 0.48
    assert asked == [0.5, pytest.approx(0.5 * 1.02 / 1.04)]


def test_a_latency_that_the_model_has_already_is_met_by_the_model_itself(monkeypatch):
    chooser = chooser_of(explored(), seconds=0.5)
    monkeypatch.setattr(Chooser, "searched", lambda *_: pytest.fail("searched"))
    assert chooser.within(budget=0.5, entries={})["plan"] == Plan(SIZE).to_json()


def test_of_the_plans_within_a_drop_the_fastest_as_measured_is_taken(monkeypatch):
    chooser, measured = chooser_of(explored()), iter((0.8, 0.9, 0.85, 0.95, *[0.99] * len(LADDER)))
    plans = iter(Plan.of(SIZE, {"tome": {1: 0.1 * step}}) for step in range(1, 20))
    good = lambda *_: [Candidate(next(plans), 1.0, Verdict([0.1], [1]))]  # noqa: E731
    monkeypatch.setattr(Chooser, "searched", good)
    monkeypatch.setattr(Chooser, "_timed", lambda self, found: [{**told(found[0]), "measured": next(measured)}])
    assert chooser.fastest_within(drop=0.5)["measured"] == 0.8


@pytest.mark.parametrize(("holds", "taken"), [(1.2, 1.182), (1.04, 1.0), (1.3, 1.308), (7.0, 6.0)])
def test_a_drop_that_only_plans_between_the_steps_keep_is_met_between_them(monkeypatch, holds, taken):
    def searched(self, budget, share=1.0):
        agreed = 1 if budget >= 1 / holds / 1.01 else 0
        return [Candidate(Plan.of(SIZE, {"tome": {1: round(0.5 - budget / 4, 3)}}), budget, Verdict([0.1], [agreed]))]

    monkeypatch.setattr(Chooser, "searched", searched)
    monkeypatch.setattr(Chooser, "_timed", lambda self, found: [{**told(found[0]), "measured": found[0].seconds}])
    chosen = chooser_of(explored()).fastest_within(drop=0.5)
    assert 1 / chosen["measured"] == pytest.approx(taken, abs=0.001)


def test_what_comes_in_steps_is_drawn_in_steps_that_count():
    space, draw = space_of(backbone("vit")), random.Random(0)
    drawn = [with_another({"tome": {1: 1.0}}, space, draw) for _ in range(40)]
    assert {weight for each in drawn for weight in each.get("riformer", {}).values()} == {1.0}
    assert {weight for each in drawn for weight in each.get("repa", {}).values()} == {1 / 3, 2 / 3, 1.0}


def test_plans_that_drop_tokens_and_remove_mixers_are_found_from_plans_that_drop_tokens():
    explorer, draw = explored(), random.Random(0)
    families = set()
    for _ in range(200):
        direction = varied(Direction(SIZE, {"tome": {1: 1.0}}), explorer.space, draw)
        families.add(explorer.family(explorer.at_strength(direction, 0.5)))
    assert ("riformer", "tome") in families


def test_smaller_images_alone_come_first_what_must_be_fitted_late_and_what_must_be_trained_last():
    explorer = explored()
    by_hand = sorted(starts(explorer.space), key=explorer._late)
    names = [name for each in by_hand for name in each.weights or [""]]
    assert not any(names[: len(explorer.space.sizes)])
    trained = names.count("sit")
    assert trained > 0
    assert set(names[-trained:]) == {"sit"}
    assert set(names[-trained - 4 : -trained]) <= {"repa", "riformer"}


def test_a_time_that_no_method_reaches_alone_is_reached_by_several():
    teacher = backbone("poolformer")
    space = space_of(teacher)
    costs = measure_costs(teacher, space, clock_for(HERE, "macs"))
    fit_to_whole_models(costs, {space.sizes[0]: 1.0})
    for removed in [key for key in costs.parts if key[0] == "mix" and key[2] == ""]:
        costs.parts[removed] = costs.parts[removed[0], removed[1], ""][0], [0.05]  # pooling takes time, if no products
    judge = Judge(teacher, space, lambda size: torch.randn(8, 3, *size, generator=torch.Generator().manual_seed(0)))
    explorer = Explorer(space, costs, judge, few=4)
    alone = min(costs.predict(explorer.at_strength(each, 4.0)) for each in starts(space))
    found = explorer.best(0.9 * alone, evaluations=4)
    assert found
    assert {name for name, _ in found[0].plan.shares} == {"repa", "riformer"}
    assert costs.predict(explorer.fastest()) < 0.9 * alone


def test_what_must_be_trained_for_begins_at_the_models_own_size_alone():
    space = space_of(backbone("vit"))
    sizes = {name: {each.size for each in starts(space) if name in each.weights} for name in space.choices}
    assert sizes.pop("sit") == {SIZE}
    assert all(found == set(space.sizes) for found in sizes.values())
    assert len(space.sizes) > 1


@pytest.mark.parametrize("shares", [{1: 0.3, 2: 0.4}, {2: 0.5}])
def test_a_plan_with_new_weights_is_the_same_model_each_time_it_is_built(shares):
    judge, plan = explored().judge, Plan.of(SIZE, {"sit": shares})
    torch.manual_seed(1)
    one = judge(plan)
    torch.manual_seed(2)
    assert judge.verdict(judge.model(plan), SIZE).losses == one.losses
    assert judge.verdict(plan.build(judge.teacher), SIZE).losses == one.losses


@pytest.mark.parametrize("name", ["evit", "sit", "tome"])
@pytest.mark.parametrize(("side", "width"), [(32, 32), (112, 48)])
def test_multiplications_of_plans_that_change_the_number_of_tokens_are_predicted(name, side, width):
    teacher = lf.create("vit", img_size=side, patch_size=8, embed_dim=width, depth=4, num_heads=2, num_classes=5)
    space, clock, draw = space_of(teacher, (name,)), clock_for(HERE, "macs"), random.Random(0)
    costs = measure_costs(teacher, space, clock)
    whole = clock.models(whole_models(teacher, space, clock))
    fit_to_whole_models(costs, {each: timing.median for each, timing in whole.items()})
    for _ in range(12):
        blocks = draw.sample(space.choices[name].blocks, draw.randint(1, 3))
        shares = {block: draw.uniform(0.02, space.choices[name].most) for block in blocks}
        plan = Plan.of(draw.choice(space.sizes), {name: shares})
        counted = clock.models({plan: fold(plan.build(teacher))})[plan].median
        assert costs.predict(plan) == pytest.approx(counted, rel=0.03), plan


def test_methods_whose_weights_are_made_for_one_number_of_tokens_share_none():
    space = space_of(backbone("vit"))
    assert "sit" in space.choices
    assert shareable(space) == ["evit", "tome"]


def test_removed_token_mixers_stay_removed_behind_a_slimmed_seam_and_not_where_tokens_are_dropped():
    space = space_of(backbone("vit"))
    for name, left in (("sit", {1: 1.0, 2: 1.0}), ("evit", {1: 1.0})):
        kept = space.without_clashes({name: {2: 0.5}, "riformer": {1: 1.0, 2: 1.0}})
        assert kept["riformer"] == left
        Plan.of(SIZE, kept).build(backbone("vit"))


def slowed(monkeypatch):
    """An explorer whose every comparison takes a second of a clock that nothing else moves."""
    explorer, now = explored(), [0.0]
    monkeypatch.setattr("leanformer.search.explore.time.monotonic", lambda: now[0])
    compared = explorer.judge._compared

    def slow(*given):
        now[0] += 1.0
        return compared(*given)

    monkeypatch.setattr(explorer.judge, "_compared", slow)
    return explorer


def test_first_looks_take_half_of_the_time_at_most_and_the_race_has_the_rest(monkeypatch):
    explorer = slowed(monkeypatch)
    budget = explorer.costs.predict(Plan(SIZE)) / 1.3
    explorer.best(budget, evaluations=1000, seconds=24)
    made_by_hand = {explorer.within(budget, each) for each in starts(explorer.space)}
    assert len(made_by_hand & explorer.judge.known.keys()) == 12 < len(made_by_hand)
    assert max(len(losses) for losses, _ in explorer.judge.known.values()) == 16


def test_a_search_that_ends_by_its_minutes_is_told_of_by_its_minutes(monkeypatch):
    explorer, told_of = slowed(monkeypatch), []
    explorer.best(explorer.costs.predict(Plan(SIZE)) / 1.3, evaluations=1000, seconds=24, done=told_of.append)
    assert told_of[11] == pytest.approx(500, abs=50)  # a bar that counts images alone would promise hours
    assert max(told_of) == 1000


def test_parts_are_timed_down_to_the_few_tokens_that_are_left_behind_many_reductions():
    teacher = lf.create("vit", img_size=112, patch_size=8, embed_dim=16, depth=4, num_heads=2, num_classes=3)
    costs = measure_costs(teacher, space_of(teacher, sizes=False), clock_for(HERE, "macs"))
    assert costs.parts["mix", 0, ""][0][0] <= 12
    assert all(curve[0][0] <= 12 for curves in costs.overheads.values() for curve in curves)


def test_blocks_that_differ_in_their_drop_path_alone_are_timed_once():
    model = lf.create("vit", img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2, drop_path_rate=0.2)
    assert _kinds(list(blocks_of(fold(model)).values()), [17] * 4) == [0, 0, 0, 0]


def test_blocks_with_and_without_shifted_windows_are_timed_apart():
    swin = lf.create(
        "swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(1, 2)
    )
    assert _kinds(list(blocks_of(fold(swin)).values()), [256, 256, 64, 64]) == [0, 1, 2, 3]


def test_maps_of_images_that_are_no_squares_have_their_shape():
    swin = lf.create(
        "swin_tiny_patch4_window7_224", img_size=(64, 48), window_size=4, embed_dim=16, depths=(2, 2), num_heads=(1, 2)
    )
    first = next(iter(blocks_of(swin).values()))
    assert _example(first, 192, HERE, (64, 48)).shape == (2, 16, 12, 16)
    space = space_of(swin)
    costs = measure_costs(swin, space, clock_for(HERE, "eager", repeats=1))
    assert costs.tokens[64, 48] == [192, 192, 48, 48]


def test_a_part_is_timed_where_it_lies():
    part = Part(torch.nn.Linear(2, 2), torch.zeros(1, 2), "linear")
    assert clock_for(HERE, "eager", repeats=1).parts({"linear": part})["linear"] > 0


def test_multiplications_of_models_that_differ_in_their_tokens_alone_are_not_taken_for_each_other():
    plain, registers = (
        lf.create("vit", img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2, num_classes=3, reg_tokens=many)
        for many in (0, 4)
    )
    counted = clock_for(HERE, "macs").models({"plain": plain, "registers": registers})
    assert counted["plain"].median < counted["registers"].median


def test_a_plan_of_shared_weights_has_the_method_where_its_own_tokens_go_and_nowhere_else():
    plans = [Plan.of(SIZE, {"tome": {2: 0.4}}), Plan.of(SIZE, {"tome": {1: 0.2, 2: 0.4}}), Plan(SIZE)]
    shared = Shared(backbone("vit"), plans)
    with torch.no_grad():
        shared.student.head.bias.add_(1)
    models = [shared.model(shared.student, plan) for plan in plans]
    assert [len(reducers(model)) for model in models] == [2, 3, 0]  # each block behind knows the sizes
    assert all(torch.equal(model.head.bias, shared.student.head.bias) for model in models)


def test_the_model_as_it_is_is_not_timed_against_itself(monkeypatch):
    teacher = backbone("vit")
    timed = []

    def models(given, done):
        timed.append(list(given))
        return {name: Timing([1.0]) for name in given}

    monkeypatch.setattr(Finish, "_judged", lambda *_: {"agreement": 100.0})
    finish = Finish(teacher, space_of(teacher), None, types.SimpleNamespace(models=models), None)  # type: ignore[arg-type]
    assert finish(Plan(SIZE), teacher, Target(speedup=1.0), 1.0)["met"]
    finish(Plan.of(SIZE, {"tome": {1: 0.2}}), teacher, Target(speedup=1.0), 1.0)
    assert timed == [["teacher"], ["teacher", "lean"]]


def test_shared_weights_of_a_backbone_without_a_head_learn_its_features():
    teacher = lf.with_head(backbone("vit"), 0)
    shared = Shared(teacher, [Plan.of(SIZE, {"tome": {1: share}}) for share in (0.2, 0.4)])
    assert isinstance(shared.objective().parts[0], AnswerFeatures)
    assert not shared.objective().needs_labels()


@pytest.mark.parametrize(("pace", "epochs", "images"), [(1e9, 1, 8), (1.0, 2, 32), (0.1, 13, 56)])
def test_minutes_are_used_up_and_the_warm_up_ends_within_them(pace, epochs, images, monkeypatch):
    data = (torch.zeros(80, 3, 32, 32, dtype=torch.uint8), torch.arange(80) % 3)
    options = Options(target=Target(speedup=2.0), place=HERE, minutes=10 / 60)
    distiller = Distiller(backbone("vit"), split(data, choosing=4, judging=20), options, Progress(quiet=True))
    monkeypatch.setattr(Distiller, "_pace", lambda *_: pace)
    entries: dict = {}
    training, recipe = distiller.affordable(backbone("vit"), entries)
    assert recipe.warmup_epochs <= recipe.epochs / 5
    assert (recipe.epochs, len(training)) == (entries["training"]["epochs"], entries["training"]["images"])
    afforded = max(1, int(0.8 * 10 / pace))
    assert 0.85 * afforded <= recipe.epochs * (len(training) // recipe.batch_size) <= afforded


def test_a_model_of_one_block_is_not_searched_for_fewer_tokens():
    alone = lf.create("vit", img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2, num_classes=4)
    space = space_of(alone)
    assert list(space.choices) == ["repa"]
    assert measure_costs(alone, space, clock_for(HERE, "macs")).kinds == [0]


def test_a_method_that_offers_nothing_on_a_model_is_refused_by_name():
    with pytest.raises(ValueError, match="slab offers nothing to search on this model; those that do: evit"):
        space_of(backbone("vit"), ("slab",))


@pytest.mark.parametrize("family", ["vit", "swin", "poolformer"])
def test_what_lies_outside_of_blocks_is_found_and_sums_are_right_at_every_size(family):
    teacher = backbone(family)
    space, clock = space_of(teacher), clock_for(HERE, "macs")
    costs = measure_costs(teacher, space, clock)
    seconds = {name: timing.median for name, timing in clock.models(whole_models(teacher, space, clock)).items()}
    fit_to_whole_models(costs, seconds)
    assert costs.factors[1] == pytest.approx(
        [1.0] * len(costs.factors[1]), abs=0.02
    )  # the sum of all parts is the whole
    assert 0 < costs.outside[space.sizes[0]] < seconds[LAST] < seconds[space.sizes[0]]
    for size in space.sizes:
        whole = clock.models({size: fold(Plan(size).build(teacher))})[size].median
        assert costs.predict(Plan(size)) == pytest.approx(whole, rel=0.02)


@pytest.mark.parametrize("family", BACKBONES)
def test_every_part_that_a_plan_can_be_made_of_is_timed_on_every_family(family):
    """Eager: parts without any weight, as a removed token mixer can leave, run and are counted too."""
    teacher = backbone(family)
    space = space_of(teacher, sizes=False)
    for runtime in ("macs", "eager"):
        costs = measure_costs(teacher, space, clock_for(HERE, runtime, repeats=1))
        assert len(costs.kinds) == len(blocks_of(teacher))
        assert all(min(seconds) >= 0 for _, seconds in costs.parts.values())


@pytest.mark.parametrize(("images", "batch", "rate"), [(100_000, 256, 1e-4), (512, 64, 5e-5), (128, 16, 2.5e-5)])
def test_few_images_are_learnt_in_small_batches_at_a_lower_rate(images, batch, rate):
    data = (torch.zeros(80, 3, 32, 32, dtype=torch.uint8), torch.arange(80) % 3)
    options = Options(target=Target(speedup=2.0), place=HERE)
    recipe = Distiller(backbone("vit"), split(data, choosing=4, judging=20), options, Progress(quiet=True)).recipe(
        images
    )
    assert (recipe.batch_size, recipe.learning_rate) == (batch, pytest.approx(rate))
