"""Whatever bytes a client sends, and however slowly: a proper status or a closed line, and the service lives on."""

import http.client
import json
import random
import re
import socket
import time
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")
pytest.importorskip("python_multipart", reason="the extra 'serve' is not installed")

from damage import damaged_bytes
from serve.serving import picture, serving, tiny_served

from leanformer.serve import Limits

LIMITS = Limits(body=100_000, pixels=200_000, request_pixels=300_000, images=3, seconds=1.0, headers=0.3, connections=8)
PATHS = [
    "/classify", "/classify?top=2", "/classify?top=" + "9" * 40, "/classify?top=%ff", "/", "/healthz", "/metrics",
    "/%00", "//", "/zz", "*",
]  # fmt: skip
METHODS = ["POST", "POST", "POST", "GET", "PUT", "HEAD", "OPTIONS", "CONNECT", "zz", "", "\x00"]
VERSIONS = ["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9", "", "ICY"]
BOUNDARY = "xyz"


@pytest.fixture(scope="module")
def url():
    with serving(tiny_served(), LIMITS) as address:
        yield address


def form(draws: random.Random) -> bytes:
    """A multipart body, whole or not."""
    parts = []
    for number in range(draws.choice([0, 1, 2, 5])):
        name = draws.choice(["f.png", "日本.png", "", "a" * 3000, 'x"; name="y', "\udcff", "../../x"])
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{number}"; filename="{name}"\r\n'
        head += draws.choice(["", "Content-Type: image/png\r\n", "Content-Type: zz\r\n", "zz\r\n", ": \r\n"])
        parts.append(head.encode("utf-8", "surrogateescape") + b"\r\n" + image(draws) + b"\r\n")
    return b"".join(parts) + draws.choice([f"--{BOUNDARY}--\r\n", f"--{BOUNDARY}", "", "--\r\n"]).encode()


def image(draws: random.Random) -> bytes:
    data = picture(
        draws.choice([1, 8, 60]), draws.choice([1, 8, 40]), draws.choice(["PNG", "JPEG", "GIF", "WEBP", "BMP"])
    )
    return data if draws.random() < 0.3 else damaged_bytes(data, draws)


def request(draws: random.Random) -> bytes:
    """One request: two in three proper ones around any body, the others wrong in their first line or headers too."""
    several = draws.random() < 0.5
    body = form(draws) if several else draws.choice([image(draws), b"", bytes(150_000), draws.randbytes(300)])
    headers: list[tuple[str, Any]] = [("Host", "x")]
    if several:
        bound = draws.choice([BOUNDARY, BOUNDARY, "", "zz", "x" * 300, '"', "\x00"])
        headers.append(("Content-Type", f"multipart/form-data; boundary={bound}"))
    if draws.random() < 0.66:
        path, kind = draws.choice(PATHS[:2]), f"multipart/form-data; boundary={BOUNDARY}" if several else "image/png"
        return (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
    length = draws.choice([len(body), len(body), len(body), len(body) // 2, len(body) + 10, -1, "zz", "", 10**30])
    kind = draws.random()
    if kind < 0.8:
        headers.append(("Content-Length", length))
    elif kind < 0.9:
        headers.append(("Transfer-Encoding", draws.choice(["chunked", "zz", "gzip, chunked"])))
        body = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n" if draws.random() < 0.6 else body
    odd = [("Expect", "100-continue"), ("Connection", "upgrade"), ("Upgrade", "websocket"), ("X", "y" * 20_000)]
    odd += [("Content-Length", 3), ("Content-Encoding", "gzip"), ("", "y"), ("X\x00", "\x00"), ("Host", "")]
    headers += draws.sample(odd, draws.choice([0, 0, 0, 1, 2]))
    draws.shuffle(headers)
    head = f"{draws.choice(METHODS)} {draws.choice(PATHS)} {draws.choice(VERSIONS)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers) + "\r\n"
    whole = head.encode("latin-1", "replace") + body
    return damaged_bytes(whole, draws) if draws.random() < 0.15 else whole


def sent(url: str, data: bytes, draws: random.Random) -> bytes:
    """What comes back for bytes sent at once, in pieces, or only in part."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        try:
            if draws.random() < 0.1:
                data = data[: draws.randrange(len(data) + 1)]
            pieces = draws.choice([1, 1, 1, 3])
            for piece in range(pieces):
                line.sendall(data[piece * len(data) // pieces : (piece + 1) * len(data) // pieces])
                time.sleep(0.01 if pieces > 1 else 0)
            if draws.random() < 0.05:
                line.shutdown(socket.SHUT_WR)
            return received(line)
        except TimeoutError:
            return b"neither answered nor closed"
        except OSError:  # it was closed while we were sending
            return b""


def received(line: socket.socket) -> bytes:
    """An answer: what comes until the line is closed, or silent after something has come."""
    parts = [line.recv(65_536)]
    line.settimeout(0.05)
    try:
        while parts[-1]:
            parts.append(line.recv(65_536))
    except TimeoutError:
        pass
    return b"".join(parts)


def outcome(answer: bytes) -> str:
    """The class of an answer; whatever must not be begins with 'bad'."""
    if not answer:
        return "closed"
    status = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    if status is None:
        return f"bad: {answer[:60]!r}"
    if status[1] == b"100":
        return outcome(answer.partition(b"\r\n\r\n")[2])
    head, _, body = answer.partition(b"\r\n\r\n")
    if status[1] == b"500" or b"Traceback" in answer:
        return f"bad: {answer[-200:]!r}"
    if int(status[1]) >= 400 and b"application/json" in head.lower() and b"HTTP/1.1" not in body and body:
        json.loads(body)
    return status[1].decode()


def alive(url: str) -> bool:
    line = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    line.request("POST", "/classify", picture())
    return line.getresponse().status == 200


@pytest.mark.parametrize("cases", [60], indirect=True)
def test_requests(cases, seed, tally: Counter[str], url, caplog):
    wrong = []
    for number in range(cases):
        draws = random.Random(f"http/{seed}/{number}")
        found = outcome(sent(url, request(draws), draws))
        tally[found[:40]] += 1
        if found.startswith("bad"):
            wrong.append(f"{number}: {found}")
    assert not wrong, wrong
    assert alive(url)
    assert not [record for record in caplog.records if record.exc_info], caplog.text


def test_slow_clients_beyond_the_limit_of_connections_are_dropped_and_others_served(url):
    host, port = url.removeprefix("http://").split(":")
    lines = []
    for number in range(3 * LIMITS.connections):
        line = socket.create_connection((host, int(port)), timeout=5)
        line.sendall(b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1"[: 10 + 20 * (number % 4)])
        lines.append(line)
    time.sleep(LIMITS.seconds + 0.5)
    assert alive(url)
    for line in lines:
        line.close()
