"""Segmenters learn through the one loop: from drawn shapes, from teachers, stopped and resumed, judged by pixels."""

import json
import math

import pytest
import torch
from PIL import Image
from scenes import CLASSES, scenes, small_segmenter

import leanformer as lf
from leanformer.cli import main
from leanformer.core import Step, View
from leanformer.data.dense import IGNORED, Target, scenes_of
from leanformer.tasks.dense_distillation import pixel_divergence
from leanformer.tasks.drawing import colour_of, draw_map
from leanformer.tasks.segmentation import SegmentationLoss, segment
from leanformer.tasks.segmentation_metrics import Found, confusion, judge_maps

HOW = {"device": "cpu", "quiet": True, "workers": 0}
SMALL = lf.tasks.Segmentation(size=(32, 32))
QUICK = lf.recipes.camvid(epochs=2, batch_size=4, warmup_epochs=0, ema=0.9)


def test_a_segmenter_learns_shapes_that_are_drawn():
    recipe = lf.train.plain(epochs=3, batch_size=8, learning_rate=2e-3, weight_decay=1e-4, clip_grad=1.0, flip=0.5)
    data, val = scenes(0, 64, label_map=True), scenes(1000, 16, label_map=True)
    task = lf.tasks.Segmentation(size=(64, 64))
    found = lf.tasks.fit(
        small_segmenter(), recipe=recipe, data=data, val=val, task=task, evaluate_every=3, **HOW
    ).evaluation
    assert found.miou > 80
    assert found.pixel_accuracy > 90


def test_a_segmenter_that_was_stopped_goes_on_bit_for_bit(tmp_path):
    def run(folder, **options):
        data, val = scenes(0, 8, 32, label_map=True), scenes(50, 3, 32, label_map=True)
        output = tmp_path / folder
        return lf.tasks.fit(
            small_segmenter(), recipe=QUICK, data=data, val=val, task=SMALL, output=output, **HOW, **options
        )

    whole = run("whole")
    run("parts", max_updates=3, save_every=1)
    parts = run("parts", resume=True)
    for one, other in ((whole.model, parts.model), (whole.ema, parts.ema)):
        assert all(
            torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
        )
    with pytest.raises(ValueError, match="the checkpoint is from another run: task"):
        lf.tasks.fit(small_segmenter(), recipe=QUICK, data=scenes(0, 8, 32, label_map=True), output=tmp_path / "parts",
                     resume=True, **HOW)  # fmt: skip
    assert {path.name for path in (tmp_path / "parts" / "pictures").iterdir()} >= {"good_1.png", "bad_1.png"}


def test_a_student_learns_pixels_and_maps_of_its_teacher(tmp_path):
    teacher = small_segmenter()
    student = lf.apply(teacher, lf.RePa(idle_ratio=0.5))
    lf.tasks.fit(
        student, recipe=QUICK.replace(epochs=1), data=scenes(0, 4, 32, label_map=True), teacher=teacher, task=SMALL,
        objective="segmentation + pixels:temperature=2 + pyramid:weight=0.5", output=tmp_path, calibrate=32,
        log_every=1, **HOW,
    )  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert {"cross_entropy", "pixels", "pyramid"} <= set(steps[0])
    assert any("calibrated_slots" in line for line in lines)


def test_pixels_without_a_class_are_not_learnt():
    logits, maps = torch.randn(2, 3, 4, 4), torch.randint(0, 3, (2, 4, 4))
    maps[0, :2], maps[1] = IGNORED, IGNORED
    loss = SegmentationLoss()(Step(torch.zeros(1), maps, View(logits)))["cross_entropy"]
    wanted = torch.nn.functional.cross_entropy(logits[0, :, 2:].flatten(1).T, maps[0, 2:].flatten())
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    nothing = SegmentationLoss()(Step(torch.zeros(1), torch.full_like(maps, IGNORED), View(logits)))
    assert nothing["cross_entropy"].item() == 0


