"""Detectors in ONNX Runtime: the same boxes at two image sizes, and a file that lies is found out."""

import pytest
import torch

import leanformer as lf
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
    images = [torch.rand(3, *size) for size in ((50, 70), (90, 61))]  # other sizes again, which are resized inside
    assert compare(model, run, images, 0.3)[0] < 1e-3

    def moved(image: torch.Tensor) -> dict[str, torch.Tensor]:
        found = run(image)
        return {**found, "boxes": found["boxes"] + 1.0}

    with pytest.raises(Drift, match="is off by"):
        compare(model, moved, images, 0.3)


@pytest.mark.exhaustive
def test_what_the_exporter_lacks_is_said_in_one_line(tmp_path):
    vit = lf.create("vit", img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2)
    model = lf.tasks.detector("retinanet", vit, 2, channels=16, min_size=64, max_size=96).eval()
    with pytest.raises(ValueError, match="onnx cannot take this RetinaNet: UnsupportedOperatorError"):
        lf.export.onnx(model, tmp_path / "vit.onnx")
    assert not list(tmp_path.iterdir())
