"""What one client may cost the others: connections without a request, pixels to decode, models that are broken."""

import asyncio
import contextlib
import io
import json
import resource
import socket
import threading
import time

import pytest
import torch
from PIL import Image

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")
pytest.importorskip("python_multipart", reason="the extra 'serve' is not installed")
httpx = pytest.importorskip("httpx", reason="httpx, the tests' client, is not installed")

from serving import NAMES, picture, serving, tiny, tiny_served, written  # noqa: E402

import leanformer as lf  # noqa: E402
from leanformer.cli import main, serve_work  # noqa: E402
from leanformer.core import set_classes  # noqa: E402
from leanformer.serve import Decoder, Full, Limits, Served  # noqa: E402
from leanformer.serve.decoding import Budget  # noqa: E402
from leanformer.serve.server import bound, most_connections  # noqa: E402
from leanformer.serve.shelf import Entry  # noqa: E402


def connect(url: str, sent: bytes = b"") -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)), timeout=5)
    line.sendall(sent)
    return line


def answer(line: socket.socket) -> bytes:
    """What comes until the other side closes."""
    parts = []
    while part := line.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def closed(line: socket.socket) -> bool:
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [b"", b"POST /classify HTTP/1.1\r\nHost: x\r\n"])
def test_clients_that_never_finish_their_headers_do_not_keep_others_out(sent):
    with serving(tiny_served(), Limits(connections=20, headers=30)) as url:
        lines = [connect(url, sent) for _ in range(60)]
        assert httpx.post(f"{url}/classify", content=picture(), timeout=5).status_code == 200
        assert closed(lines[0])  # the oldest gave way
        [line.close() for line in lines]


def test_headers_that_do_not_come_are_408_after_the_time_limit():
    with serving(tiny_served(), Limits(headers=0.3)) as url:
        start = time.perf_counter()
        told = answer(connect(url, b"POST /classify HTTP/1.1\r\nHost: x\r\n"))
        assert 0.2 < time.perf_counter() - start < 3
    assert told.startswith(b"HTTP/1.1 408 ")
    assert json.loads(told.rpartition(b"\r\n\r\n")[2])["detail"] == "no whole request came within 0.3 s"


