"""The verb `serve` as users run it: a process of its own, an ONNX file, SIGTERM, a repository for Triton."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
httpx = pytest.importorskip("httpx", reason="httpx, the tests' client, is not installed")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format  # noqa: E402
from serving import NAMES, free_port, picture, tiny, tiny_served  # noqa: E402

import leanformer as lf  # noqa: E402
from leanformer.cli import main  # noqa: E402
from leanformer.core import set_classes  # noqa: E402
from leanformer.serve import OnnxFile, of_file  # noqa: E402


@pytest.fixture(scope="module")
def emitted(tmp_path_factory) -> Path:
    """The folder that `--emit triton` writes for a checkpoint."""
    folder = tmp_path_factory.mktemp("serve")
    lf.save(set_classes(tiny(lf.EViT()), NAMES), folder / "lean.safetensors")
    verb = ["serve", "--emit", "triton", str(folder / "models"), str(folder / "lean.safetensors")]
    assert main([*verb, "--max-batch", "8"]) == 0
    return folder / "models" / "lean"


@pytest.fixture(scope="module")
def file(emitted) -> Path:
    return emitted / "1" / "model.onnx"


def test_an_onnx_file_answers_as_its_model(file):
    served = of_file(OnnxFile.read(file), lf.export.open_file(file), "tiny", NAMES)
    images = torch.randn(3, 3, 32, 32)
    for one, other in zip(served(images), tiny_served(lf.EViT())(images)):
        torch.testing.assert_close(one.probabilities, other.probabilities, atol=1e-5, rtol=1e-4)
    assert served.config["mean"] == lf.core.input_of(tiny())["mean"]


def test_an_exported_file_keeps_the_names_of_the_classes(file):
    assert OnnxFile.read(file).classes == tuple(NAMES)


def test_a_file_with_its_own_preprocessing_is_refused(file):
    import dataclasses

    with pytest.raises(ValueError, match="exported without preprocessing"):
        of_file(dataclasses.replace(OnnxFile.read(file), preprocess=[64, 64]), print, "tiny", NAMES)


def test_a_file_that_is_no_onnx_is_one_line_on_stderr(tmp_path, capsys):
    (tmp_path / "x.onnx").write_text("no model")
    assert main(["serve", str(tmp_path / "x.onnx")]) == 2
    assert "x.onnx" in capsys.readouterr().err


@pytest.mark.slow
def test_sigterm_lets_requests_in_flight_finish(file):
    port = free_port()
    command = [sys.executable, "-m", "leanformer.cli", "serve", str(file), "--port", str(port)]
    # a window this long keeps requests in the queue until after the signal
    command += ["--classes", str(file.parents[1] / "labels.txt"), "--max-batch", "64", "--max-wait", "1500"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    answers: list[int] = []

    def ask() -> None:
        answers.append(httpx.post(f"http://127.0.0.1:{port}/classify", content=picture(), timeout=30).status_code)

    try:
        _until_up(process, port)
        threads = [threading.Thread(target=ask) for _ in range(8)]
        [thread.start() for thread in threads]
        _until_waiting(port, 8)
        process.send_signal(signal.SIGTERM)
        [thread.join() for thread in threads]
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert answers == [200] * 8
    assert process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in errors
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/healthz")


def _until_up(process: subprocess.Popen, port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            httpx.get(f"http://127.0.0.1:{port}/healthz")
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"the service did not start: {process.poll()}")


def _until_waiting(port: int, count: int) -> None:
    deadline = time.monotonic() + 1.4
    while time.monotonic() < deadline:
        if httpx.get(f"http://127.0.0.1:{port}/healthz").json()["waiting"] >= count:
            return
        time.sleep(0.02)


def triton_config():
    """The part of Triton's ModelConfig message that the file uses, to parse it as strictly as Triton does."""
    file = descriptor_pb2.FileDescriptorProto(name="model_config.proto", package="inference", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    types = file.enum_type.add(name="DataType")
    for number, name in {0: "TYPE_INVALID", 2: "TYPE_UINT8", 10: "TYPE_FP16", 11: "TYPE_FP32"}.items():
        types.value.add(name=name, number=number)

    def message(name: str, /, **fields: tuple) -> None:
        made = file.message_type.add(name=name)
        for number, (field, (kind, many)) in enumerate(fields.items(), 1):
            own = isinstance(kind, str)
            one = made.field.add(name=field, number=number, type=kinds.TYPE_MESSAGE if own else kind)
            one.label = kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL
            if own or kind == kinds.TYPE_ENUM:
                one.type_name = f".inference.{kind if own else 'DataType'}"

    text, number, enum = kinds.TYPE_STRING, kinds.TYPE_INT64, kinds.TYPE_ENUM
    message("ModelInput", name=(text, 0), data_type=(enum, 0), dims=(number, 1))
    message("ModelOutput", name=(text, 0), data_type=(enum, 0), dims=(number, 1), label_filename=(text, 0))
    message("Batching", preferred_batch_size=(number, 1), max_queue_delay_microseconds=(number, 0))
    message("Value", string_value=(text, 0))
    message("Parameter", key=(text, 0), value=("Value", 0))
    message(
        "ModelConfig",
        **{"name": (text, 0), "platform": (text, 0), "max_batch_size": (number, 0), "input": ("ModelInput", 1)},
        **{"output": ("ModelOutput", 1), "dynamic_batching": ("Batching", 0), "parameters": ("Parameter", 1)},
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))()


def test_emit_triton_writes_a_whole_model_repository(emitted):
    config = text_format.Parse((emitted / "config.pbtxt").read_text(), triton_config())
    assert (config.name, config.platform, config.max_batch_size) == ("lean", "onnxruntime_onnx", 8)
    assert (config.input[0].name, list(config.input[0].dims), config.input[0].data_type) == ("images", [3, 32, 32], 11)
    assert (config.output[0].name, list(config.output[0].dims)) == ("logits", [5])
    assert list(config.dynamic_batching.preferred_batch_size) == [4, 8]
    assert config.dynamic_batching.max_queue_delay_microseconds == 5000
    assert "evit" in config.parameters[0].value.string_value
    assert (emitted / config.output[0].label_filename).read_text().splitlines() == NAMES
    session = onnxruntime.InferenceSession(str(emitted / "1" / "model.onnx"))
    assert session.run(["logits"], {"images": np.zeros((8, 3, 32, 32), np.float32)})[0].shape == (8, 5)


def test_names_that_do_not_fit_the_model_are_refused(file, tmp_path):
    (tmp_path / "few.txt").write_text("ant\nbee")
    verb = ["serve", "--emit", "triton", str(tmp_path / "models"), str(file), "--classes", str(tmp_path / "few.txt")]
    assert main(verb) == 2
    assert not (tmp_path / "models").exists()
