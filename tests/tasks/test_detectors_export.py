"""Detectors in ONNX Runtime: the same boxes at two image sizes, and a file that lies is found out."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import leanformer as lf
from leanformer.cli import main
from leanformer.export import Drift
from leanformer.export.detection import compare, open_detector

BODIES = {
    "poolformer": ("metaformer", {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}),
    "swin": (
        "swin",
        {"img_size": 64, "embed_dim": 8, "depths": (2, 2, 2, 2), "num_heads": (1, 1, 2, 2), "window_size": 4},
    ),
    "deit": ("deit", {"img_size": 64, "patch_size": 16, "embed_dim": 16, "depth": 1, "num_heads": 2}),
}  # fmt: skip


def sure_of_something(kind: str, family: str) -> torch.nn.Module:
    """A detector with weights so large that some of its scores are high."""
    torch.manual_seed(0)
    name, arguments = BODIES[family]
    body = lf.apply(lf.create(name, num_classes=5, **arguments), lf.RePa(idle_ratio=0.5))
    model = lf.tasks.detector(kind, body, 3, channels=16, min_size=96, max_size=128, detections=20)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    if kind == "retinanet":
        torch.nn.init.constant_(model.head.classification_head.cls_logits.bias, -1.0)
    return lf.recalibrate(model, [list(torch.rand(2, 3, 64, 96))]).eval()


FIRST = ("retinanet", "poolformer")
MORE = [("retinanet", "swin"), ("mask_rcnn", "poolformer"), ("mask_rcnn", "swin"), ("faster_rcnn", "deit")]


@pytest.mark.parametrize(
    ("kind", "family"), [FIRST, *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in MORE)]
)
def test_a_fused_detector_finds_the_same_boxes_in_onnx_runtime_at_two_image_sizes(kind, family, tmp_path):
    model = sure_of_something(kind, family)
    written = lf.export.onnx(model, tmp_path / "detector.onnx")
    assert written.notes["boxes"] >= 10
    assert written.notes["sizes"] == [(96, 128), (128, 96)]
    run = open_detector(written.path)
    images = [torch.rand(3, *size) for size in ((50, 70), (90, 61), (80, 110))]  # resized inside, in float64
    assert compare(model, run, images, 0.3)[0] < 1e-3

    def moved(image: torch.Tensor) -> dict[str, torch.Tensor]:
        found = run(image)
        return {**found, "boxes": found["boxes"] + 1.0}

    with pytest.raises(Drift, match="is off by"):
        compare(model, moved, images, 0.3)
    with pytest.raises(ValueError, match=r"holds a detector, which lf\.export\.open_detector opens"):
        lf.export.open_file(written.path)


@pytest.mark.parametrize("size", [(), ("--size", "80", "110")])
def test_the_verb_compares_a_detectors_file_on_pictures_of_a_folder(size, tmp_path, capsys):
    root, sides = tmp_path / "coco", [(60, 80), (80, 60), (70, 70)]
    (root / "val").mkdir(parents=True)
    (root / "annotations").mkdir()
    for number, each in enumerate(sides):
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (*each, 3), np.uint8)).save(
            root / "val" / f"{number}.png"
        )
    (root / "val" / "1.png").write_bytes(b"broken")
    content = {
        "images": [{"id": i, "file_name": f"{i}.png", "width": w, "height": h} for i, (h, w) in enumerate(sides)],
        "categories": [{"id": 1, "name": "thing"}],
        "annotations": [{"image_id": 0, "category_id": 1, "bbox": [1, 1, 9, 9]}],
    }
    (root / "annotations" / "instances_val.json").write_text(json.dumps(content))
    saved = str(lf.save(sure_of_something("retinanet", "poolformer"), tmp_path / "boxes.safetensors"))
    told = tmp_path / "told.json"
    command = ["export", saved, "--output", str(tmp_path / "boxes.onnx"), "--data", str(root), "--result", str(told)]
    assert main([*command, *size]) == 0
    assert "boxes" in capsys.readouterr().out
    assert json.loads(told.read_text())["rows"][1]["boxes"] >= 10
    with pytest.raises(ValueError, match="does not exist"):
        open_detector(tmp_path / "none.onnx")


def test_a_file_that_holds_no_detector_is_refused_by_its_answers(tmp_path):
    body = lf.create("metaformer", num_classes=3, depths=(1,), dims=(8,))
    written = lf.export.onnx(body, tmp_path / "body.onnx")
    with pytest.raises(ValueError, match="is no detector's file"):
        lf.export.open_detector(written.path)
    (tmp_path / "broken.onnx").write_bytes(b"broken")
    with pytest.raises(ValueError, match="onnxruntime cannot open"):
        lf.export.open_detector(tmp_path / "broken.onnx")


def vit_detector() -> torch.nn.Module:
    vit = lf.create("vit", img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2)
    model = lf.tasks.detector("retinanet", vit, 2, channels=16, min_size=64, max_size=96, detections=20).eval()
    torch.nn.init.constant_(model.head.classification_head.cls_logits.bias, -0.5)
    return model


def test_what_the_exporter_lacks_is_said_in_one_line(tmp_path):
    with pytest.raises(
        ValueError, match=r"resamples positions .* this exporter lacks; give one size=\(height, width\)"
    ):
        lf.export.onnx(vit_detector(), tmp_path / "vit.onnx")
    assert not list(tmp_path.iterdir())


def test_what_a_detectors_file_cannot_have_is_refused_in_words(tmp_path):
    model, path = vit_detector(), tmp_path / "boxes.onnx"
    with pytest.raises(ValueError, match="preprocess is for classifiers"):
        lf.export.onnx(model, path, preprocess=(64, 64), size=(64, 90))
    with pytest.raises(ValueError, match=r"takes detectors in float32, not bfloat16; convert with model\.float\(\)"):
        lf.export.onnx(vit_detector().bfloat16(), path)
    with pytest.raises(ValueError, match="images for the comparison are none"):
        lf.export.onnx(model, path, size=(64, 90), images=[])
    with pytest.raises(ValueError, match="give one size"):  # as where no size is given
        lf.export.onnx(model, path, size="any")
    assert not list(tmp_path.iterdir())


@pytest.mark.exhaustive
def test_a_vit_under_a_detector_is_exported_for_one_size_that_is_not_square(tmp_path):
    written = lf.export.onnx(vit_detector(), tmp_path / "vit.onnx", size=(64, 90))
    assert written.notes["boxes"] >= 5
    assert written.notes["sizes"] == [(64, 90)]


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::leanformer.core.plan.FreshStatistics")
@pytest.mark.parametrize("family", ["poolformer", "vit"])
def test_a_segmenter_gives_the_same_logits_in_onnx_runtime_for_images_of_any_size(family, tmp_path):
    name, arguments = BODIES["deit"] if family == "vit" else BODIES[family]
    body = lf.apply(lf.create("vit" if family == "vit" else name, **arguments), lf.RePa(idle_ratio=0.5))
    model = lf.tasks.segmenter("fpn", body, 3, channels=64).eval()
    written = lf.export.onnx(model, tmp_path / "any.onnx", size="any")
    assert written.parity.error < 1e-4
    run, images = lf.export.open_file(written.path), torch.rand(3, 3, 70, 81)
    with torch.no_grad():
        torch.testing.assert_close(run(images), model(images), atol=1e-4, rtol=1e-4)


def upernet() -> torch.nn.Module:
    body = lf.create("metaformer", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))
    return lf.tasks.segmenter("upernet", body, 3, channels=16).eval()


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::leanformer.core.plan.FreshStatistics")
def test_a_segmenter_is_exported_for_one_size(tmp_path):
    model = upernet()
    written = lf.export.torch(model, tmp_path / "one.pt2", size=(64, 96))
    assert written.notes["sizes"] == [(64, 96)]
    with torch.no_grad():
        images = torch.rand(2, 3, 64, 96)
        torch.testing.assert_close(lf.export.open_file(written.path)(images), model(images), atol=1e-4, rtol=1e-4)


def test_sizes_that_a_file_cannot_have_are_refused_with_the_reason(tmp_path):
    with pytest.raises(ValueError, match="pools a map to so many places"):
        lf.export.onnx(upernet(), tmp_path / "any.onnx", size="any")
    with pytest.raises(ValueError, match="torch takes images of one size"):
        lf.export.torch(upernet(), tmp_path / "any.pt2", size="any")
    with pytest.raises(ValueError, match="size is for detectors and segmenters"):
        lf.export.onnx(lf.create("metaformer", depths=(1,), dims=(8,)), tmp_path / "body.onnx", size=(64, 64))


@pytest.mark.exhaustive
def test_the_verb_exports_detectors_and_segmenters_and_refuses_what_only_classifiers_have(tmp_path, capsys):
    saved = str(lf.save(vit_detector(), tmp_path / "boxes.safetensors"))
    assert main(["export", saved, "--output", str(tmp_path / "boxes.onnx"), "--size", "64", "90"]) == 0
    assert "boxes.onnx" in capsys.readouterr().out
    assert main(["export", saved, "--output", str(tmp_path / "again.onnx"), "--preprocess", "64", "90"]) == 2
    assert "are for classifiers, but this is a model for detection" in capsys.readouterr().err