def test_the_divergence_of_pixels_is_that_of_plain_loops():
    generator = torch.Generator().manual_seed(0)
    s, t = (torch.randn(1, 3, 2, 2, generator=generator, dtype=torch.double) for _ in range(2))
    total = 0.0
    for y in range(2):
        for x in range(2):
            p, q = ([math.exp(float(z[0, k, y, x]) / 2) for k in range(3)] for z in (t, s))
            total += sum(a / sum(p) * math.log((a / sum(p)) / (b / sum(q))) for a, b in zip(p, q))
    assert pixel_divergence(s, t, 2.0).item() == pytest.approx(4 * total / 4, rel=1e-5)
    with pytest.raises(ValueError, match="other classes"):
        pixel_divergence(s, torch.zeros(1, 5, 2, 2), 2.0)


def test_intersection_over_union_is_that_of_a_case_computed_by_hand():
    truth = torch.tensor([[0, 0, 1, 1], [0, IGNORED, 1, 1]])
    answer = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 0]])
    counts = confusion(truth, answer, 3)
    result = judge_maps(counts, [Found(0, 0.5)], ("a", "b", "c"), 1.0)
    assert result.by_class[:2] == pytest.approx((100 * 2 / 4, 100 * 3 / 5))
    assert math.isnan(result.by_class[2])
    assert result.miou == pytest.approx(55)
    assert result.pixel_accuracy == pytest.approx(100 * 5 / 7)


def test_pictures_of_many_sizes_are_answered_at_their_own():
    model = small_segmenter().eval()
    pictures = [Image.new("RGB", size) for size in ((40, 24), (33, 47))]
    for task in (None, lf.tasks.Segmentation(evaluation_size=(32, 32))):
        assert [tuple(found.shape) for found in segment(model, pictures, task)] == [(24, 40), (47, 33)]
    images = [torch.zeros(3, 24, 40, dtype=torch.uint8), torch.zeros(3, 30, 20, dtype=torch.uint8)]
    maps = [Target(label_map=torch.zeros(image.shape[1:], dtype=torch.uint8)) for image in images]
    found = lf.tasks.evaluate(model, scenes_of(images, maps, ["a", "b", "c"]), device="cpu", workers=0)
    assert found.images == 2


def test_label_maps_have_the_same_colours_everywhere():
    label_map = torch.zeros(320, 320, dtype=torch.uint8)
    label_map[:160], label_map[300:] = 1, IGNORED
    drawn = draw_map(Image.new("RGB", (320, 320)), label_map)
    assert drawn.getpixel((5, 310)) == (0, 0, 0)
    for place, label in (((5, 5), 1), ((5, 200), 0)):
        assert drawn.getpixel(place) == pytest.approx([0.6 * part for part in colour_of(label)], abs=2)


def test_a_segmenter_is_trained_judged_and_shown_from_the_command_line(tmp_path, capsys):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "classes.txt").write_text("\n".join(("background", *CLASSES)))
    for split, first, count in (("train", 0, 4), ("val", 20, 2)):
        for index, data in ((i, scenes(first, count, 32, label_map=True)) for i in range(count)):
            picture, target = data.picture(index)
            for folder, image in (("images", picture), ("labels", Image.fromarray(target.label_map.numpy()))):
                (tmp_path / "data" / folder / split).mkdir(parents=True, exist_ok=True)
                image.save(tmp_path / "data" / folder / split / f"{index}.png")
    lf.save(small_segmenter(), tmp_path / "start.safetensors")
    run, how, data = str(tmp_path / "run"), ["--device", "cpu", "--workers", "0"], str(tmp_path / "data")
    assert main(["train", str(tmp_path / "start.safetensors"), "--task", "segmentation:size=(32,32)", "--apply",
                 "repa:idle_ratio=0.5", "--teacher", "self", "--data", data, "--recipe",
                 "camvid:epochs=1,batch_size=2", "--output", run, "--calibrate", "16", *how]) == 0  # fmt: skip
    model = str(tmp_path / "run" / "model.safetensors")
    assert main(["eval", model, "--data", data, *how, "--task", "segmentation"]) == 0
    assert "miou" in capsys.readouterr().out
    drawn, image = str(tmp_path / "map.png"), str(tmp_path / "data" / "images" / "val" / "0.png")
    assert main(["show", "label-map", model, "--image", image, "--output", drawn]) == 0
    assert main(["eval", model, "--data", data, *how, "--task", "detection"]) == 2
    assert main(["train", "poolformer_s12", "--segmenter", "fpn:chanels=64", "--data", data, "--output", run]) == 2
    assert "fpn has no option 'chanels'; its options: channels, dropout" in capsys.readouterr().err
