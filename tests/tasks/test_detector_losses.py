"""Losses of a whole batch at once are those of torchvision, which goes picture by picture."""

import pytest
import torch
from torchvision.models import detection
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler, BoxCoder, Matcher
from torchvision.ops import MultiScaleRoIAlign, box_iou

import leanformer as lf
from leanformer.tasks.detector_regions import pool, rois_of
from leanformer.tasks.detector_targets import Objects, decode, encode, match, objects_of, sample

SIZES = ((64, 96), (80, 96), (96, 72), (96, 96))
ALL = 100_000
"""Places to sample: more than there are."""


def detector(kind: str, **options) -> torch.nn.Module:
    torch.manual_seed(0)
    body = lf.create("metaformer", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), num_classes=5)
    model = lf.tasks.detector(kind, body, 3, channels=16, min_size=96, max_size=96, **options).train()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def scenes(counts: tuple[int, ...] = (1, 3, 0, 2)) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    torch.manual_seed(1)
    images, targets = [], []
    for (height, width), count in zip(SIZES, counts):
        corner = torch.rand(count, 2) * torch.tensor([width - 40, height - 40])
        boxes = torch.cat([corner, corner + 8 + 30 * torch.rand(count, 2)], 1).round()
        masks = torch.zeros(count, height, width, dtype=torch.uint8)
        for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist()):
            mask[top:bottom, left:right] = 1
        images.append(torch.rand(3, height, width))
        targets.append({"boxes": boxes, "labels": torch.randint(1, 4, (count,)), "masks": masks})
    return images, targets


