"""How a service stands a load: locust's users for a minute, beside what predict makes of the same pictures.

    predict over the pictures → leanformer serve, locust: 64 users, each one picture after the other → predict again

Users compute on the same CPUs as the service, though next to nothing.
"""

import io
import json
import os
import random
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from PIL import Image

import leanformer as lf
from leanformer.measure import LoadByOthers, record, write_result

from .arguments import Apply, open_model
from .process_group import process_group

USERS = Path(__file__).parents[1] / "examples" / "serve" / "locustfile.py"
SIZES = ((224, 224), (320, 240), (500, 375), (375, 500))
"""Widths and heights of the pictures."""


def write_pictures(folder: Path, count: int) -> None:
    """A folder of so many JPEG files of smooth random colours, the same in every run."""
    folder.mkdir()
    files, draws = [], random.Random(0)
    for size in SIZES:
        few = Image.frombytes("RGB", (16, 16), draws.randbytes(16 * 16 * 3))
        file = io.BytesIO()
        few.resize(size, Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    for index in range(count):
        (folder / f"{index}.jpg").write_bytes(files[index % len(files)])


def percentile(times: dict[str, int], share: float) -> float:
    """Seconds below which a share of the answers came, from locust's counts by milliseconds.

    >>> percentile({"10": 9, "200": 1}, 0.5), percentile({"10": 9, "200": 1}, 0.95)
    (0.01, 0.2)
    """
    left = share * sum(times.values())
    for milliseconds, count in sorted((float(key), count) for key, count in times.items()):
        left -= count
        if left < 0:
            return milliseconds / 1000
    return max(map(float, times)) / 1000


def predict_rate(model: Any, folder: Path, device: str, batch: int) -> float:
    """Pictures a second of predict over a folder."""
    answers = lf.predict(model, folder, device=device, batch_size=batch)
    for _ in answers:
        pass
    return answers.report.rows / answers.report.seconds


def wait_until_up(url: str, process: Any, seconds: float = 300.0) -> dict[str, Any]:
    """What the service says of itself once it answers."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/healthz", timeout=5) as told:
                return json.load(told)
        except OSError:
            time.sleep(0.2)
    raise ValueError("the service did not start")


def put_load(checkpoint: Path, options: Sequence[str], clients: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Serve a checkpoint, let locust ask it, and give the figures of the load."""
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        port = some.getsockname()[1]
    url, python = f"http://127.0.0.1:{port}", sys.executable
    serve = [python, "-m", "leanformer", "serve", str(checkpoint), "--port", str(port), *options]
    ask = [python, "-m", "locust", "-f", str(USERS), "--host", url, "--headless", "--skip-log", "--json"]
    ask += ["-u", str(clients), "-r", str(clients), "-t", f"{seconds:g}s"]
    environment = {**os.environ, "PICTURES": str(folder / "photos")}
    with process_group([serve], [folder / "serve.log"], [environment]) as (service,):
        about = wait_until_up(url, service)
        with process_group([ask], [folder / "locust.log"], [environment]) as (users,):
            users.wait(seconds + 120)
    printed = (folder / "locust.log").read_text()
    told = next(iter(json.loads(printed[printed.find("[\n") :])), None) if "[\n" in printed else None
    if told is None:
        raise ValueError(f"no request was answered: {printed[-500:]}")
    times, took = told["response_times"], told["last_request_timestamp"] - told["start_time"]
    good = told["num_requests"] - told["num_failures"]
    found = {f"latency_p{share}": percentile(times, share / 100) for share in (50, 90, 99)}
    return {
        "runtime": about["runtime"], "input_size": about["input_size"], "classes": about["classes"],
        "clients": clients, "seconds": round(took, 2), "requests": told["num_requests"],
        "failed": told["num_failures"], "throughput": round(good / took, 2), **found,
        "latency_max": round(told["max_response_time"] / 1000, 4),
    }  # fmt: skip


def serve_load(
    model: Annotated[str, tyro.conf.Positional] = "vit_tiny_patch16_224",
    methods: Apply = ("evit:keep_rate=0.7",),
    clients: int = 64,
    seconds: float = 60.0,
    max_batch: int = 16,
    images: int = 512,
    device: str = "cpu",
    output: Path | None = None,
) -> int:
    """Load on `leanformer serve`, beside the throughput of `predict` on the same pictures before and after.

    Example: python -m lab serve-load --output results/serve_load_cpu.json

    Args:
        model: A model's name or a leanformer checkpoint.
        methods: Methods that are applied to it.
        clients: Users who ask at the same time, each one picture after the other.
        seconds: For how long.
        max_batch: Images that go through the model together, in the service and in predict.
        images: How many pictures predict gets.
        device: cpu or cuda.
        output: A JSON file for the figures.
    """
    lean = lf.fuse(open_model(model, methods=methods))
    with tempfile.TemporaryDirectory() as place:
        folder, others = Path(place), LoadByOthers()
        write_pictures(folder / "photos", images)
        before = predict_rate(lean, folder / "photos", device, max_batch)
        options = ["--device", device, "--max-batch", str(max_batch)]
        row = put_load(lf.save(lean, folder / "model.safetensors"), options, clients, seconds, folder)
        after = predict_rate(lean, folder / "photos", device, max_batch)
        share = others.share()
    rate = max(before, after)
    row = {"model": f"{model} {'+'.join(methods)}".strip(), "max_batch": max_batch, **row}
    row |= {"predict_before": round(before, 2), "predict_after": round(after, 2)}
    row["share_of_predict"] = round(row["throughput"] / rate, 3)
    row["p99_over_median"] = round(row["latency_p99"] / row["latency_p50"], 2)
    row["load_beside_this_process"] = None if share is None else round(share, 2)
    for key, value in row.items():
        print(f"{key:16} {value}")
    if output is not None:
        write_result(record("serve load", [row], device), output)
    return 1 if row["failed"] else 0
