"""Scenes are read from the layouts that data sets come in; what is wrong in them is counted, told or refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import leanformer as lf
from leanformer.data.batches import Plan, Stretch
from leanformer.data.dense import IGNORED, Target, scenes_of
from leanformer.data.dense_augment import SceneAugment, SceneEvaluation
from leanformer.data.dense_camvid import CLASSES
from leanformer.data.dense_loader import evaluation_scenes, training_scenes
from leanformer.data.dense_open import open_scenes

CPU = torch.device("cpu")


def picture(path: Path, width: int = 20, height: int = 16) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), (90, 120, 40)).save(path)
    return path


def numbers(path: Path, values: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.array(values, dtype=np.uint8)).save(path)
    return path


def coco(root: Path, annotations: list[dict[str, Any]], **changes: Any) -> Path:
    for name in ("a.jpg", "b.jpg"):
        picture(root / "val2017" / name)
    images = [{"id": i, "file_name": name, "width": 20, "height": 16} for i, name in ((7, "a.jpg"), (9, "b.jpg"))]
    content = {"images": images, "categories": [{"id": 3, "name": "dog"}, {"id": 1, "name": "cat"}],
               "annotations": annotations, **changes}  # fmt: skip
    (root / "annotations").mkdir(exist_ok=True)
    (root / "annotations" / "instances_val2017.json").write_text(json.dumps(content))
    return root


def an_object(box: Any, category: int = 1, **more: Any) -> dict[str, Any]:
    return {"image_id": 7, "category_id": category, "bbox": box, "iscrowd": 0, **more}


def test_coco_boxes_and_masks_are_in_pixels_and_classes_in_the_order_of_their_ids(tmp_path):
    square = [[2, 3, 8, 3, 8, 7, 2, 7]]
    data = open_scenes(coco(tmp_path, [an_object([2, 3, 6, 4], 3, segmentation=square)]), "val", "masks")
    image, target = data.picture(0)
    assert data.classes == ("cat", "dog")
    assert image.size == (20, 16)
    assert (target.boxes.tolist(), target.labels.tolist()) == ([[2, 3, 8, 7]], [1])
    assert target.masks.shape == (1, 16, 20)
    assert target.masks[0, 3:7, 2:8].all()
    assert target.masks.sum() == 24
    nothing = data.picture(1)[1]
    assert (nothing.boxes.shape, nothing.masks.shape) == ((0, 4), (0, 16, 20))


def test_what_is_wrong_in_a_coco_file_is_counted_and_told(tmp_path):
    wrong = [
        an_object([2, 3, 0, 4]), an_object([30, 30, 5, 5]), an_object([1, 1, float("nan"), 2]), an_object("box"),
        an_object([2, 3, 4, 4], category=77), an_object([1, 1, 3, 3], image_id=1000),
        an_object([0, 0, 9, 9], iscrowd=1),
    ]  # fmt: skip
    data = open_scenes(coco(tmp_path, wrong), "val", "boxes")
    told = dict(line.removeprefix(f"{data.name}: ").split(" ", 1)[::-1] for line in data.notes())
    assert told == {
        "broken boxes were left out": "4", "objects of categories that are not listed were left out": "1",
        "objects of pictures that are not listed were left out": "1", "pictures have no objects": "1",
        "crowds are not learnt from": "1",
    }  # fmt: skip
    target = data.picture(0)[1]
    assert target.crowd.tolist() == [True]
    assert len(target.without_crowds().labels) == 0


@pytest.mark.parametrize("area", [-5, float("nan"), float("inf"), None, "large"])
def test_an_object_of_no_area_that_could_be_is_as_large_as_its_box(tmp_path, area):
    data = open_scenes(coco(tmp_path, [an_object([2, 3, 6, 4], area=area)]), "val", "boxes")
    assert data.picture(0)[1].areas.tolist() == [24]


def test_masks_of_another_size_and_objects_without_one_are_left_out_where_masks_are_wanted(tmp_path):
    other, square = {"counts": [4], "size": [2, 2]}, [[2, 3, 8, 3, 8, 7, 2, 7]]
    root = coco(tmp_path, [an_object([1, 1, 3, 3], segmentation=each, area=5) for each in (other, square, None)])
    masks, boxes = open_scenes(root, "val", "masks"), open_scenes(root, "val", "boxes")
    assert len(masks.picture(0)[1].labels) == 1
    assert {line.split(": ")[1][:22] for line in masks.notes()} == {
        "1 objects with a mask ", "1 objects without a ma", "1 pictures have no obj"
    }  # fmt: skip
    assert boxes.picture(0)[1].masks is None
    assert boxes.picture(0)[1].areas.tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    "mask",
    [
        [["a", "b", "c", "d", "e", "f"]], [[float("nan")] * 6], [[1e300, 1, 1e300, 2, 3, 4]], 5, "text",
        {"size": [16, 20], "counts": [5, 5]}, {"size": [16, 20], "counts": [-5, 325]}, {"size": [16, 20]},
        {"size": [16, 20], "counts": [1.5]},
    ],
)  # fmt: skip
def test_masks_that_cannot_be_drawn_are_left_out_and_counted(tmp_path, mask):
    square = [[2, 3, 8, 3, 8, 7, 2, 7]]
    data = open_scenes(
        coco(tmp_path, [an_object([1, 1, 3, 3], segmentation=each) for each in (mask, square)]), "val", "masks"
    )
    assert any("1 objects with a broken mask were left out" in line for line in data.notes())
    assert data.picture(0)[1].masks.sum().tolist() == 24


@pytest.mark.parametrize("counts", ["zz", "\x00\xff!!", ""])
def test_run_lengths_as_text_that_make_up_no_picture_count_as_damage(tmp_path, counts):
    mask = {"size": [16, 20], "counts": counts}
    data = open_scenes(coco(tmp_path, [an_object([1, 1, 3, 3], segmentation=mask)]), "val", "masks")
    with pytest.raises(ValueError, match="RLE"):
        data.picture(0)


def test_labels_that_no_class_has_are_refused():
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    with pytest.raises(ValueError, match="target 0 has the label 3; there are 2 classes"):
        scenes_of([image], [Target(torch.zeros(1, 4), torch.tensor([3]))], ["a", "b"])


@pytest.mark.parametrize("order", [1, -1])
def test_a_picture_without_objects_lacks_no_masks(order):
    image, mask = torch.zeros(3, 8, 6, dtype=torch.uint8), torch.ones(1, 8, 6, dtype=torch.bool)
    thing = Target(torch.tensor([[0.0, 0, 6, 8]]), torch.tensor([0]), mask)
    data = open_scenes(scenes_of([image] * 2, [thing, Target()][::order], ["thing"]), "train", "masks")
    assert sorted(len(data.picture(index)[1].masks) for index in range(2)) == [0, 1]
    assert all(data.picture(index)[1].masks.shape[1:] == (8, 6) for index in range(2))
    without = Target(thing.boxes, thing.labels)
    with pytest.raises(ValueError, match="has boxes, but masks of its objects are needed"):
        open_scenes(scenes_of([image] * 2, [thing, without][::order], ["thing"]), "train", "masks")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"categories": 3}, "no COCO instances file"),
        ({"images": [{"id": 1, "file_name": "../x.jpg", "width": 2, "height": 2}]}, "outside of the data folder"),
        ({"images": [{"id": 1, "file_name": "none.jpg", "width": 2, "height": 2}]}, "are not there"),
        ({"images": []}, "are not there"),
        ({"images": [{"id": 1, "file_name": "a.jpg", "width": "x", "height": 2}]}, "a picture's side is 'x'"),
        ({}, "has no object to be found"),
        ({"annotations": [an_object([2, 3, 4, 4], 77)]}, "1 objects of categories that are not listed were left out"),
    ],
)
def test_a_coco_file_that_cannot_be_used_is_refused_in_one_line(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words) as error:
        open_scenes(coco(tmp_path, **{"annotations": [], **changes}), "val", "boxes")
    assert "\n" not in str(error.value)


def test_a_data_set_without_what_is_needed_is_refused(tmp_path):
    root = coco(tmp_path, [an_object([2, 3, 4, 4])])
    with pytest.raises(ValueError, match="has boxes, but masks of its objects are needed"):
        open_scenes(root, "val", "masks")
    with pytest.raises(ValueError, match="no split 'train'"):
        open_scenes(root, "train", "boxes")
    with pytest.raises(ValueError, match="none of the formats"):
        open_scenes(tmp_path / "val2017", "val", "boxes")


def voc(root: Path) -> Path:
    picture(root / "JPEGImages" / "a.jpg")
    (root / "Annotations").mkdir()
    box = "<object><name>{}</name><difficult>{}</difficult><bndbox>" + "".join(
        f"<{side}>{{}}</{side}>" for side in ("xmin", "ymin", "xmax", "ymax")) + "</bndbox></object>"  # fmt: skip
    objects = [(" dog\n", 0, 1, 1, 20, 16), ("cat", 1, 3, 3, 9, 9), ("dog", 0, 30, 1, 40, 9)]
    size = "<size><width>20</width><height>16</height></size>"
    text = f"<annotation>{size}{''.join(box.format(*each) for each in objects)}</annotation>"
    (root / "Annotations" / "a.xml").write_text(text)
    for kind in ("Main", "Segmentation"):
        (root / "ImageSets" / kind).mkdir(parents=True)
        (root / "ImageSets" / kind / "train.txt").write_text("a\n")
    map_ = np.zeros((16, 20))
    map_[:3], map_[3:5] = 20, 255
    numbers(root / "SegmentationClass" / "a.png", map_)
    return root


def test_voc_boxes_count_from_one_and_difficult_objects_are_not_learnt(tmp_path):
    data = open_scenes(voc(tmp_path), "train", "boxes")
    target = data.picture(0)[1]
    assert target.boxes.tolist() == [[0, 0, 20, 16], [2, 2, 9, 9]]
    assert [data.classes[label] for label in target.labels] == ["dog", "cat"]
    assert target.crowd.tolist() == [False, True]
    assert len(data.notes()) == 2


def test_voc_pictures_may_be_other_files_than_jpg_and_must_be_as_large_as_their_annotation_says(tmp_path):
    root = voc(tmp_path)
    (root / "JPEGImages" / "a.jpg").unlink()
    picture(root / "JPEGImages" / "a.png")
    assert open_scenes(root, "train", "boxes").picture(0)[0].size == (20, 16)
    picture(root / "JPEGImages" / "a.png", 10, 8)
    with pytest.raises(ValueError, match="the picture is 10 x 8, not 20 x 16"):
        open_scenes(root, "train", "boxes").picture(0)


def test_voc_label_maps_have_background_first_and_an_ignored_rim(tmp_path):
    data = open_scenes(voc(tmp_path), "train", "label_map")
    map_ = data.picture(0)[1].label_map
    assert (data.classes[0], data.classes[20], data.num_classes) == ("background", "tvmonitor", 21)
    assert map_.unique().tolist() == [0, 20, IGNORED]


def test_label_maps_are_paired_with_pictures_and_void_is_not_learnt(tmp_path):
    (tmp_path / "classes.txt").write_text("void\ngrass\nsky\n")
    for name in ("a", "b", "c", "d"):
        picture(tmp_path / "images" / "train" / f"{name}.jpg", 4, 2)
    numbers(tmp_path / "labels" / "train" / "a.png", [[0, 1, 2, 255]] * 2)
    numbers(tmp_path / "labels" / "train" / "b.png", [[1, 2, 1]] * 2)
    numbers(tmp_path / "labels" / "train" / "c.png", [[1, 2, 1, 9]] * 2)
    data = open_scenes(tmp_path, "train", "label_map")
    assert data.classes == ("grass", "sky")
    assert data.picture(0)[1].label_map[0].tolist() == [IGNORED, 0, 1, IGNORED]
    assert data.notes() == [f"{data.name}: 1 pictures without a label map were left out"]
    with pytest.raises(ValueError, match="its map is 3 x 2, the picture 4 x 2"):
        data.picture(1)
    with pytest.raises(ValueError, match="class number 9, which nobody named"):
        data.picture(2)


def test_a_label_map_is_that_of_the_same_sub_folder_or_the_only_one_of_its_name(tmp_path):
    (tmp_path / "classes.txt").write_text("\n".join("abcdef"))
    maps = {"seq1/0001": 1, "seq2/0001": 2, "seq3/0002": 3, "x/0003": 4, "y/0003": 5}
    for name, number in maps.items():
        numbers(tmp_path / "labels" / "train" / f"{name}.png", [[number] * 4] * 2)
    for name in ("seq1/0001", "seq2/0001", "0002", "0003"):
        picture(tmp_path / "images" / "train" / f"{name}.jpg", 4, 2)
    data = open_scenes(tmp_path, "train", "label_map")
    found = [(entry.path.parent.name, entry.path.stem, int(data.picture(index)[1].label_map[0, 0]))
             for index, entry in enumerate(data.entries)]  # fmt: skip
    assert sorted(found) == [("seq1", "0001", 1), ("seq2", "0001", 2), ("train", "0002", 3)]
    assert data.notes() == [f"{data.name}: 1 pictures without a label map were left out"]


def pets(root: Path) -> Path:
    lines = {
        "trainval": [("Abyssinian_1", 1, 1), ("beagle_2", 2, 2)],
        "test": [("Abyssinian_7", 1, 1), ("beagle_9", 2, 2)],
    }
    for split, rows in lines.items():
        (root / "annotations").mkdir(parents=True, exist_ok=True)
        text = "#comment\n" + "".join(f"{name} {breed} {species} 1\n" for name, breed, species in rows)
        (root / "annotations" / f"{split}.txt").write_text(text)
        for name, _, _ in rows:
            picture(root / "images" / f"{name}.jpg", 6, 5)
            trimap = np.full((5, 6), 2)
            trimap[1:5, 2:5], trimap[2:4, 3] = 3, 1
            numbers(root / "annotations" / "trimaps" / f"{name}.png", trimap)
    head = "<annotation><size><width>6</width><height>5</height></size><object><name>cat</name><bndbox><xmin>2</xmin>"
    (root / "annotations" / "xmls").mkdir()
    (root / "annotations" / "xmls" / "beagle_2.xml").write_text(
        f"{head}<ymin>1</ymin><xmax>4</xmax><ymax>3</ymax></bndbox></object></annotation>"
    )
    return root


def test_trimaps_of_pets_become_masks_boxes_and_label_maps(tmp_path):
    root = pets(tmp_path)
    data = open_scenes(root, "val", "masks")
    target = data.picture(1)[1]
    assert data.classes == ("Abyssinian", "beagle")
    assert target.boxes.tolist() == [[3, 2, 4, 4]]
    assert (target.labels.tolist(), int(target.masks.sum())) == ([1], 2)
    maps = open_scenes(f"pets_species:{root}", "train", "label_map")
    assert maps.classes == ("background", "cat", "dog")
    assert maps.picture(1)[1].label_map.unique(return_counts=True)[1].tolist() == [18, 2, 10]
    heads = open_scenes(f"pets_heads:{root}", "train", "boxes")
    assert heads.picture(0)[1].boxes.tolist() == [[1, 0, 4, 3]]
    with pytest.raises(ValueError, match="has boxes, but label maps are needed"):
        open_scenes(f"pets_heads:{root}", "train", "label_map")


def test_a_split_that_camvid_lacks_is_told_from_a_folder_that_is_no_camvid(tmp_path):
    picture(tmp_path / "train" / "x.png", 4, 2)
    numbers(tmp_path / "trainannot" / "x.png", np.zeros((2, 4)))
    with pytest.raises(ValueError, match="has no split 'test': looked for testannot"):
        open_scenes(tmp_path, "test", "label_map")
    with pytest.raises(ValueError, match="is no CamVid"):
        open_scenes(f"camvid:{tmp_path / 'train'}", "train", "label_map")


@pytest.mark.parametrize("form", ["numbers", "colours", "codes"])
def test_camvid_has_eleven_classes_in_each_of_its_forms(tmp_path, form):
    row = ["Sky", "LaneMkgsDriv", "MotorcycleScooter", "Void"]
    wanted = [CLASSES.index("Sky"), CLASSES.index("Road"), CLASSES.index("Bicyclist"), IGNORED]
    if form == "numbers":
        picture(tmp_path / "train" / "x.png", 4, 2)
        numbers(tmp_path / "trainannot" / "x.png", [[*wanted[:3], 11]] * 2)
    elif form == "colours":
        picture(tmp_path / "701_StillsRaw_full" / "x.png", 4, 2)
        colours = [(10 * i, 128, 200) for i in range(4)]
        text = "".join(f"{r} {g} {b}\t\t{name}\n" for (r, g, b), name in zip(colours, row))
        (tmp_path / "label_colors.txt").write_text(text)
        (tmp_path / "train.txt").write_text("x.png\n")
        numbers(tmp_path / "LabeledApproved_full" / "x_L.png", [colours] * 2)
    else:
        picture(tmp_path / "images" / "x.png", 4, 2)
        (tmp_path / "codes.txt").write_text("\n".join(row))
        (tmp_path / "valid.txt").write_text("y.png\n")
        numbers(tmp_path / "labels" / "x_P.png", [[0, 1, 2, 3]] * 2)
    data = open_scenes(tmp_path, "train", "label_map")
    assert data.classes == CLASSES
    assert len(CLASSES) == 11
    assert data.picture(0)[1].label_map[0].tolist() == wanted


def one_scene(count: int = 6) -> Any:
    images = [
        torch.randint(0, 255, (3, 20, 30), generator=torch.Generator().manual_seed(i)).byte() for i in range(count)
    ]
    mask = torch.zeros(1, 20, 30, dtype=torch.bool)
    mask[0, 5:15, 10:20] = True
    return scenes_of(images, [Target(torch.tensor([[10.0, 5, 20, 15]]), torch.tensor([0]), mask)] * count, ["thing"])


def test_boxes_and_masks_follow_the_picture_under_augmentation():
    recipe = lf.train.plain(flip=0.5, crop_scale=(0.3, 1.0), crop_ratio=(0.5, 2.0), color_jitter=0.4)
    data, seen = one_scene(1), 0
    for seed in range(20):
        torch.manual_seed(seed)
        image, target = SceneAugment(recipe)(*data.picture(0))
        assert image.shape[1:] == target.masks.shape[1:]
        for (left, top, right, bottom), mask in zip(target.boxes.round().int().tolist(), target.masks):
            seen += 1
            inside = torch.zeros_like(mask)
            inside[top:bottom, left:right] = True
            assert torch.equal(mask, inside)
    assert seen > 10


@pytest.mark.parametrize("size", [(20, 20), (40, 40), (90, 90)])
def test_label_maps_lie_where_their_pictures_lie_after_they_were_resized(size):
    label_map = (torch.arange(60) // 20 % 2 == 1).expand(60, 60).to(torch.uint8)  # the middle third
    shown = Image.fromarray(255 * label_map.numpy()).convert("RGB")
    image, target = SceneAugment(lf.train.plain(), size)(shown, Target(label_map=label_map))
    place = torch.arange(size[1]) + 0.5
    middles = [float((row * place).sum() / row.sum()) for row in (image[0, 0], target.label_map[0].float())]
    assert middles[1] == pytest.approx(middles[0], abs=0.26), "both in the middle"
    assert target.label_map.dtype == torch.uint8


def test_batches_from_any_update_on_are_those_of_a_run_from_the_start():
    recipe, plan = lf.train.plain(flip=0.5, crop_scale=(0.3, 1.0), color_jitter=0.4), Plan(6, 2, seed=3)
    view = SceneAugment(recipe, (12, 16))
    whole = list(training_scenes(one_scene(), view, Stretch(plan, 0, 7, CPU, 0)))
    torch.rand(5)
    rest = list(training_scenes(one_scene(), view, Stretch(plan, 4, 7, CPU, 0)))
    for one, other in zip(whole[4:], rest, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.images, other.images))
        assert all(torch.equal(a.boxes, b.boxes) for a, b in zip(one.labels, other.labels))
    assert not torch.equal(whole[0].images[0], whole[3].images[0])


def test_unreadable_pictures_are_replaced_in_training_and_told_in_evaluation(tmp_path):
    root = coco(tmp_path, [an_object([2, 3, 4, 4])])
    (root / "val2017" / "b.jpg").write_bytes(b"no picture")
    data = open_scenes(root, "val", "boxes")
    batch = next(training_scenes(data, SceneAugment(lf.train.plain()), Stretch(Plan(2, 2), 0, 1, CPU, 0)))
    assert len(batch.images) == 2
    assert "b.jpg" in batch.damaged[0]
    shown = [each for rows in evaluation_scenes(data, SceneEvaluation(), CPU, 2, 0) for each in rows]
    assert [bool(each.problem) for each in shown] == [False, True]


def test_each_process_shows_as_many_scenes_and_every_scene_counts_once():
    data = one_scene(5)
    shares = [[each for rows in evaluation_scenes(data, SceneEvaluation(), CPU, 2, 0, process, 2) for each in rows]
              for process in range(2)]  # fmt: skip
    assert [len(share) for share in shares] == [3, 3]
    assert sorted(each.index for share in shares for each in share if not each.again) == [0, 1, 2, 3, 4]