def gradients(model: torch.nn.Module, losses: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    model.zero_grad()
    sum(losses.values()).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def assert_same(model, mine, theirs) -> None:
    assert set(mine) == set(theirs)
    for name, loss in theirs.items():
        torch.testing.assert_close(
            mine[name], loss, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )
    one, other = gradients(model, mine), gradients(model, theirs)
    for name, grad in other.items():
        torch.testing.assert_close(one[name], grad, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("counts", [(1, 3, 0, 2), (1, 1, 1, 1), (0, 0, 0, 0)])
def test_retinanet_learns_what_torchvisions_learns(counts):
    model = detector("retinanet")
    images, targets = scenes(counts)
    theirs = detection.RetinaNet.forward(model, images, [{**each, "labels": each["labels"] - 1} for each in targets])
    assert_same(model, model(images, targets), theirs)


@pytest.mark.parametrize("kind", ["faster_rcnn", "mask_rcnn"])
@pytest.mark.parametrize("counts", [(1, 3, 0, 2), (1, 1, 1, 1), (0, 0, 0, 0)])
def test_two_stages_learn_what_torchvisions_learn_where_all_places_are_sampled(kind, counts):
    model = detector(kind)
    model.rpn.fg_bg_sampler = model.roi_heads.fg_bg_sampler = BalancedPositiveNegativeSampler(ALL, 0.5)
    images, targets = scenes(counts)
    theirs = detection.MaskRCNN.forward(model, images, targets)
    assert_same(model, model(images, targets), theirs)


def test_boxes_without_area_and_targets_without_masks_are_refused():
    model = detector("mask_rcnn")
    images, targets = scenes((1, 1, 1, 1))
    wrong = [*targets[:2], {**targets[2], "boxes": torch.tensor([[3.0, 3.0, 3.0, 9.0]])}, targets[3]]
    with pytest.raises(AssertionError, match=r"Found invalid box .* for target at index 2"):
        model(images, wrong)
    with pytest.raises(AssertionError, match="targets should not be none"):
        model(images)
    with pytest.raises(ValueError, match="should have a masks key"):
        model(images, [{key: each[key] for key in ("boxes", "labels")} for each in targets])


@pytest.mark.parametrize("low_quality", [False, True])
def test_anchors_are_matched_as_torchvision_matches_them(low_quality):
    torch.manual_seed(0)
    matcher = Matcher(0.5, 0.3, allow_low_quality_matches=low_quality)
    corners = torch.rand(2, 60, 2, 2).sort(2)[0] * 40
    anchors, boxes = corners[0].flatten(1), corners[1, :8].flatten(1).unflatten(0, (2, 4))
    there = torch.tensor([[True, True, True, False], [True, False, False, False]])
    objects = Objects(boxes, torch.ones(2, 4), there, torch.tensor([[40, 40]] * 2))
    found = match(objects, anchors, matcher)
    for picture in range(2):
        assert torch.equal(found[picture], matcher(box_iou(boxes[picture][there[picture]], anchors)))
    assert set(found.unique().tolist()) >= {-2, -1, 0}


def test_the_sample_holds_as_many_objects_and_background_as_torchvisions():
    torch.manual_seed(0)
    labels = torch.randint(-1, 3, (6, 200)) * (torch.rand(6, 200) < torch.linspace(0, 1, 6)[:, None])
    labels[5] = labels[5].abs()
    ours, chosen = sample(labels > 0, labels == 0, 64, 0.25)
    for picture, (positive, negative) in enumerate(zip(*BalancedPositiveNegativeSampler(64, 0.25)(list(labels)))):
        taken = ours[picture][chosen[picture]]
        assert len(taken.unique()) == len(taken)
        assert (labels[picture][taken] > 0).sum() == positive.sum()
        assert (labels[picture][taken] == 0).sum() == negative.sum()


def test_moves_are_coded_as_torchvision_codes_them():
    torch.manual_seed(0)
    boxes, anchors = (torch.rand(2, 9, 2, 2).sort(2)[0].flatten(2) * 50).unbind(0)
    for weights in ((1.0, 1.0, 1.0, 1.0), (10.0, 10.0, 5.0, 5.0), (1.0, 2.0, 3.0, 4.0)):
        coder = BoxCoder(weights)
        moves = encode(boxes, anchors, weights)
        torch.testing.assert_close(moves, coder.encode_single(boxes, anchors))
        torch.testing.assert_close(decode(3 * moves, anchors, coder), coder.decode_single(3 * moves, anchors))


def test_regions_are_pooled_as_torchvision_pools_them():
    torch.manual_seed(0)
    maps = {str(level): torch.randn(2, 4, 64 >> level, 96 >> level) for level in range(3)}
    corners = torch.rand(2, 30, 2, 2).sort(2)[0] * torch.tensor([384.0, 256.0])
    regions, pooler = corners.flatten(2), MultiScaleRoIAlign(["0", "1", "2"], 7, 2, canonical_scale=56)
    theirs = pooler(maps, list(regions), [(256, 384)] * 2)
    torch.testing.assert_close(pool(maps, rois_of(regions), pooler), theirs)


@pytest.mark.parametrize("kind", ["faster_rcnn", "mask_rcnn"])
def test_two_stages_learn_what_torchvisions_learn_of_boxes_beyond_the_edges_and_smaller_than_a_pixel(kind):
    model = detector(kind)
    model.rpn.fg_bg_sampler = model.roi_heads.fg_bg_sampler = BalancedPositiveNegativeSampler(ALL, 0.5)
    images, targets = scenes((2, 2, 2, 2))
    for target, (height, width) in zip(targets, SIZES):
        target["boxes"] = torch.tensor([[-9.0, 7.0, 20.0, height + 9.0], [width - 0.4, 5.0, width, height - 5.0]])
        target["masks"][:, 5:, :20] = target["masks"][:, :, -3:] = 1
    theirs = detection.MaskRCNN.forward(model, images, targets)
    assert_same(model, model(images, targets), theirs)


@pytest.mark.parametrize("kind", ["faster_rcnn", "mask_rcnn"])
def test_regions_that_are_no_numbers_are_left_out_as_torchvision_leaves_them_out(kind):
    model = detector(kind)
    model.rpn.fg_bg_sampler = model.roi_heads.fg_bg_sampler = BalancedPositiveNegativeSampler(ALL, 0.5)
    images, targets = scenes()
    for broken in (model.rpn.head.bbox_pred.bias[:1], model.backbone.fpn.inner_blocks[0][0].bias):
        broken.data.fill_(float("nan"))  # as where half precision overflows, of which such an update is skipped
        mine, theirs = model(images, targets), detection.MaskRCNN.forward(model, images, targets)
        for name, loss in theirs.items():
            torch.testing.assert_close(mine[name], loss, rtol=1e-4, atol=1e-6, equal_nan=True)
    assert all(loss.isnan() for loss in mine.values())


def test_targets_that_fit_neither_their_images_nor_the_classes_are_refused_in_words():
    model = detector("mask_rcnn")
    images, targets = scenes((2, 2, 1, 1))
    one, two = targets[0], targets[1]
    fewer = {"labels": two["labels"][:1]}
    for changed, words in (
        ([one, two], "4 images came with 2 targets: give one for each image"),
        (
            [one, {**two, "labels": torch.tensor([1, 4])}, *targets[2:]],
            "target 1 has the label 4; .* 3 classes has 1 … 3",
        ),
        ([{**one, "labels": torch.tensor([0, 1])}, *targets[1:]], "target 0 has the label 0"),
        ([one, {**two, **fewer}, *targets[2:]], "target 1 has 2 boxes and 1 labels: give one for each box"),
        ([{**one, "masks": one["masks"][:1]}, *targets[1:]], "target 0 has 2 boxes and 1 masks"),
        ([{**one, "masks": two["masks"]}, *targets[1:]], "masks of target 0 are 80 x 96, its image 64 x 96"),
    ):
        with pytest.raises(ValueError, match=words):
            model(images, changed)
    for corner in ("nan", "inf"):
        wrong = {**one, "boxes": torch.tensor([[3.0, 3.0, 9.0, 9.0], [3.0, 3.0, 9.0, float(corner)]])}
        with pytest.raises(AssertionError, match=r"Found invalid box .* for target at index 0"):
            model(images, [wrong, *targets[1:]])


def test_labels_may_be_any_whole_numbers_and_those_of_a_picture_without_objects_anything():
    model, (images, targets) = detector("retinanet"), scenes()
    other = [{**each, "labels": each["labels"].to(torch.uint8 if len(each["labels"]) else torch.float32)}
             for each in targets]  # fmt: skip
    assert model(images, other) == model(images, targets)
    assert objects_of(other, SIZES).labels.dtype == torch.long


@pytest.mark.parametrize("kind", ["retinanet", "faster_rcnn"])
def test_a_detector_of_boxes_looks_at_no_masks(kind):
    model, (images, targets) = detector(kind), scenes()
    plain = [{name: each[name] for name in ("boxes", "labels")} for each in targets]
    torch.manual_seed(2)
    wanted = model(images, plain)
    for some in ([targets[0], *plain[1:]], [{**plain[0], "masks": torch.zeros(5, 7, 7)}, *targets[1:]]):
        torch.manual_seed(2)
        assert model(images, some) == wanted


def test_masks_are_as_many_and_as_large_as_those_of_their_picture():
    _, targets = scenes((40, 1, 0, 2))
    kept = objects_of(targets, SIZES).masks
    assert all(mask.data_ptr() == each["masks"].data_ptr() for mask, each in zip(kept, targets, strict=True))


def test_anchors_are_made_anew_for_another_generator():
    model, (images, targets) = detector("retinanet"), scenes()
    before, generator = model(images, targets), model.anchor_generator
    halved = tuple(tuple(side / 2 for side in sides) for sides in generator.sizes)
    model.anchor_generator = type(generator)(halved, generator.aspect_ratios)
    theirs = detection.RetinaNet.forward(model, images, [{**each, "labels": each["labels"] - 1} for each in targets])
    after = model(images, targets)
    torch.testing.assert_close(after["bbox_regression"], theirs["bbox_regression"])
    assert after["bbox_regression"] != before["bbox_regression"]


def test_a_retinanet_of_half_precision_learns_what_torchvisions_learns():
    model, (images, targets) = detector("retinanet").bfloat16(), scenes()
    images = [image.bfloat16() for image in images]
    theirs = detection.RetinaNet.forward(model, images, [{**each, "labels": each["labels"] - 1} for each in targets])
    mine = model(images, targets)
    torch.testing.assert_close(mine["bbox_regression"], theirs["bbox_regression"], rtol=1e-5, atol=0)
    torch.testing.assert_close(mine["classification"], theirs["classification"], rtol=2**-6, atol=0)


def test_an_objects_own_box_is_not_to_be_moved_at_all():
    boxes = 1000 + torch.rand(200, 2, 2, generator=torch.Generator().manual_seed(0)).sort(1)[0].flatten(1)
    assert not encode(boxes, boxes, (10.0, 10.0, 5.0, 5.0)).any()
