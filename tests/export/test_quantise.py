"""int8 files: smaller, close to the float file, from the target's own tools; and runtimes in the bench table."""

import copy
import importlib.util
import json
from pathlib import Path

import pytest
import torch
from families import VIT, images
from helpers import randomise

import leanformer as lf
from leanformer.cli import main
from leanformer.export import quantise
from leanformer.export.parity import relative_error
from leanformer.export.sensitive import sensitive_products

WIDE = {**VIT, "depth": 2, "embed_dim": 128}


@pytest.fixture(scope="module")
def model():
    return randomise(lf.create("vit", **WIDE), scale=0.02).eval()


@pytest.fixture(scope="module")
def source(model, tmp_path_factory) -> Path:
    return lf.export.onnx(model, tmp_path_factory.mktemp("int8") / "wide.onnx").path


def agrees(model, path: Path) -> None:
    x = images(model, 5)
    with torch.no_grad():
        assert 0 < relative_error(model(x), lf.export.open_file(path)(x)) < 0.15


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_int8_onnx_is_smaller_close_and_keeps_its_card(mode, model, source, tmp_path):
    onnx = pytest.importorskip("onnx")
    path = quantise(source, tmp_path / "int8.onnx", mode=mode, calibration=images(model, 16))
    assert path.stat().st_size < 0.5 * source.stat().st_size
    agrees(model, path)
    file = onnx.load(str(path))
    assert "leanformer" in {entry.key for entry in file.metadata_props}
    assert any("Integer" in node.op_type or node.op_type == "QuantizeLinear" for node in file.graph.node)


def test_a_product_that_one_large_token_would_spoil_stays_in_float(model, tmp_path):
    spoilt = copy.deepcopy(model)
    with torch.no_grad():  # one hidden channel far beyond the others, and a weight that makes little of it
        spoilt.blocks[1].ffn.fn.fc1.bias[0] = 300.0
        spoilt.blocks[1].ffn.fn.fc2.weight[:, 0] = 0.0
    source = lf.export.onnx(spoilt, tmp_path / "spoilt.onnx").path
    found = sensitive_products(source, images(model, 8))
    assert len(found) == 1
    assert sensitive_products(lf.export.onnx(model, tmp_path / "wide.onnx").path, images(model, 8)) == []
    for mode in ("static", "dynamic"):
        agrees(spoilt, quantise(source, tmp_path / f"{mode}.onnx", mode=mode, calibration=images(model, 16)))


@pytest.mark.skipif(importlib.util.find_spec("nncf") is None, reason="nncf is not installed: leanformer[openvino]")
def test_int8_openvino_is_smaller_and_close(model, tmp_path):
    source = lf.export.openvino(model, tmp_path / "wide.xml")
    path = quantise(source.path, tmp_path / "int8.xml", calibration=images(model, 8))
    assert path.with_suffix(".bin").stat().st_size < 0.5 * (tmp_path / "wide.bin").stat().st_size
    agrees(model, path)


def test_what_cannot_be_quantised_is_refused_with_a_reason(source, tmp_path):
    with pytest.raises(ValueError, match="calibration images"):
        quantise(source, tmp_path / "int8.onnx")
    with pytest.raises(ValueError, match="static, dynamic"):
        quantise(source, tmp_path / "int8.onnx", mode="int4")
    (tmp_path / "lean.pt2").write_bytes(b"")
    with pytest.raises(ValueError, match=r"not there for \.pt2"):
        quantise(tmp_path / "lean.pt2", tmp_path / "int8.pt2", mode="dynamic")


def test_bench_puts_runtimes_beside_pytorch_and_measures_speed_ups_within_each(tmp_path):
    output = tmp_path / "bench.json"
    sets = [part for key, value in {**VIT, "depth": 1}.items() for part in ("--set", f"{key}={value}")]
    options = ["--apply", "repa", "--batches", "1", "--modes", "eager", "--repeats", "2"]
    code = main(["bench", "vit", *sets, *options, "--runtime", "onnxruntime", "--output", str(output)])
    assert code == 0
    rows = json.loads(output.read_text())["rows"]
    assert [row["mode"] for row in rows] == ["eager", "onnxruntime"] * 2
    assert [row["speedup"] for row in rows[:2]] == [1.0] * 2


def test_unknown_runtimes_are_refused(capsys):
    assert main(["bench", "deit_tiny_patch16_224", "--runtime", "tensorrt"]) == 2
    assert "known: onnxruntime, openvino" in capsys.readouterr().err
