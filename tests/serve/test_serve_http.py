"""The service over a real socket: answers, limits, refusals, load."""

import http.client
import re
import struct
import threading
import time
import zlib

import pytest
import torch
from PIL import Image

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")
pytest.importorskip("python_multipart", reason="the extra 'serve' is not installed")
httpx = pytest.importorskip("httpx", reason="httpx, the tests' client, is not installed")

from serving import NAMES, picture, serving, tiny, tiny_served, written  # noqa: E402

import leanformer as lf  # noqa: E402
from leanformer.serve import Limits, Served, of_model  # noqa: E402

LIMITS = Limits(body=200_000, pixels=1_000_000, images=4, seconds=20, queue=256)


@pytest.fixture(scope="module")
def url():
    with serving(tiny_served(lf.EViT()), LIMITS) as address:
        yield address


def seen(model: torch.nn.Module, data: bytes) -> torch.Tensor:
    import io

    return lf.visualise.images.as_batch(model, Image.open(io.BytesIO(data)))


def test_an_image_gets_the_classes_that_the_model_gives_it(url):
    told = httpx.post(f"{url}/classify?top=3", content=picture()).raise_for_status().json()
    with torch.no_grad():
        expected = tiny(lf.EViT())(seen(tiny(), picture())).softmax(-1)[0]
    (image,) = told["images"]
    assert told["model"] == "tiny"
    assert [c["index"] for c in image["classes"]] == expected.topk(3).indices.tolist()
    assert [c["name"] for c in image["classes"]] == [NAMES[i] for i in expected.topk(3).indices]
    assert [c["probability"] for c in image["classes"]] == pytest.approx(expected.topk(3).values.tolist(), abs=1e-5)


def test_the_kept_patches_are_those_of_the_last_location(url):
    kept = httpx.post(f"{url}/classify", content=picture()).json()["images"][0]["kept"]
    last = lf.kept_patches(tiny(lf.EViT()), seen(tiny(), picture()))[-1][0]
    assert kept["grid"] == [4, 4]
    assert kept["patches"] == sorted(last[last >= 0].tolist())
    assert 0 < len(kept["patches"]) < 16


def test_the_box_is_the_part_of_the_picture_that_the_model_saw():
    model = tiny(lf.EViT())
    model.pretrained_cfg["crop_pct"] = 0.8
    with serving(of_model(model, "tiny", NAMES)) as url:
        box = httpx.post(f"{url}/classify", content=picture(100, 50)).json()["images"][0]["kept"]["box"]
    assert box == pytest.approx([0.3, 0.1, 0.4, 0.8])


def test_several_files_are_answered_in_order(url):
    files = [("files", (f"{i}.png", picture(seed=i), "image/png")) for i in range(3)]
    together = httpx.post(f"{url}/classify", files=files).raise_for_status().json()["images"]
    alone = [httpx.post(f"{url}/classify", content=picture(seed=i)).json()["images"][0] for i in range(3)]
    assert [image["file"] for image in together] == ["0.png", "1.png", "2.png"]
    for one, other in zip(together, alone):
        assert [c["index"] for c in one["classes"]] == [c["index"] for c in other["classes"]]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_every_known_format_is_read(url, kind):
    assert httpx.post(f"{url}/classify", content=picture(kind=kind)).status_code == 200


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16"])
def test_pictures_of_every_mode_are_read(url, mode):
    image = Image.new(mode, (40, 40))
    assert httpx.post(f"{url}/classify", content=written(image)).status_code == 200


def test_a_picture_taken_sideways_is_turned_upright(url):
    image = Image.radial_gradient("L").resize((64, 64)).convert("RGB")
    image.paste((255, 0, 0), (0, 0, 32, 16))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    turned = image.transpose(Image.Transpose.ROTATE_90)
    first, second = (
        httpx.post(f"{url}/classify", content=data).json()["images"][0]["classes"]
        for data in (written(image), written(turned, exif=exif))
    )
    assert first == second


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes = b"", more: bytes = b"") -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + more + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


BOMBS = {
    "huge dimensions": (png(60_000, 60_000), 413),
    "dimensions just above the limit": (png(1001, 1000), 413),
    "a line that would grow when resized": (written(Image.new("L", (900_000, 1))), 422),
    "a compressed text of 50 MB": (png(8, 8, more=chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(50_000_000)))), 422),
    "no dimensions": (png(0, 0), 415),
    "fewer pixels than promised": (png(500, 500, bytes(1000)), 422),
    "a truncated JPEG": (picture(200, 200, "JPEG")[:3000], 422),
    "only a JPEG's first bytes": (b"\xff\xd8\xff\xe0", 415),
    "a text file": (b"this is no image\n" * 50, 415),
    "an SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="9"/></svg>', 415),
    "an over-large body": (bytes(300_000), 413),
    "a very much over-large body": (bytes(3_000_000), 413),
    "nothing": (b"", 422),
}


@pytest.mark.parametrize("case", BOMBS)
def test_a_bomb_or_a_non_image_gets_a_4xx_and_the_service_lives_on(url, case):
    data, status = BOMBS[case]
    answer = httpx.post(f"{url}/classify", content=data)
    assert (answer.status_code, answer.json()["detail"] != "") == (status, True)
    assert httpx.post(f"{url}/classify", content=picture()).status_code == 200


