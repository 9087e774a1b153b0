"""fp8 products: rounded as they should be, refused where they cannot be fast, offered where they can."""

import pytest
import torch
from helpers import randomise
from torch import nn

import leanformer as lf
from leanformer.cli import main
from leanformer.speed import alone, fp8, search
from leanformer.speed.kernels.fp8 import FP8, fp8_linear, fp8_linear_reference, has_fp8, quantise_rows

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 2, "num_classes": 5}
device_has_fp8 = torch.cuda.is_available() and has_fp8(torch.device("cuda"))


def vit(*methods, **more):
    return lf.fuse(randomise(lf.apply(lf.create("vit", depth=4, **{**SMALL, **more}), *methods)).eval())


def test_every_row_uses_the_whole_range_and_errs_by_half_a_step():
    x = torch.randn(5, 64) * torch.tensor([1e-6, 1e-3, 1.0, 1e3, 1e6])[:, None]
    rounded, scale = quantise_rows(x)
    assert rounded.dtype == FP8
    assert torch.equal(rounded.float().abs().amax(1), torch.full((5,), 448.0))
    back = rounded.float() * scale
    normal = rounded.float().abs() >= 2**-6
    assert ((back - x).abs()[normal] <= x.abs()[normal] / 16 * 1.0001).all()
    assert torch.equal(quantise_rows(torch.zeros(2, 16))[0].float(), torch.zeros(2, 16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_rounded_as_torchao_rounds_them(dtype):
    granularity = pytest.importorskip("torchao.quantization.granularity")
    from torchao.quantization import Float8Tensor

    weight = torch.randn(64, 192).to(dtype)
    theirs = Float8Tensor.from_hp(weight, granularity=granularity.PerRow())
    rounded, scale = quantise_rows(weight)
    if dtype == torch.float32:
        assert torch.equal(theirs.qdata.view(torch.uint8), rounded.view(torch.uint8))
        assert torch.equal(theirs.scale, scale)
    else:  # torchao rounds the scales to bf16 as well
        ours, other = (w.float() * s - weight.float() for w, s in ((rounded, scale), (theirs.qdata, theirs.scale)))
        assert ours.norm() < 1.01 * other.norm()


def test_on_the_cpu_the_rounded_numbers_are_multiplied_exactly():
    layer, x = nn.Linear(32, 48), torch.randn(2, 7, 32)
    module = fp8.Fp8Linear(layer)
    rows, row_scale = quantise_rows(x)
    truth = (rows.double() * row_scale) @ (module.weight.double() * module.scale).mT + layer.bias.double()
    torch.testing.assert_close(module(x).double(), truth, rtol=2**-8, atol=1e-6)  # given in bf16


def test_layers_that_do_not_fit_or_see_one_row_or_are_never_called_stay():
    model = vit(num_classes=16, mlp_ratio=1.3)
    rounded = fp8.fp8_products(model)
    assert rounded is not None
    kinds = {path: type(m) for path, m in rounded.named_modules() if isinstance(m, nn.Linear | fp8.Fp8Linear)}
    assert kinds["blocks.0.mix.fn.qkv"] is fp8.Fp8Linear
    assert kinds["blocks.0.ffn.fn.fc1"] is nn.Linear  # 41 channels
    assert kinds["head"] is nn.Linear
    assert type(model.blocks[0].mix.fn.qkv) is nn.Linear


@pytest.mark.parametrize("methods", [(), (lf.RePa(), lf.EViT(keep_rate=0.5))])
def test_all_other_steps_work_behind_fp8_products_and_compile_whole(methods):
    model = vit(*methods)
    images = torch.randn(2, 3, 32, 32)
    rounded = fp8.fp8_products(model)
    assert rounded is not None
    new = rounded
    for rewrite in search.rewrites().values():
        new = rewrite.apply(new) or new
    torch._dynamo.reset()
    with torch.inference_mode():
        truth = rounded(images)
        torch.testing.assert_close(new(images), truth, atol=2e-2, rtol=2e-2)
        compiled = torch.compile(new, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(images), new(images))
        assert (truth - model(images)).norm() < fp8.TOLERANCE * model(images).norm()


def test_a_device_without_fp8_units_is_refused_and_so_are_other_dtypes(monkeypatch):
    with pytest.raises(ValueError, match=r"compute capability 8\.9 or higher .* found cpu"):
        lf.optimize(vit(), device="cpu", batch=2, fp8=True)
    monkeypatch.setattr(fp8, "has_fp8", lambda device: True)
    with pytest.raises(ValueError, match="not 'float16'"):
        lf.optimize(vit(), device="cpu", batch=2, dtype="float16", fp8=True)


@pytest.mark.parametrize("timed", [True, False])
def test_optimize_takes_fp8_where_it_gains_and_tells_its_error(timed, tmp_path, monkeypatch):
    monkeypatch.setenv("LEANFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.setattr(fp8, "require_fp8", lambda device, dtype: None)
    monkeypatch.setattr(alone, "WORTH", 1e9)  # whatever it costs here
    fast = lf.optimize(vit(), device="cpu", batch=2, repeats=1, fp8=True, search=timed)
    assert fast.choice.steps[0] == fp8.STEP
    assert "activation in product" not in fast.choice.steps
    assert 1e-3 < fast.choice.error < fp8.TOLERANCE
    if timed:
        assert fp8.STEP in str(fast.choice)
        plain = lf.optimize(vit(), device="cpu", batch=2, repeats=1)
        assert fp8.STEP not in plain.choice.steps


def test_eval_shows_the_rounded_model_beside_the_plain_one(tmp_path, capsys):
    from PIL import Image

    for split in ("train", "val"):
        for label in range(5):
            folder = tmp_path / split / str(label)
            folder.mkdir(parents=True)
            Image.new("RGB", (32, 32), (50 * label, 100, 30)).save(folder / "a.png")
    options = [f"--set={name}={value}" for name, value in {**SMALL, "depth": 2}.items()]
    output = tmp_path / "eval.json"
    arguments = ["--data", str(tmp_path), "--device", "cpu", "--workers", "0", "--fp8", "--output", str(output)]
    assert main(["eval", "vit", *options, *arguments]) == 0
    shown = capsys.readouterr().out
    assert "fp8" in shown
    assert "answers_changed" in output.read_text()


@pytest.mark.skipif(not device_has_fp8, reason="needs a CUDA device with fp8 units")
def test_fp8_units_agree_with_the_same_numbers_multiplied_exactly():
    layer, x = nn.Linear(384, 1152).cuda(), torch.randn(3, 197, 384, device="cuda")
    module = fp8.Fp8Linear(layer)
    found = fp8_linear(x.bfloat16(), module.weight, module.scale, module.bias)
    truth = fp8_linear_reference(x.bfloat16(), module.weight, module.scale, module.bias)
    assert (found - truth).norm() < 1e-2 * truth.norm()