def test_a_connection_trickling_on_after_its_answer_is_closed():
    with serving(tiny_served(), Limits(headers=0.4)) as url:
        line = connect(url, b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert line.recv(65_536).startswith(b"HTTP/1.1 404 ")
        start = time.perf_counter()
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while time.perf_counter() - start < 5:
                line.sendall(b"x")
                time.sleep(0.05)
        assert time.perf_counter() - start < 3


def test_a_request_that_is_being_worked_on_does_not_give_way():
    slow = threading.Event()

    def forward(images: torch.Tensor) -> tuple[torch.Tensor, None]:
        slow.wait(5)
        return torch.zeros(len(images), 5), None

    served = Served(name="x", runtime="test", config=tiny_served().config, classes=NAMES, forward=forward)
    statuses: list[int] = []
    with serving(served, Limits(connections=2)) as url:
        asks = [
            threading.Thread(
                target=lambda: statuses.append(httpx.post(f"{url}/classify", content=picture()).status_code)
            )
            for _ in range(2)
        ]
        [each.start() for each in asks]
        time.sleep(0.3)
        refused = answer(connect(url))
        slow.set()
        [each.join() for each in asks]
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert statuses == [200, 200]


def test_connections_stay_below_the_systems_limit_of_open_files(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (256, 4096))
    assert most_connections(Limits()) == 192


def large(side: int) -> bytes:
    return written(Image.new("RGB", (side, side)), compress_level=1)


def test_large_pictures_of_some_do_not_delay_a_small_one_of_another():
    limits = Limits(seconds=60)
    files = [("f", (str(i), data)) for i, data in enumerate([large(3500)] * 4)]  # 49 megapixels
    done: list[tuple[int, float]] = []

    def ask(url: str) -> None:
        done.append((httpx.post(f"{url}/classify", files=files, timeout=60).status_code, time.perf_counter()))

    with serving(tiny_served(), limits) as url:
        httpx.post(f"{url}/classify", content=picture())
        threads = [threading.Thread(target=ask, args=(url,)) for _ in range(3)]
        [thread.start() for thread in threads]
        time.sleep(0.2)
        assert httpx.post(f"{url}/classify", content=picture(), timeout=30).status_code == 200
        small = time.perf_counter()
        [thread.join() for thread in threads]
    assert [status for status, _ in done] == [200] * 3
    assert small < min(end for _, end in done)


def test_a_request_of_too_many_pixels_is_refused_before_any_is_decoded(monkeypatch):
    monkeypatch.setattr(Decoder, "__call__", lambda self, data: pytest.fail("decoded"))
    with serving(tiny_served(), Limits(request_pixels=5_000_000)) as url:
        told = httpx.post(f"{url}/classify", files=[("f", (str(i), large(1500))) for i in range(3)])
    assert told.status_code == 413
    assert "6750000 pixels to decode together; up to 5000000" in told.json()["detail"]


def test_every_ten_scans_of_a_jpeg_cost_its_pixels_once_more():
    plain = written(Image.new("RGB", (64, 64)), "JPEG")
    decoder = Decoder(tiny_served().config)
    assert decoder.cost(plain) == 64 * 64
    scan = plain[plain.index(b"\xff\xda") : -2]
    assert decoder.cost(plain[:-2] + 30 * scan + plain[-2:]) == 4 * 64 * 64


def test_scans_cost_the_same_in_a_jpeg_that_says_that_more_pictures_follow():
    black = Image.new("RGB", (64, 64))
    plain = written(black, "MPO", save_all=True, append_images=[black])
    assert Image.open(io.BytesIO(plain)).format == "MPO"
    decoder = Decoder(tiny_served().config)
    assert decoder.cost(plain) == 64 * 64
    scan = plain[plain.index(b"\xff\xda") : plain.index(b"\xff\xd9")]
    assert decoder.cost(plain + 30 * scan) == 4 * 64 * 64


def test_decoded_images_wait_for_a_model_up_to_the_limit_of_bytes():
    entry = Entry(tiny_served(), Limits(waiting=20_000), max_batch=64, max_wait=60.0, turn=threading.Lock())
    image = torch.zeros(3, 32, 32)  # 12,288 bytes
    entry.submit([image], "classes")
    with pytest.raises(Full, match="1 images of 12288 bytes wait already"):
        entry.submit([image], "classes")
    entry.close()


def test_a_budget_is_given_in_turn_and_survives_those_who_give_up():
    async def run() -> list[str]:
        budget, order = Budget(10), []

        async def job(name: str, amount: int) -> None:
            taken = await budget.take(amount)
            order.append(name)
            await asyncio.sleep(0.01)
            budget.give(taken)

        jobs = [asyncio.create_task(job(name, amount)) for name, amount in (("a", 8), ("b", 99), ("c", 1), ("d", 1))]
        await asyncio.sleep(0)
        jobs[2].cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        assert budget.left == 10
        return order

    assert asyncio.run(run()) == ["a", "b", "d"]


def test_a_model_of_nans_answers_500_as_json():
    def forward(images: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.full((len(images), 5), torch.nan), None

    served = Served(name="x", runtime="test", config=tiny_served().config, classes=NAMES, forward=forward)
    with serving(served) as url:
        told = httpx.post(f"{url}/classify", content=picture())
    assert (told.status_code, told.headers["content-type"]) == (500, "application/json")
    assert "not finite" in told.json()["detail"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--port", "99999"], "--port must be a number from 0 to 65535, not 99999"),
        (["--host", "999.1.1.1"], "cannot listen on --host 999.1.1.1"),
        (["--timeout", "inf"], "--timeout must be a finite number above 0, not inf"),
        (["--max-connections", "0"], "the limit connections=0"),
    ],
)
def test_addresses_and_limits_that_cannot_be_are_one_line(options, line, tmp_path, capsys):
    path = lf.save(tiny(), tmp_path / "model.safetensors")
    assert main(["serve", str(path), *options]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert line in told


def test_a_port_that_is_taken_is_told():
    with bound("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(ValueError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use"):
            bound("127.0.0.1", taken.getsockname()[1])


def test_the_names_on_a_models_card_are_answered(tmp_path, monkeypatch):
    names = ["n01440764", "n01443537", "cat", "dog", "elk"]
    path = lf.save(set_classes(tiny(), names), tmp_path / "model.safetensors")
    told = []
    monkeypatch.setattr(serve_work, "listen", lambda served, *rest: told.append(served[0].classes))
    assert main(["serve", str(path)]) == 0
    assert told == [("tench", "goldfish", "cat", "dog", "elk")]
