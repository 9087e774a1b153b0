"""Plans, their costs and the search, on a tiny ViT with a table of costs made by hand."""

import dataclasses
import io
import json
import os
import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from families import backbone
from PIL import Image

import leanformer as lf
from leanformer.core import METHODS, input_of
from leanformer.data import EvaluationView, open_data
from leanformer.data.samples import sample_images
from leanformer.search.cost import Costs, tokens_by_block
from leanformer.search.directions import Direction, starts, varied
from leanformer.search.explore import Explorer
from leanformer.search.judge import Judge, Verdict, accuracies
from leanformer.search.parts import split
from leanformer.search.plan import Plan, space_of
from leanformer.search.target import Target, seconds_of

SIZE = (32, 32)


def costs_of(space) -> Costs:
    """A block takes a millisecond a token in each half; reducing takes nothing."""
    variants = {"mix": ["", "gone"], "ffn": ["", "0.25", "0.5", "0.75"]}
    parts = {
        (slot, 0, variant): ([1, 17], [f * 1e-3, f * 17e-3])
        for slot, names in variants.items()
        for variant in names
        for f in [{"": 1.0, "gone": 0.0}.get(variant, 1 - float(variant or 0) if variant not in ("", "gone") else 1.0)]
    }
    nothing = ([1, 17], [0.0, 0.0])
    tokens = {size: [1 + (size[0] // 8) * (size[1] // 8)] * 4 for size in space.sizes}
    return Costs(
        parts=parts, overheads=dict.fromkeys(space.reducing("mix"), (nothing, nothing)),
        seams={name: [(0.0, nothing), (1.0, nothing)] for name in space.reducing("pre")},
        outside=dict.fromkeys(space.sizes, 0.0), kinds=[0] * 4, tokens=tokens, prefix=1,
    )  # fmt: skip


@pytest.fixture
def explorer() -> Explorer:
    teacher = backbone("vit")
    space = space_of(teacher)
    pixels = torch.randn(16, 3, 64, 64, generator=torch.Generator().manual_seed(0))

    def view(size):
        return torch.nn.functional.interpolate(pixels, size)

    return Explorer(space, costs_of(space), Judge(teacher, space, view), few=8)


@pytest.mark.parametrize("name", ["evit", "sit", "tome"])
def test_token_counts_of_a_plan_are_those_that_its_model_has(name):
    teacher = backbone("vit")
    plan = Plan.of(SIZE, {name: {1: 0.3, 2: 0.45, 3: 0.2}})
    model, seen = plan.build(teacher), []
    for block in model.blocks:
        block.ffn.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[1]))
    model(torch.zeros(1, *input_of(model)["input_size"]))
    assert [behind for _, behind in tokens_by_block(plan, [17] * 4, 1)] == seen


def test_a_plan_is_the_same_after_json():
    plan = Plan.of(SIZE, {"tome": {1: 0.25}, "repa": {0: 0.5, 3: 0.75}})
    assert Plan.from_json(plan.to_json()) == plan


def test_a_token_mixer_behind_a_slimmed_seam_has_fewer_tokens_already(explorer):
    slimmed, dropped = (Plan.of(SIZE, {name: {2: 0.5}}) for name in ("sit", "evit"))
    costs = explorer.costs  # a millisecond a token in each half
    assert costs.predict(Plan(SIZE)) - costs.predict(slimmed) == pytest.approx((2 * 8 + 2 * 8) * 1e-3)
    assert costs.predict(Plan(SIZE)) - costs.predict(dropped) == pytest.approx((7 + 2 * 7) * 1e-3)  # one is fused


def test_what_a_seam_takes_lies_between_the_shares_and_the_tokens_that_were_timed():
    costs = Costs(seams={"sit": [(0.1, ([4, 8], [4.0, 8.0])), (0.5, ([4, 8], [2.0, 4.0]))]})
    assert costs.seam("sit", 0.1, 8) == 8
    assert costs.seam("sit", 0.3, 6) == pytest.approx(4.5)
    assert Costs.from_json(json.loads(json.dumps(costs.to_json()))) == costs


def test_every_plan_of_the_search_keeps_its_budget_and_can_be_built(explorer):
    whole = explorer.costs.predict(Plan(SIZE))
    draw = random.Random(0)
    direction = Direction(SIZE)
    for _ in range(30):
        direction = varied(direction, explorer.space, draw)
        plan = explorer.within(0.7 * whole, direction)
        if plan is not None:
            assert explorer.costs.predict(plan) <= 0.7 * whole
            plan.build(backbone("vit"))  # no two methods claim one slot


def test_the_search_returns_plans_within_the_budget_the_best_first(explorer):
    whole = explorer.costs.predict(Plan(SIZE))
    found = explorer.best(whole / 1.5, evaluations=12)
    assert found
    assert all(each.seconds <= whole / 1.5 for each in found)
    assert [each.verdict.loss for each in found] == sorted(each.verdict.loss for each in found)


def test_the_model_as_it_is_takes_what_it_was_timed_at_however_other_plans_were_predicted(explorer):
    whole = explorer.costs.predict(Plan(SIZE))
    changed = Plan.of(SIZE, {"tome": {1: 0.3}})
    explorer.learn(changed, 0.8 * explorer.costs.predict(changed))
    assert explorer.predict(Plan(SIZE)) == whole
    assert explorer.within(0.9 * whole, Direction(SIZE)) is None


def test_an_unchanged_plan_loses_nothing(explorer):
    verdict = explorer.judge(Plan(SIZE))
    assert verdict.loss < 1e-6
    assert verdict.agreement == 100


def test_images_for_choosing_training_and_judging_are_never_the_same():
    images = torch.arange(100, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 8, 8).contiguous()
    parts = split((images, torch.zeros(100, dtype=torch.long)), choosing=20, judging=20)
    seen = [set(part.images[:, 0, 0, 0].tolist()) for part in (parts.choosing, parts.training, parts.judging)]
    assert sum(map(len, seen)) == len(set().union(*seen)) == 100


def test_pictures_that_cannot_be_read_are_counted_against_all_pictures_whichever_part_they_lie_in(tmp_path):
    for index in range(200):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{index}.png")
    parts = split(f"images:{tmp_path}", choosing=20)
    for index in (0, 1):
        (tmp_path / parts.judging.filename(index)).write_text("no picture")  # type: ignore[union-attr]
    for part in (parts.choosing, parts.training):
        sample_images(backbone("vit"), part, 4)
    assert len(sample_images(backbone("vit"), parts.judging, 50)) == 48  # two of 200, and not of 50


def test_a_pipe_named_like_a_picture_counts_as_one_that_cannot_be_read(tmp_path):
    for index in range(70):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{index}.png")
    os.mkfifo(tmp_path / "pipe.png")  # whoever opens it waits for a writer
    parts = split(f"images:{tmp_path}", choosing=20)
    for part in (parts.choosing, parts.training, parts.judging):
        sample_images(backbone("vit"), part, 70)
    assert list(parts.judging.damage.problems) == ["pipe.png"]


def test_images_to_judge_on_that_are_among_the_others_are_refused(tmp_path):
    for index in range(70):
        folder = tmp_path / ("few" if index % 10 == 0 else "rest")
        folder.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), index, np.uint8)).save(folder / f"{index}.png")
    with pytest.raises(ValueError, match=r"7 of the 7 images .* to judge on are among those to choose and train by"):
        split(f"images:{tmp_path}", judge=f"images:{tmp_path / 'few'}")
    images = torch.zeros(80, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(ValueError, match="80 of the 80 images"):
        split(images, judge=images)
    assert len(split(images, judge=images[:16] + 1).judging) == 16
    with pytest.raises(ValueError, match="holds 9 images; a model is judged by 16 at least"):
        split(images, judge=images[:9] + 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give one target"),
        ({"speedup": 2.0, "max_drop": 1.0}, "give one target"),
        ({"speedup": 0.5}, "1 or more"),
        ({"speedup": float("nan")}, "1 or more"),
        ({"latency": 0.0}, "above 0"),
        ({"max_drop": -1.0}, "0 to 100"),
        ({"max_drop": float("nan")}, "0 to 100"),
        ({"latency": float("inf")}, "above 0"),
        ({"speedup": 2.0, "curve": (1.5, 2.0)}, "give one target"),
        ({"curve": (1.5, 0.5)}, "1 or more"),
        ({"curve": (2.0, 2.0)}, "different"),
        ({"curve": (2.0, 2.0000001)}, "different"),  # files are named by speed-ups
    ],
)
def test_targets_that_cannot_be_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Target(**given)


