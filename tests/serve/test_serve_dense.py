"""Detectors and segmenters over HTTP: what predict says, within the same limits, and drawn on the page."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")
pytest.importorskip("python_multipart", reason="the extra 'serve' is not installed")
httpx = pytest.importorskip("httpx", reason="httpx, the tests' client, is not installed")

from browser import CHROMIUM, browsing  # noqa: E402
from scenes import small_detector, small_segmenter  # noqa: E402
from serving import picture, serving, tiny_served, written  # noqa: E402

import leanformer as lf  # noqa: E402
from leanformer.cli import main  # noqa: E402
from leanformer.prediction.dense import Objects, Regions  # noqa: E402
from leanformer.prediction.running import Runner  # noqa: E402
from leanformer.prediction.views import WholeView  # noqa: E402
from leanformer.serve import Limits, OnnxFile, ServedDense, of_model  # noqa: E402

THINGS = ("square", "disc")
AREAS = ("ground", "square", "disc")


def detector() -> torch.nn.Module:
    model = small_detector("mask_rcnn").eval()
    model.roi_heads.score_thresh, model.roi_heads.detections_per_img = 0.0, 4
    return model


def test_answers_over_http_are_the_rows_of_predict(tmp_path):
    models = {"boxes": detector(), "maps": small_segmenter().eval()}
    names = {"boxes": THINGS, "maps": AREAS}
    files = [picture(60, 40), picture(40, 60, seed=1)]
    for index, data in enumerate(files):
        (tmp_path / f"{index}.png").write_bytes(data)
    served = [of_model(model, name, names[name]) for name, model in models.items()]
    with serving(served) as url:
        form = [("files", (f"{index}.png", data)) for index, data in enumerate(files)]
        found = httpx.post(f"{url}/detect", files=form).raise_for_status().json()["images"]
        sure = (found[0]["objects"][1]["score"] + found[0]["objects"][2]["score"]) / 2
        fewer = httpx.post(f"{url}/models/boxes/detect?score={sure}", content=files[0]).json()["images"][0]["objects"]
        maps = httpx.post(f"{url}/models/maps/segment", files=form).raise_for_status().json()["images"]
    rows = list(lf.predict(models["boxes"], tmp_path, classes=THINGS, device="cpu", workers=0))
    for told, row in zip(found, rows, strict=True):
        assert told["size"] == row["size"].tolist()
        assert [each["name"] for each in told["objects"]] == row["names"]
        np.testing.assert_allclose([each["box"] for each in told["objects"]], row["boxes"], atol=0.01)
        np.testing.assert_allclose([each["score"] for each in told["objects"]], row["scores"], atol=1e-6)
        assert [each["mask"]["counts"] for each in told["objects"]] == row["masks"]
    assert len(fewer) == 2
    rows = list(lf.predict(models["maps"], tmp_path, classes=AREAS, device="cpu", workers=0))
    for told, row in zip(maps, rows, strict=True):
        assert base64.b64decode(told["label_map"]) == row["label_map"]
        assert [each["index"] for each in told["classes"]] == row["classes"].tolist()
        assert sum(each["share"] for each in told["classes"]) == pytest.approx(1)


def test_what_a_model_does_not_do_is_refused_with_what_it_does():
    served = [of_model(detector(), "boxes", THINGS), tiny_served()]
    with serving(served, Limits(pixels=10_000)) as url:
        told = {each["model"]: each for each in httpx.get(f"{url}/models").json()["models"]}
        refusals = [
            httpx.post(f"{url}{path}", content=data)
            for path, data in (
                ("/classify", picture()), ("/models/boxes/embed", picture()), ("/models/tiny/detect", picture()),
                ("/models/tiny/segment", picture()), ("/detect", b"no picture"), ("/detect", picture(200, 60)),
                ("/detect", picture(9_000, 1)), ("/detect?score=2", picture()),
            )
        ]  # fmt: skip
        text = httpx.get(f"{url}/metrics").text
    assert {name: (each["task"], each["answers"]) for name, each in told.items()} == {
        "boxes": ("detection", ["detect"]),
        "tiny": ("classification", ["classify", "embed"]),
    }
    assert [each.status_code for each in refusals] == [422, 422, 422, 422, 415, 413, 422, 422]
    says = [each.json()["detail"] for each in refusals]
    assert says[0] == "boxes gives no classes; it answers POST /models/boxes/detect"
    assert says[3] == "tiny gives no label maps; it answers POST /models/tiny/classify or POST /models/tiny/embed"
    assert "too narrow" in says[6]
    assert 'leanformer_requests_total{model="boxes",status="422"}' in text


@pytest.mark.exhaustive
def test_a_model_that_answers_nonsense_is_not_served():
    model = small_segmenter().eval()
    model.head.bias.data[0] = float("nan")
    with pytest.raises(ValueError, match="not a finite number; its weights are broken"):
        of_model(model, "maps", AREAS).warm_up(1)


@pytest.mark.exhaustive
def test_an_exported_detector_is_refused_with_what_is_served_instead(tmp_path, capsys):
    torch.manual_seed(0)
    model = small_detector().eval()
    with pytest.warns(UserWarning, match="no box"):
        lf.export.onnx(model, tmp_path / "boxes.onnx")
    with pytest.raises(ValueError, match="3 outputs, so it is no classifier; detectors and segmenters are served"):
        OnnxFile.read(tmp_path / "boxes.onnx")
    assert main(["serve", str(tmp_path / "boxes.onnx")]) == 2
    assert "so it is no classifier" in capsys.readouterr().err


def known(task: str) -> ServedDense:
    """A model that finds a square with a mask of its left half; or ground, and a disc on the right half."""

    def find(images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        mask = torch.zeros(2, 1, 28, 28)
        mask[:, :, :, :14] = 1.0
        boxes = torch.tensor([[20.0, 10.0, 60.0, 50.0], [80.0, 10.0, 100.0, 30.0]])
        scores = torch.tensor([0.9, 0.1])
        return [{"boxes": boxes, "labels": torch.tensor([1, 2]), "scores": scores, "masks": mask} for _ in images]

    def divide(images: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(images), 3, *images.shape[2:])
        logits[:, 2, :, images.shape[3] // 2 :] = 1.0
        return logits

    view = WholeView(3)
    answers = Objects(find, THINGS, masks=True) if task == "detection" else Regions(divide, AREAS, (0.5,), (0.5,))
    return ServedDense(
        name=task, runtime="test", task=task, config={"input_size": (3, 64, 128)}, classes=answers.classes, view=view,
        runner=Runner(answers, view, torch.device("cpu"), 2),
    )  # fmt: skip


PIXEL = """(x, y, n) =>
[...document.querySelectorAll('canvas')[n].getContext('2d').getImageData(x, y, 1, 1).data].slice(0, 3)"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_page_draws_boxes_masks_and_label_maps_over_the_picture(tmp_path, screenshot):
    (tmp_path / "white.png").write_bytes(written(Image.new("RGB", (128, 64), "white")))
    with serving([known("detection"), known("segmentation")]) as url, browsing(tmp_path / "profile") as page:
        page.open(url, ready="document.querySelector('#model').textContent", width=1280, scheme="light")
        page.drop(tmp_path / "white.png", "#drop")
        page.until("document.querySelector('article.done, article.failed') !== null")
        words = page.ask("document.querySelector('article').innerText")
        places = {"edge": (59, 48, 0), "mask": (30, 40, 0), "inside": (50, 40, 0), "unsure": (90, 20, 0),
                  "ground": (20, 30, 1), "disc": (100, 30, 1)}  # fmt: skip
        drawn = {name: page.ask(f"({PIXEL})({x}, {y}, {n})") for name, (x, y, n) in places.items()}
        masked = {y: [page.ask(f"({PIXEL})({x}, {y}, 0)") for x in range(24, 36)] for y in (30, 40, 58)}
        screenshot(page, "service_dense")
        page.ask("document.querySelector('#show').click()")
        plain = [page.ask(f"({PIXEL})({x}, {y}, {n})") for x, y, n in places.values()]
    white = [255, 255, 255]
    assert drawn["inside"] == drawn["unsure"] == white
    assert plain == [white] * len(places)
    assert all(drawn[name] != white for name in ("edge", "mask", "ground", "disc"))
    assert drawn["ground"] != drawn["disc"]
    assert masked[30] == masked[40] == [drawn["mask"]] * 12, "the mask has no gaps"
    assert masked[58] == [white] * 12, "and ends with its box"
    expected = np.asarray(Image.open(io.BytesIO(_label_map())).convert("RGB"))
    for name, x in (("ground", 20), ("disc", 100)):
        np.testing.assert_allclose(drawn[name], 0.6 * expected[30, x] + 0.4 * 255, atol=2)
    assert "1 object found, 1 more below 0.3" in words
    assert words.count("50.0%") == 2
    assert "agree" not in words, "boxes and label maps cannot be compared by their names"
    assert not [m for m in page.messages if m.get("method") == "Runtime.exceptionThrown"]


def _label_map() -> bytes:
    return known("segmentation")([torch.zeros(3, 64, 128, dtype=torch.uint8)])[0]["label_map"]
