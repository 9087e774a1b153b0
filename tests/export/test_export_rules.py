"""What export promises: fused first, a card inside, any batch, no file after drift, reasons for what cannot be done."""

import importlib.util
import json
import warnings

import pytest
import torch
from families import VIT, backbone, images
from helpers import randomise
from torch import nn

import leanformer as lf
from leanformer.cli import main
from leanformer.core import input_of
from leanformer.data.view import EvaluationView
from leanformer.export import onnx as to_onnx
from leanformer.export.parity import check, decided, relative_error
from leanformer.export.preprocess import Preprocessed
from leanformer.export.rewrite import MatrixFilter, attention_in_steps, in_steps, without_fft
from leanformer.export.source import trace
from leanformer.layers.mixers import GlobalFilter

TINY = {**VIT, "depth": 1}


def tiny() -> nn.Module:
    return randomise(lf.create("vit", **TINY)).eval()


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> lf.export.Exported:
    model = lf.apply(backbone("vit"), lf.EViT(keep_rate=0.6))
    return to_onnx(model, tmp_path_factory.mktemp("onnx") / "lean.onnx", images=images(model, 3))


def test_the_onnx_file_carries_its_card_its_opset_and_a_free_batch(exported):
    onnx = pytest.importorskip("onnx")
    file = onnx.load(str(exported.path))
    card = json.loads({entry.key: entry.value for entry in file.metadata_props}["leanformer"])
    assert card["methods"][0]["options"]["keep_rate"] == 0.6
    assert card["fused"] is True
    assert file.opset_import[0].version == lf.export.OPSET
    assert file.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert lf.export.open_file(exported.path)(torch.zeros(7, 3, 32, 32)).shape == (7, 5)


def test_export_compares_on_random_and_real_images_and_counts_them(exported):
    assert exported.parity.random_images + exported.parity.real_images + exported.parity.ties == 11


def test_drift_raises_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("leanformer.export.source.without_fft", lambda model: randomise(without_fft(model)))
    with pytest.raises(lf.export.Drift, match="off by"):
        lf.export.torch(tiny(), tmp_path / "lean.pt2")
    assert list(tmp_path.iterdir()) == []


def test_drift_leaves_neither_half_of_a_pair_and_the_older_files_alone(tmp_path, monkeypatch):
    pytest.importorskip("openvino")
    (tmp_path / "lean.bin").write_bytes(b"older")
    monkeypatch.setattr("leanformer.export.source.without_fft", lambda model: randomise(without_fft(model)))
    with pytest.raises(lf.export.Drift):
        lf.export.openvino(tiny(), tmp_path / "lean.xml")
    assert [(f.name, f.read_bytes()) for f in tmp_path.iterdir()] == [("lean.bin", b"older")]


def test_a_file_that_answers_nan_or_another_shape_drifts():
    model = tiny()
    for answer in (torch.full((1, 5), float("nan")), torch.zeros(1, 4)):
        with pytest.raises(lf.export.Drift):
            check(model, lambda x, answer=answer: answer.expand(len(x), -1), "broken", (3, 32, 32))


def test_images_on_which_rounding_decides_are_left_out_and_others_not():
    model = lf.apply(backbone("vit"), lf.EViT(keep_rate=0.5)).eval()
    flat, random = torch.zeros(1, 3, 32, 32), images(model, 1)
    assert decided(model, torch.cat([flat, random]), 0.0).tolist()[1]
    assert not decided(model, random, 1.0).any()


def test_an_unfused_export_warns_and_a_fused_one_does_not(tmp_path):
    model = randomise(lf.apply(tiny(), lf.RePa()))
    with pytest.warns(lf.export.Unfused):
        lf.export.torch(model, tmp_path / "a.pt2", fused=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", lf.export.Unfused)
        lf.export.torch(model, tmp_path / "b.pt2")
    assert (tmp_path / "b.pt2").stat().st_size < (tmp_path / "a.pt2").stat().st_size


def test_a_torch_file_runs_in_bfloat16_and_onnx_refuses_it_by_name(tmp_path):
    model = tiny().bfloat16()
    assert lf.export.torch(model, tmp_path / "lean.pt2").parity.error < 0.1
    with pytest.raises(ValueError, match=r"onnx takes models in float32, float16, not torch.bfloat16"):
        lf.export.onnx(model, tmp_path / "lean.onnx")


@pytest.mark.parametrize("format", ["onnx", "openvino", "executorch"])
def test_a_missing_package_gives_the_line_that_installs_it(format, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"pip install 'leanformer\[{format}\]'"):
        lf.export.FORMATS[format](tiny(), tmp_path / f"lean{lf.export.TARGETS[format].suffix}")


def test_wrong_endings_places_and_images_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"called something\.pt2"):
        lf.export.torch(tiny(), tmp_path / "lean.onnx")
    with pytest.raises(ValueError, match="cannot write"):
        lf.export.torch(tiny(), tmp_path / "nowhere" / "lean.pt2")
    with pytest.raises(ValueError, match="the model takes"):
        lf.export.torch(tiny(), tmp_path / "lean.pt2", images=torch.zeros(2, 3, 16, 16))
    with pytest.raises(ValueError, match="of no known format"):
        lf.export.open_file(tmp_path / "lean.tflite")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [(4, 6), (5, 7), (8, 8)])