def test_times_are_read_as_people_write_them():
    assert seconds_of("1.5ms") == pytest.approx(1.5e-3)
    assert seconds_of("800us") == pytest.approx(8e-4)
    with pytest.raises(ValueError, match="no time"):
        seconds_of("soon")


def test_every_method_that_offers_choices_says_what_it_acts_on():
    model = backbone("vit")
    for name, method in METHODS.items():
        if method.choices(model) is not None:
            assert method.acts_on in ("tokens", "ffn", "mixer"), name


def test_a_pack_without_splits_is_judged_on_a_part_that_is_not_trained_on(tmp_path):
    pixels = [Image.fromarray(np.full((16, 16, 3), value, np.uint8)) for value in range(0, 200, 2)]
    files = []
    for picture in pixels:
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        files.append(np.frombuffer(buffer.getvalue(), np.uint8))
    offsets = np.cumsum([0, *map(len, files)])
    np.savez(tmp_path / "all.npz", jpeg=np.concatenate(files), offsets=offsets, labels=np.zeros(100, np.int16))
    for source in (f"pack:{tmp_path}/all.npz",):
        parts = split(source, choosing=20, judging=20)
        seen = [set(part.images[:, 0, 0, 0].tolist()) for part in (parts.choosing, parts.training, parts.judging)]
        assert sum(map(len, seen)) == len(set().union(*seen)) == 100


