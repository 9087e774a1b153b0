"""The page in a real browser: a dropped picture gets its classes and its kept patches drawn over it."""

import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

from browser import CHROMIUM, browsing
from serving import NAMES, serving, tiny, tiny_served, written

import leanformer as lf
from leanformer.serve import of_model

PIXELS = """(() => {
  const canvas = document.querySelector("canvas"), pen = canvas.getContext("2d"), found = [];
  for (let r = 0; r < 4; r++) for (let c = 0; c < 4; c++)
    found.push(pen.getImageData(32 + 16 * c + 8, 16 * r + 8, 1, 1).data[0]);
  return {size: [canvas.width, canvas.height], inside: found, outside: pen.getImageData(5, 32, 1, 1).data[0]};
})()"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_dropped_picture_shows_its_classes_and_its_kept_patches(tmp_path):
    # white, 128 x 64: the model sees the middle 64 x 64, in 4 x 4 patches of 16 pixels
    (tmp_path / "white.png").write_bytes(written(Image.new("RGB", (128, 64), "white")))
    (tmp_path / "note.png").write_text("no image")
    served = tiny_served(lf.EViT())
    served.config["crop_pct"] = 1.0
    with serving(served) as url, browsing(tmp_path / "profile") as page:
        page.open(url, ready="document.querySelector('#model').textContent")
        page.drop(tmp_path / "white.png", "#drop")
        page.until("document.querySelector('article.done') !== null")
        words = page.ask("document.querySelector('article').innerText")
        dimmed = page.ask(PIXELS)
        page.ask("document.querySelector('#show').click()")
        plain = page.ask(PIXELS)
        page.drop(tmp_path / "note.png", "h1")
        refusal = page.until("document.querySelector('article.failed')?.innerText")
    kept = served(_seen(served))[0].kept
    assert [patch for patch, light in enumerate(dimmed["inside"]) if light == 255] == kept
    assert set(dimmed["inside"]) == {255, dimmed["outside"]}
    assert dimmed["outside"] < 100
    assert set(plain["inside"]) == {255}
    assert dimmed["size"] == [128, 64]
    assert "white.png" in words
    assert all(name in words for name in NAMES)
    assert f"{len(kept)} of 16 patches kept" in words
    assert "not an image" in refusal
    _stayed_at_home(page, url)


def two_models(lean, teacher):
    """Both behind one address, as `GET /models` and `POST /models/NAME/classify`."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Mount, Route

    from leanformer.serve.app import create_app

    apps = {served.name: create_app(served) for served in (lean, teacher)}
    about = [
        {"model": each.name, "runtime": each.runtime, "classes": 5, "input_size": each.config["input_size"]}
        for each in (lean, teacher)
    ]

    async def models(request):
        return JSONResponse({"default": lean.name, "models": about})

    mounts = [Mount(f"/models/{name}", app) for name, app in apps.items()]
    return Starlette(routes=[Route("/models", models), *mounts, Mount("/", apps[lean.name])]), apps


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_a_sample_is_answered_by_the_lean_model_and_by_its_teacher(tmp_path, monkeypatch, screenshot, width, scheme):
    lean = of_model(tiny(lf.EViT(keep_rate=0.5)), "lean", NAMES)
    app, apps = two_models(lean, of_model(tiny(), "teacher", NAMES))
    monkeypatch.setattr("serving.create_app", lambda *_, **__: app)
    with serving(lean) as url, browsing(tmp_path / "profile") as page:
        page.open(url, ready="document.querySelector('#model').textContent", width=width, scheme=scheme)
        assert page.ask("document.querySelectorAll('#samples button').length") == 4
        page.ask("document.querySelector('#samples button').click()")
        page.until("document.querySelector('article.done') !== null")
        screenshot(page, f"service_{width}_{scheme}")
        words = page.ask("document.querySelector('article').innerText")
        places = page.ask("[...document.querySelectorAll('article section')].map(s => s.getBoundingClientRect().top)")
        assert page.ask("document.documentElement.scrollWidth") <= width
        assert page.ask("document.querySelectorAll('canvas').length") == 2
    for each in apps.values():
        each.state.service.close()
    assert "flower.jpg" in words
    assert words.index("lean") < words.index("teacher")
    assert words.count(" ms") == 2
    assert words.count("patches kept") == 1
    assert (places[0] == places[1]) == (width == 1280), "beside each other where there is room, else below"
    _stayed_at_home(page, url)


def _seen(served):
    from leanformer.serve import Decoder

    return Decoder(served.config)(written(Image.new("RGB", (128, 64), "white"))).pixels[None]


def _stayed_at_home(page, url: str) -> None:
    """No script failed, and nothing was asked of anybody but the service."""
    assert not [m for m in page.messages if m.get("method") == "Runtime.exceptionThrown"]
    asked = [m["params"]["request"]["url"] for m in page.messages if m.get("method") == "Network.requestWillBeSent"]
    assert asked
    assert all(address.startswith((url, "blob:", "data:")) for address in asked)