def test_a_global_filter_by_matrices_is_exact(size):
    old = randomise(GlobalFilter(8, size, layout="NCHW")).double()
    x = torch.randn(2, 8, *size, dtype=torch.float64)
    torch.testing.assert_close(MatrixFilter(old)(x), old(x), rtol=1e-12, atol=1e-12)
    assert not any(isinstance(m, GlobalFilter) for m in without_fft(backbone("gfnet")).modules())


@pytest.mark.parametrize("mask", [None, torch.zeros(5, 7).uniform_(-2, 2), torch.full((2, 1, 5, 7), 0.5)])
def test_attention_in_steps_is_exact(mask):
    q, k, v = (torch.randn(2, 3, n, 4, dtype=torch.float64) for n in (5, 7, 7))
    mask = None if mask is None else mask.double()
    whole = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
    torch.testing.assert_close(attention_in_steps(q, k, v, mask, scale=0.3), whole, rtol=1e-12, atol=1e-12)
    assert attention_in_steps(q, k, v, torch.ones(5, 7, dtype=torch.bool)) is NotImplemented


@pytest.mark.parametrize(
    ("family", "operator"), [("vit", "scaled_dot_product_attention"), ("caformer", "scaled_dot_product_attention"),
                             ("gmlp", "chunk")]
)  # fmt: skip
def test_a_program_in_steps_answers_as_before(family, operator):
    program = trace(backbone(family), tuple(input_of(backbone(family))["input_size"]))
    assert operator in str(program.graph)
    steps = in_steps(program)
    assert operator not in str(steps.graph)
    x = images(backbone(family), 3)
    torch.testing.assert_close(steps.module()(x), program.module()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("source", [(48, 64), (32, 32), (20, 24)])
def test_preprocessing_in_the_file_is_that_of_evaluation(source):
    model = tiny()
    pixels = torch.randint(0, 256, (2, 3, *source), dtype=torch.uint8)
    seen = EvaluationView(input_of(model))(pixels)
    torch.testing.assert_close(Preprocessed(model, source)(pixels), model(seen), rtol=1e-4, atol=1e-4)


def test_a_file_with_preprocessing_takes_raw_pixels(tmp_path):
    done = lf.export.torch(tiny(), tmp_path / "raw.pt2", preprocess=(40, 60))
    assert lf.export.open_file(done.path)(torch.zeros(3, 3, 40, 60, dtype=torch.uint8)).shape == (3, 5)


def test_relative_error_is_over_the_largest_output():
    assert relative_error(torch.tensor([4.0, 0.0]), torch.tensor([4.0, 1.0])) == 0.25


def test_the_command_exports_measures_and_writes_a_result(tmp_path, capsys):
    lf.save(tiny(), tmp_path / "tiny.safetensors")
    arguments = ["--format", "torch", "--output", str(tmp_path / "tiny.pt2"), "--repeats", "1"]
    result = tmp_path / "export.json"
    verb = ["export", str(tmp_path / "tiny.safetensors"), "--apply", "evit:keep_rate=0.7", *arguments]
    assert main([*verb, "--result", str(result)]) == 0
    assert "error" in capsys.readouterr().out
    found = json.loads(result.read_text())
    assert found["model"].endswith("tiny.safetensors + evit:keep_rate=0.7")
    rows = found["rows"]
    assert [row["name"] for row in rows] == ["pytorch", "torch"]
    assert rows[1]["error"] < 1e-4
    assert rows[1]["images_per_second"] > 0


def test_the_command_refuses_what_does_not_go_together(tmp_path, capsys):
    for arguments, reason in (
        (["--format", "tflite"], "unknown format"),
        (["--format", "onnx", "--int8", "static"], "--calibration"),
        (["--format", "torch", "--int8", "dynamic"], "no int8"),
    ):
        assert main(["export", "deit_tiny_patch16_224", "--output", str(tmp_path / "x.onnx"), *arguments]) == 2
        assert reason in capsys.readouterr().err