def test_a_folder_given_as_a_path_is_judged_on_its_validation_split(tmp_path):
    for part, count in (("train", 70), ("val", 6)):
        (tmp_path / part / "cat").mkdir(parents=True)
        (tmp_path / part / "dog").mkdir(parents=True)
        for index in range(count):
            Image.new("RGB", (8, 8)).save(tmp_path / part / ("cat", "dog")[index % 2] / f"{index}.png")
    assert len(split(tmp_path).judging) == len(split(str(tmp_path)).judging) == 6


def test_merging_one_number_of_tokens_a_block_is_among_the_first_plans_at_every_strength(explorer):
    (direction,) = (
        each
        for each in starts(explorer.space)
        if each == Direction(SIZE, {"tome": dict.fromkeys(range(4), 1.0)}, counted=True)
    )
    for strength in (0.2, 0.4):
        left = [100.0]
        for share in explorer.at_strength(direction, strength).of_method("tome").values():
            left.append(left[-1] * (1 - share))
        assert len(left) == 5
        assert [before - after for before, after in pairwise(left)] == pytest.approx([50 * strength] * 4, abs=0.2)


def test_every_plan_made_by_hand_is_judged_and_none_is_better_than_what_is_found(explorer):
    budget = explorer.costs.predict(Plan(SIZE)) / 1.5
    hand = {explorer.within(budget, direction) for direction in starts(explorer.space)} - {None}
    found = explorer.best(budget, evaluations=2 * len(hand))
    assert hand <= explorer.judge.known.keys()
    assert not found[0].verdict.worse_than(min((explorer.judge(plan) for plan in hand), key=lambda v: v.loss), 1.5)


def test_what_comes_in_steps_keeps_its_share_beside_what_follows_the_budget(explorer):
    weights = {"tome": dict.fromkeys(range(4), 1.0), "repa": {1: 0.4, 2: 1.0}}
    for strength in (0.1, 0.5):
        plan = explorer.at_strength(Direction(SIZE, weights), strength)
        assert plan.of_method("repa") == {1: 0.25, 2: 0.75}
        assert plan.of_method("tome") == dict.fromkeys(range(4), 0.5 * strength)


def test_a_plan_that_is_worse_by_chance_alone_goes_on():
    noise = [0.0, 0.6, 0.1, 0.5]
    assert not Verdict([0.1, 0.4, 0.3, 0.5], noise).worse_than(Verdict(noise, noise), 1.5)
    assert Verdict([0.1, 0.71, 0.2, 0.61], noise).worse_than(Verdict(noise, noise), 1.5)


def test_few_evaluations_look_at_many_plans_on_few_images(explorer, monkeypatch):
    explorer.few = 4
    explorer.best(explorer.costs.predict(Plan(SIZE)) / 1.5, evaluations=6)
    assert len(explorer.judge.known) >= 6  # not at one plan alone, to keep the rest for the last comparison


def test_modules_are_fitted_to_other_images_than_those_they_are_judged_on(explorer, monkeypatch):
    judge, fitted_to = explorer.judge, []
    pixels = torch.rand(3, *input_of(judge.teacher)["input_size"])
    monkeypatch.setattr(
        "leanformer.search.judge.calibrate", lambda model, teacher, images: fitted_to.append(images) or model
    )
    other = Judge(judge.teacher, judge.space, judge._images, lambda: pixels)
    other(Plan.of(SIZE, {"repa": {1: 0.5}}))
    assert torch.equal(fitted_to[0], pixels)