def test_a_body_of_unstated_length_is_limited_too(url):
    answer = httpx.post(f"{url}/classify", content=(bytes(50_000) for _ in range(8)))
    assert answer.status_code == 413


def test_one_bad_file_among_good_ones_is_refused(url):
    files = [("f", ("a.png", picture())), ("f", ("b.png", b"text"))]
    assert httpx.post(f"{url}/classify", files=files).status_code == 415


def test_too_many_files_are_refused(url):
    files = [("f", (f"{i}.png", picture())) for i in range(5)]
    assert httpx.post(f"{url}/classify", files=files).status_code == 413


@pytest.mark.parametrize(
    "kind", ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=x"]
)
@pytest.mark.parametrize(
    "body", [b"", b"--x\r\nbroken", b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\nb\r\n--x--"]
)
def test_a_damaged_form_gets_a_4xx(url, kind, body):
    answer = httpx.post(f"{url}/classify", content=body, headers={"Content-Type": kind})
    assert 400 <= answer.status_code < 500


def test_a_wrong_number_of_classes_to_tell_is_refused(url):
    assert httpx.post(f"{url}/classify?top=0", content=picture()).status_code == 422


def test_healthz_names_the_model(url):
    told = httpx.get(f"{url}/healthz").json()
    assert told["status"] == "ok"
    assert (told["model"], told["classes"], told["input_size"]) == ("tiny", 5, [3, 32, 32])


def metric(text: str, name: str) -> float:
    return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)[1])  # type: ignore[index]


def test_metrics_count_requests_failures_images_batches_and_time():
    with serving(tiny_served()) as url:
        httpx.post(f"{url}/classify", files=[("f", ("a", picture())), ("f", ("b", picture()))])
        httpx.post(f"{url}/classify", content=b"text")
        text = httpx.get(f"{url}/metrics").text
    for status in ("200", "415"):
        assert metric(text, f'leanformer_requests_total{{model="tiny",status="{status}"}}') == 1
    assert metric(text, 'leanformer_images_total{model="tiny"}') == 2
    assert metric(text, 'leanformer_batch_size_sum{model="tiny"}') == 2
    assert metric(text, 'leanformer_request_seconds_bucket{le="+Inf",model="tiny"}') == 2
    assert metric(text, 'leanformer_request_seconds_count{model="tiny"}') == 2


def test_a_model_that_drops_nothing_tells_no_patches():
    with serving(tiny_served()) as url:
        assert httpx.post(f"{url}/classify", content=picture()).json()["images"][0]["kept"] is None


def slow(seconds: float) -> Served:
    def forward(images: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(seconds)
        return torch.zeros(len(images), 5), None

    config = tiny_served().config
    return Served(name="slow", runtime="test", config=config, classes=NAMES, forward=forward)


def test_a_full_queue_answers_503_with_retry_after():
    statuses: list[tuple[int, str | None]] = []

    def ask(url: str) -> None:
        answer = httpx.post(f"{url}/classify", content=picture(), timeout=20)
        statuses.append((answer.status_code, answer.headers.get("retry-after")))

    with serving(slow(0.3), Limits(queue=2, images=2), max_batch=1, max_wait=0.0) as url:
        threads = [threading.Thread(target=ask, args=(url,)) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert set(statuses) == {(200, None), (503, "1")}


def test_a_late_answer_is_504_and_what_nobody_waits_for_is_not_computed():
    served = slow(0.5)
    with serving(served, Limits(seconds=0.25), max_batch=1, max_wait=0.0) as url:
        answer = httpx.post(f"{url}/classify", files=[("f", (str(i), picture())) for i in range(3)])
        text = httpx.get(f"{url}/metrics").text
    assert answer.status_code == 504
    assert metric(text, 'leanformer_batch_size_count{model="slow"}') == 1


def test_a_body_that_does_not_come_is_408():
    def trickle():
        yield b"x"
        time.sleep(0.6)
        yield b"x"

    with serving(tiny_served(), Limits(seconds=0.2)) as url:
        assert httpx.post(f"{url}/classify", content=trickle()).status_code == 408


def test_a_model_that_fails_gives_500_and_the_service_lives_on():
    calls = []

    def forward(images: torch.Tensor) -> tuple[torch.Tensor, None]:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("out of memory")
        return torch.zeros(len(images), 5), None

    served = Served(name="x", runtime="test", config=tiny_served().config, classes=NAMES, forward=forward)
    with serving(served) as url:
        first, second = (httpx.post(f"{url}/classify", content=picture()).status_code for _ in range(2))
    assert (first, second) == (500, 200)


def test_64_clients_at_once_all_get_answers_and_share_batches():
    statuses: list[int] = []

    def ask(url: str) -> None:
        line = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
        for _ in range(4):
            line.request("POST", "/classify", picture())
            answer = line.getresponse()
            answer.read()
            statuses.append(answer.status)
        line.close()

    with serving(tiny_served(lf.EViT()), max_batch=16, max_wait=0.01) as url:
        threads = [threading.Thread(target=ask, args=(url,)) for _ in range(64)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        text = httpx.get(f"{url}/metrics").text
    assert statuses == [200] * 256
    assert metric(text, 'leanformer_images_total{model="tiny"}') == 256
    assert metric(text, 'leanformer_batch_size_count{model="tiny"}') < 200  # images did go together


def test_the_page_needs_no_network(url):
    answer = httpx.get(f"{url}/")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"(src|href)=.?(https?:)?//", answer.text)
