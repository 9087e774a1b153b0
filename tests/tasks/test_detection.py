"""Detectors learn through the one loop: from drawn shapes, from teachers, stopped and resumed, judged as by COCO."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scenes import CLASSES, backbone, draw_scene, scenes, small_detector

import leanformer as lf
from leanformer.cli import main
from leanformer.core import Step, View
from leanformer.data.dense import Target, scenes_of
from leanformer.tasks.dense_distillation import PyramidDistillation
from leanformer.tasks.detection_metrics import found_in, judge_boxes, quality_of
from leanformer.tasks.drawing import draw_objects

QUICK = lf.recipes.dense(epochs=2, batch_size=4, warmup_epochs=0, color_jitter=0.3, crop_scale=(0.5, 1.0), ema=0.9)
HOW = {"device": "cpu", "quiet": True, "workers": 0}


def test_a_detector_learns_shapes_that_are_drawn():
    recipe = lf.train.plain(
        epochs=3, batch_size=4, learning_rate=3e-3, weight_decay=1e-4, clip_grad=5.0, warmup_epochs=1
    )
    data, val = scenes(0, 96), scenes(1000, 24)  # their masks are left aside
    found = lf.tasks.fit(small_detector(), recipe=recipe, data=data, val=val, evaluate_every=3, **HOW).evaluation
    assert found.figures["ap50"] > 80
    assert found.images == 24
    assert [name for name, _ in found.per_class()] != []


def test_a_detector_that_was_stopped_goes_on_bit_for_bit_and_its_run_can_be_read(tmp_path):
    def run(folder: Path, **options):
        model = small_detector(side=32)
        data, val = scenes(0, 8, 32, masks=False), scenes(50, 3, 32, masks=False)
        return lf.tasks.fit(model, recipe=QUICK, data=data, val=val, output=tmp_path / folder, **HOW, **options)

    whole = run("whole")
    run("parts", max_updates=3, save_every=1)
    parts = run("parts", resume=True)
    for one, other in ((whole.model, parts.model), (whole.ema, parts.ema)):
        assert all(
            torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
        )
    told = json.loads((tmp_path / "parts" / "run.json").read_text())
    assert told["task"] == {"name": "detection"}
    assert "ap" in json.loads((tmp_path / "parts" / "result.json").read_text())["val"]
    loaded = lf.load(tmp_path / "parts" / "model.safetensors")
    assert lf.core.classes_of(loaded) == CLASSES
    drawn = {path.name for path in (tmp_path / "parts" / "pictures").iterdir()}
    assert drawn == {"good_1.png", "good_2.png", "bad_1.png"}, "each of three pictures once"
    assert main(["report", str(tmp_path / "parts"), "--output", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "to be found, and found" in page
    assert "among the best answered" in page
    assert "among the worst answered" in page


def test_masks_are_learnt_and_judged_beside_boxes():
    model = small_detector("mask_rcnn", side=32)
    found = lf.tasks.fit(
        model, recipe=QUICK.replace(epochs=1), data=scenes(0, 4, 32), val=scenes(9, 2, 32), max_updates=1, **HOW
    ).evaluation
    assert {"ap", "ap50", "ap75", "mask_ap", "mask_ap50", "mask_ap75"} <= set(found.figures)


def test_masks_are_learnt_beside_a_picture_without_objects():
    pairs = [draw_scene(index, 32) for index in range(4)]
    data = scenes_of([image for image, _ in pairs], [Target(), *(target for _, target in pairs[1:])], CLASSES)
    result = lf.tasks.fit(
        small_detector("mask_rcnn", side=32), recipe=QUICK.replace(epochs=1), data=data, max_updates=1, **HOW
    )
    assert result.finished


def test_a_student_starts_from_its_teacher_calibrated_and_learns_its_maps(tmp_path):
    teacher = small_detector(side=32)
    student = lf.apply(teacher, lf.RePa(idle_ratio=0.5))
    result = lf.tasks.fit(
        student, recipe=QUICK.replace(epochs=1), data=scenes(0, 8, 32, masks=False), teacher=teacher, output=tmp_path,
        calibrate=64, log_every=1, **HOW,
    )  # fmt: skip
    assert result.start["calibrated_slots"] > 0
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    terms = {name for line in lines if line["kind"] == "step" for name in line}
    assert {"pyramid", "classification", "bbox_regression"} <= terms


def test_the_pyramid_term_is_the_mean_over_the_maps_of_their_mean_squared_difference():
    objective = PyramidDistillation(weight=2.0)
    objective.prepare(small_detector(side=32))
    assert objective.at == "backbone"
    mine = {"0": torch.zeros(1, 2, 4, 4), "1": torch.zeros(1, 2, 2, 2)}
    theirs = {"0": torch.full((1, 2, 4, 4), 3.0), "1": torch.ones(1, 2, 2, 2)}
    step = Step(
        torch.zeros(1), torch.zeros(1), View(None, {"backbone": mine}), {"teacher": View(None, {"backbone": theirs})}
    )
    assert objective(step)["pyramid"].item() == pytest.approx(2 * (9 + 1) / 2)
    with pytest.raises(ValueError, match="same image sizes"):
        objective(dataclasses.replace(step, student=View(None, {"backbone": {"0": torch.zeros(1, 2, 8, 8)}})))


@pytest.mark.parametrize("kind", ["retinanet", "mask_rcnn"])
def test_under_autocast_boxes_are_as_exact_as_without(kind):
    model, seen = small_detector(kind, side=320).eval(), []
    (model.rpn if kind == "mask_rcnn" else model).anchor_generator.register_forward_hook(
        lambda module, inputs, output: seen.append(output[0])
    )
    with torch.no_grad():
        model([torch.rand(3, 300, 320)])
        with torch.autocast("cpu", torch.bfloat16):
            answer = model([torch.rand(3, 300, 320)])[0]
    assert torch.equal(seen[0], seen[1])
    assert answer["boxes"].dtype == torch.float32


def boxes(*sides: tuple[float, ...], labels: tuple[int, ...]) -> Target:
    return Target(torch.tensor(sides).reshape(-1, 4), torch.tensor(labels, dtype=torch.long))


def test_average_precision_is_that_of_a_case_computed_by_hand():
    truth = boxes((0, 0, 10, 10), (20, 20, 30, 30), labels=(0, 0))
    answer = boxes((50, 50, 60, 60), (0, 0, 10, 10), labels=(0, 0))
    found = [found_in(0, (64, 64), truth, answer, torch.tensor([0.9, 0.8]))]
    result = judge_boxes(found, ("thing", "other"), masks=False, seconds=1.0)
    # precision is 1/2 up to recall 1/2, and 0 behind: 51 of the 101 places
    assert result.figures["ap"] == pytest.approx(100 * 51 / 101 / 2)
    assert "ap_large" not in result.figures
    assert result.per_class() == [("thing", pytest.approx(100 * 51 / 101 / 2))]


def test_crowds_are_neither_hits_nor_misses():
    truth = dataclasses.replace(
        boxes((0, 0, 10, 10), (20, 20, 60, 60), labels=(0, 0)), crowd=torch.tensor([False, True])
    )
    answer = boxes((0, 0, 10, 10), (22, 22, 40, 40), labels=(0, 0))
    found = [found_in(0, (64, 64), truth, answer, torch.tensor([0.8, 0.9]))]
    assert judge_boxes(found, ("thing",), masks=False, seconds=1.0).figures["ap"] == pytest.approx(100)


def test_the_quality_of_a_picture_counts_what_is_missed_and_what_is_too_much():
    truth = boxes((0, 0, 10, 10), (20, 20, 30, 30), labels=(0, 1))
    answer = boxes((0, 0, 10, 10), (20, 20, 30, 30), (40, 40, 50, 50), labels=(0, 0, 1))
    assert quality_of(truth, answer, torch.tensor([0.9, 0.8, 0.1])) == pytest.approx(1 / (1 + 0.5 + 0.5))
    assert quality_of(boxes(labels=()), boxes(labels=()), torch.zeros(0)) == 1


def test_what_is_found_in_a_crowd_of_its_class_is_not_too_much():
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [40.0, 40.0, 80.0, 80.0]])
    truth = Target(boxes, torch.tensor([0, 1]), crowd=torch.tensor([False, True]))
    found = torch.tensor([[0.0, 0.0, 10.0, 10.0], [45.0, 45.0, 55.0, 55.0]])
    scores = torch.tensor([0.9, 0.8])
    assert quality_of(truth, Target(found, torch.tensor([0, 1])), scores) == 1
    assert quality_of(truth, Target(found, torch.tensor([0, 0])), scores) == pytest.approx(1 / 1.5), "another class"


def test_boxes_and_masks_are_drawn_where_they_are():
    mask = torch.zeros(1, 320, 320, dtype=torch.bool)
    mask[0, 100:150, 100:150] = True
    black = Image.new("RGB", (320, 320))
    drawn = draw_objects(black, torch.tensor([[50.0, 200, 90, 240]]), torch.tensor([1]), CLASSES, masks=mask)
    pixels = torch.from_numpy(np.array(drawn)).long()  # (320, 320, 3)
    assert pixels[120, 120].sum() > 0
    assert pixels[220, 50].sum() > 0
    assert pixels[220, 70].sum() == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"recipe": lf.recipes.finetune(epochs=1)}, "detection has no mixup: set mixup=0"),
        ({"model": lambda: small_detector(classes=5)}, "has 2 classes, but the model has 5; make it with classes=2"),
        ({"model": lambda: small_detector("mask_rcnn")}, "has boxes, but masks of its objects are needed"),
        ({"compile": True}, "leave compile out"),
        ({"objective": "cross_entropy + pyramid"}, "detection has no objective 'cross_entropy'; it has: detection"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(change, words):
    options = {"recipe": QUICK, "data": scenes(0, 4, 32, masks=False), **HOW, **change}
    model = options.pop("model", small_detector)()
    with pytest.raises(ValueError, match=words):
        lf.tasks.fit(model, **options)


@pytest.fixture
def coco_folder(tmp_path) -> Path:
    """Six scenes for training and three for validation in COCO's layout."""
    for split, first, count in (("train", 0, 6), ("val", 20, 3)):
        (tmp_path / "coco" / split).mkdir(parents=True)
        (tmp_path / "coco" / "annotations").mkdir(exist_ok=True)
        data, images, objects = scenes(first, count, 32, masks=False), [], []
        for index in range(count):
            picture, target = data.picture(index)
            picture.save(tmp_path / "coco" / split / f"{index}.png")
            images.append({"id": index, "file_name": f"{index}.png", "width": 32, "height": 32})
            for (left, top, right, bottom), label in zip(target.boxes.tolist(), target.labels.tolist()):
                box = [left, top, right - left, bottom - top]
                objects.append({"image_id": index, "category_id": label, "bbox": box})
        categories = [{"id": index, "name": name} for index, name in enumerate(CLASSES)]
        content = {"images": images, "annotations": objects, "categories": categories}
        (tmp_path / "coco" / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return tmp_path / "coco"


def test_a_detector_is_trained_resumed_judged_and_shown_from_the_command_line(tmp_path, coco_folder, capsys):
    lf.save(backbone(), tmp_path / "body.safetensors")
    run, how = str(tmp_path / "run"), ["--device", "cpu", "--workers", "0"]
    train = ["train", str(tmp_path / "body.safetensors"), "--task", "detection", "--apply", "repa:idle_ratio=0.5",
             "--detector", "retinanet:channels=32,min_size=32,max_size=32,levels=(1,2)", "--data", str(coco_folder),
             "--recipe", "dense:epochs=1,batch_size=2", "--output", run, *how, "--max-updates", "2"]  # fmt: skip
    assert main(train) == 0
    assert "ap50" in capsys.readouterr().out
    model = str(tmp_path / "run" / "model.safetensors")
    told = tmp_path / "eval.json"
    assert main(["eval", model, "--data", str(coco_folder), *how, "--output", str(told), "--per-class"]) == 0
    assert "ap50" in json.loads(told.read_text())["rows"][0]
    drawn = tmp_path / "boxes.png"
    assert main(["show", "boxes", model, "--image", str(coco_folder / "val" / "0.png"), "--output", str(drawn)]) == 0
    assert drawn.is_file()
    assert main(["show", "masks", model, "--image", str(coco_folder / "val" / "0.png"), "--output", str(drawn)]) == 2
    assert main(["eval", model, "--data", str(coco_folder), "--knn", "3"]) == 2
    assert main(["train", "--resume", run]) == 0


def test_a_trained_detector_goes_on_by_its_own_task_and_is_not_put_into_another(tmp_path, coco_folder, capsys):
    model = str(lf.save(small_detector(side=32), tmp_path / "start.safetensors"))
    train = ["train", model, "--data", str(coco_folder), "--output", str(tmp_path / "run"), "--device", "cpu",
             "--workers", "0"]  # fmt: skip
    assert main([*train, "--recipe", "dense:epochs=1,batch_size=2", "--max-updates", "1"]) == 0
    assert lf.train.read_run(tmp_path / "run")["task"] == {"name": "detection"}
    for words, told in (
        (["--classes", "5"], "of 2 classes: leave --classes out"),
        (["--task", "segmentation"], "made for detection, not segmentation"),
        (["--task", "dino"], "--task dino trains a backbone"),
        (["--detector", "retinanet"], "RetinaNet already"),
    ):
        assert main([*train, *words]) == 2
        assert told in capsys.readouterr().err


def test_data_that_number_classes_otherwise_or_hold_nothing_to_judge_by_are_refused(tmp_path, coco_folder, capsys):
    detector = lf.core.set_classes(small_detector(side=32), CLASSES[::-1])
    with pytest.raises(ValueError, match="'disc' is number 0 of the model and number 1 of"):
        lf.tasks.evaluate(detector, coco_folder, device="cpu", workers=0)
    picture, crowd = draw_scene(1, 32)[0], torch.tensor([True])
    for target in (Target(), Target(torch.tensor([[0.0, 0.0, 9.0, 9.0]]), torch.tensor([0]), crowd=crowd)):
        with pytest.raises(ValueError, match="has an object that counts, so there is nothing to judge"):
            lf.tasks.evaluate(small_detector(side=32), scenes_of([picture], [target], CLASSES), device="cpu", workers=0)


def test_data_with_two_classes_of_one_name_are_judged(tmp_path, coco_folder):
    for path in (coco_folder / "annotations").glob("*.json"):
        found = json.loads(path.read_text())
        found["categories"] = [{**each, "name": "shape"} for each in found["categories"]]
        path.write_text(json.dumps(found))
    model = lf.core.set_classes(small_detector(), ["shape", "shape"])
    assert lf.tasks.evaluate(model, str(coco_folder), device="cpu", workers=0).classes == ("shape", "shape")


@pytest.mark.parametrize("option", ["classes=3", "kind=1", "backbone=x", "colour=1"])
def test_what_is_no_option_of_a_detector_is_told_with_those_that_it_has(option, tmp_path, coco_folder, capsys):
    spec, run = f"retinanet:{option}", ["--data", str(coco_folder), "--output", str(tmp_path / "run")]
    assert main(["train", "poolformer_s12", "--detector", spec, *run]) == 2
    assert f"retinanet has no option '{option.partition('=')[0]}'; its options: levels" in capsys.readouterr().err


def test_what_was_left_out_of_the_annotations_is_told_beside_a_judgement(tmp_path, coco_folder, capsys):
    path = coco_folder / "annotations" / "instances_val.json"
    content = json.loads(path.read_text())
    content["annotations"].append({**content["annotations"][0], "bbox": [3, 3, 0, 9]})
    path.write_text(json.dumps(content))
    model = str(lf.save(small_detector(side=32), tmp_path / "start.safetensors"))
    assert main(["eval", model, "--data", str(coco_folder), "--device", "cpu", "--workers", "0", "--per-class"]) == 0
    shown = capsys.readouterr().out
    assert "1 broken boxes were left out" in shown.replace("\n", " ")
    assert "AP" in shown