def test_smaller_images_are_whole_patches_that_are_no_squares():
    oblong = lf.create("vit", img_size=64, patch_size=(8, 16), embed_dim=16, depth=2, num_heads=2, num_classes=3)
    assert space_of(oblong).sizes == ((64, 64), (48, 48))


def test_no_image_is_looked_at_twice(explorer, monkeypatch):
    plan = Plan.of(SIZE, {"tome": {1: 0.25}})
    few = explorer.judge(plan, 8)
    seen, compared = [], explorer.judge._compared
    monkeypatch.setattr(explorer.judge, "_compared", lambda *given: seen.append(given[2:]) or compared(*given))
    every = explorer.judge(plan)
    assert seen == [(8, 16)]
    assert every.losses[:8] == few.losses
    assert every.loss == pytest.approx(explorer.judge.verdict(plan.build(explorer.judge.teacher), SIZE).loss, abs=1e-4)


def test_a_direction_of_small_weights_reaches_what_its_method_offers(explorer):
    direction = Direction(SIZE, {"tome": {1: 1.0, 2: 0.25}})
    assert explorer.within(0.0, direction) is None
    assert explorer.at_strength(direction, 4.0).of_method("tome") == {1: 0.5, 2: 0.5}


def test_plans_of_several_families_are_among_those_found(explorer):
    found = explorer.best(explorer.costs.predict(Plan(SIZE)) / 1.5, evaluations=16)
    assert len({explorer.family(each.plan) for each in found}) >= 3


def test_a_second_search_starts_from_what_the_first_has_found(explorer):
    whole = explorer.costs.predict(Plan(SIZE))
    explorer.best(whole / 1.3, evaluations=12)
    best = explorer.directions[0]
    explorer.best(whole / 1.5, evaluations=1)
    assert explorer.within(whole / 1.5, best) in explorer.judge.known


def test_a_family_that_was_timed_slower_than_predicted_must_do_more_for_the_same_budget(explorer):
    budget = explorer.costs.predict(Plan(SIZE)) / 1.3
    direction = Direction(SIZE, {"tome": dict.fromkeys(range(4), 1.0)})
    before = explorer.within(budget, direction)
    explorer.learn(before, 1.1 * explorer.costs.predict(before))
    after = explorer.within(budget, direction)
    assert 1.1 * explorer.costs.predict(after) <= budget < 1.1 * explorer.costs.predict(before)


def test_a_backbone_without_a_head_is_judged_by_cosines_and_by_neighbours():
    teacher = lf.with_head(backbone("vit"), 0)
    lean = lf.apply(teacher, lf.EViT(keep_rate=0.5))
    labels, generator = torch.arange(160) // 2 % 4, torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (4, 3, 32, 32), generator=generator)[labels]
    pixels = (pixels + torch.randint(-9, 9, pixels.shape, generator=generator)).clamp(0, 255).byte()
    known, judging = (open_data((pixels[i::2], labels[i::2])) for i in (0, 1))
    seen = EvaluationView(input_of(teacher))(judging.images)
    judge = Judge(teacher, space_of(teacher), lambda size: seen)
    assert judge.verdict(teacher, SIZE).agreement == pytest.approx(100, abs=1e-3)
    assert judge.verdict(lean, SIZE).agreement < 100
    found = accuracies(teacher, lean, known, judging, "cpu")
    assert found["teacher_knn_top1"] == 100, "images of a class differ by a little noise alone"
    assert found["drop"] == found["teacher_knn_top1"] - found["knn_top1"]
    assert accuracies(teacher, lean, known, dataclasses.replace(judging, labelled=False), "cpu") == {}


def test_judging_in_bf16_leaves_pixels_and_fits_as_they_are(monkeypatch):
    teacher = backbone("vit")
    monkeypatch.setattr("leanformer.search.judge.quick_precision", lambda *_: "bf16")
    drawn = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def images(size):  # a product, which autocast would round
        return torch.einsum("nchw,cd->ndhw", torch.nn.functional.interpolate(drawn, size), torch.eye(3))

    judge = Judge(teacher, space_of(teacher), images)
    verdict = judge(Plan.of(SIZE, {"repa": {1: 0.5}}))
    assert judge._view(SIZE).dtype == torch.float32
    assert judge(Plan(SIZE)).loss < 0.01
    assert verdict.loss > 0
