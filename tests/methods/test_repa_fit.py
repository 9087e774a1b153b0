"""RePa's calibration: least squares does what it says, and a converted model starts near its teacher."""

import pytest
import torch
from families import BACKBONES, backbone, images
from helpers import randomise
from torch import Tensor, nn

import leanformer as lf
from lab.studies.growth import grow
from leanformer.cli import main
from leanformer.methods.repa import fitting
from leanformer.methods.repa.idle import Affine

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 5}
WITH_FFN = [family for family in BACKBONES if all("ffn" in b.slots for b in lf.blocks_of(backbone(family)).values())]


def error(model: nn.Module, teacher: nn.Module, x: Tensor) -> float:
    """Unexplained share of the teacher's logits."""
    with torch.no_grad():
        wanted = teacher.eval()(x)
        return ((model.eval()(x) - wanted).square().mean() / wanted.var()).item()


@pytest.mark.parametrize("family", WITH_FFN)
def test_a_calibrated_model_is_nearer_to_its_teacher_than_a_copy(family):
    teacher, x = backbone(family), images(backbone(family), 32)
    for options in ({"refine_steps": 5}, {"norm": "layer", "refine_steps": 0}):
        copied = lf.apply(teacher, lf.RePa(idle_ratio=0.5, **options)).eval()
        fitted = lf.calibrate(copied, teacher, x)
        assert error(fitted, teacher, x) < 0.9 * error(copied, teacher, x), options


def test_training_mode_and_the_fused_model_start_where_the_fit_ended():
    teacher = randomise(lf.create("vit", **VIT)).eval()
    x = torch.randn(64, 3, 32, 32)
    fitted = lf.calibrate(lf.apply(teacher, lf.RePa(idle_ratio=0.5, refine_steps=5)), teacher, x)
    with torch.no_grad():
        still = fitted.eval()(x)
        assert (fitted.train()(x) - still).abs().max() < 1e-3  # batch statistics are the running ones
        assert (lf.fuse(fitted.eval())(x) - still).abs().max() < 1e-2 * still.abs().max()


def test_calibration_neither_changes_its_arguments_nor_depends_on_an_earlier_one():
    teacher = randomise(lf.create("vit", **VIT)).eval()
    x = torch.randn(32, 3, 32, 32)
    model = lf.apply(teacher, lf.RePa(idle_ratio=0.5, refine_steps=3))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    once = lf.calibrate(model, teacher, x)
    again = lf.calibrate(once, teacher, x)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert error(again, teacher, x) == pytest.approx(error(once, teacher, x), rel=1e-2)


def test_units_are_chosen_together_so_that_no_two_say_the_same():
    units = torch.randn(500, 6, dtype=torch.float64)
    copies = torch.cat([units, units[:, :3] + 1e-3 * torch.randn(500, 3), units @ torch.randn(6, 3).double()], dim=1)
    out = torch.randn(4, 12, dtype=torch.float64)
    chosen = fitting.choose_together(copies.mT @ copies, out, 6)
    assert len(set(chosen.tolist())) == 6
    kept, wanted = copies[:, chosen], copies @ out.mT  # six units span all twelve
    left = wanted - kept @ torch.linalg.lstsq(kept, wanted).solution
    assert left.norm() < 1e-2 * wanted.norm()


def test_the_first_unit_chosen_is_the_one_that_explains_most():
    units, out = torch.randn(300, 8, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    wanted = units @ out.mT

    def left(unit: int) -> float:
        one = units[:, [unit]]
        return (wanted - one @ torch.linalg.lstsq(one, wanted).solution).norm().item()

    assert int(fitting.choose_together(units.mT @ units, out, 1)) == min(range(8), key=left)


def test_half_of_a_vit_of_twice_the_width_can_idle_at_no_cost():
    teacher = grow(randomise(lf.create("vit", **VIT)).eval())  # its hidden units come in pairs
    x = torch.randn(64, 3, 32, 32)
    lean = lf.apply(teacher, lf.RePa(idle_ratio=0.5, norm="layer", refine_steps=0))
    assert error(lf.calibrate(lean, teacher, x), teacher, x) < 1e-3


def test_an_ffn_that_the_fused_form_can_express_is_recovered():
    """A teacher whose idle channels are linear already is fitted to rounding."""
    teacher = randomise(lf.apply(lf.create("vit", **VIT), lf.RePa(idle_ratio=0.75))).eval().double()
    slot = teacher.blocks[0].ffn
    three = slot.affines()
    x = torch.randn(4000, 32, dtype=torch.float64)
    into = Affine(three[0].weight[: slot.active].detach(), three[0].bias[: slot.active].detach())
    with torch.no_grad():
        wanted = slot(x[None])[0]
        found = fitting.solve_linears(x, into, slot.act, wanted, torch.ones(4000))
        fitted = slot.act(x @ into.weight.mT + into.bias) @ found.out.mT + x @ found.path.weight.mT + found.path.bias
    assert (fitted - wanted).abs().max() < 1e-2
    assert (fitted - wanted).square().mean() < 1e-6 * wanted.var()


def test_units_whose_activation_a_line_explains_are_chosen_last():
    x = torch.randn(2000, 4)
    h = torch.stack([x[:, 0] + 8, x[:, 1] - 0.1, x[:, 2] * 0.01], dim=1)  # linear, bent, all but linear
    units, left = fitting.hidden_units([(x, h, torch.ones(2000))], nn.functional.gelu)
    misfit = left.diagonal()
    assert misfit.argmax() == 1
    assert misfit[0] < 1e-3 * misfit[1]
    assert torch.allclose(units.weight[0].float(), torch.tensor([1.0, 0, 0, 0]), atol=1e-2)


def test_tokens_with_huge_values_weigh_less_and_prefix_tokens_together_a_quarter():
    y = torch.randn(3, 10, 16)
    y[:, 4] *= 100
    weight = fitting.token_weights(y, axis=-1, prefix=1).view(3, 10)
    assert weight[:, 4].max() < 1e-2 * weight[:, 5].min()
    assert weight[:, 0].sum() == pytest.approx(0.25 * weight[:, 1:].sum().item(), rel=1e-4)
    assert weight.mean() == pytest.approx(1.0, rel=1e-5)


def test_the_path_spreads_over_well_conditioned_rows():
    path, near, x = (
        torch.randn(8, 8).double(),
        torch.randn(24, 8).double(),
        torch.randn(500, 8) * torch.logspace(-2, 2, 8),
    )
    rows, columns = fitting.spread(path, near, x)
    assert torch.allclose(columns @ rows.weight, path, atol=1e-9)
    gram = (rows.weight * x.std(0).double()).mT @ (rows.weight * x.std(0).double())
    assert torch.allclose(gram, torch.eye(8).double(), atol=1e-4)


def test_few_idle_channels_hold_the_best_path_of_their_rank():
    teacher = randomise(lf.create("vit", **VIT)).eval()
    x = torch.randn(32, 3, 32, 32)
    fitted = lf.calibrate(lf.apply(teacher, lf.RePa(idle_ratio=0.1, refine_steps=0)), teacher, x)
    copied = lf.apply(teacher, lf.RePa(idle_ratio=0.1))
    assert error(fitted, teacher, x) < 0.5 * error(copied, teacher, x)
    lf.fuse(fitted)


def test_refining_a_layer_lowers_its_error():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 16, generator=generator)
    hidden = torch.randn(64, 16, generator=generator)
    y = nn.functional.gelu(x @ hidden.mT) @ torch.randn(64, 16, generator=generator)
    weight = torch.ones(3000)
    into = Affine(hidden[:16].double(), torch.zeros(16).double())
    gelu = nn.functional.gelu

    def left(into: Affine) -> float:
        three = fitting.solve_linears(x, into, gelu, y, weight)
        fitted = gelu((x.double() @ into.weight.mT + into.bias).float()).double() @ three.out.mT
        return (fitted + x.double() @ three.path.weight.mT + three.path.bias - y).square().mean().item()

    refined = fitting.refine(fitting.solve_linears(x, into, gelu, y, weight), x, gelu, y, weight, steps=60)
    assert left(refined) < 0.97 * left(into)


def test_an_activation_with_parameters_is_left_without_gradients():
    teacher = backbone("caformer")
    fitted = lf.calibrate(lf.apply(teacher, lf.RePa(refine_steps=2)), teacher, images(teacher, 4))
    assert any(True for block in lf.blocks_of(fitted).values() for _ in block.ffn.act.parameters())
    assert all(parameter.grad is None for parameter in fitted.parameters())


def test_the_teacher_must_have_the_ffn_that_was_replaced():
    teacher = lf.create("vit", **VIT)
    model = lf.apply(teacher, lf.RePa(refine_steps=0))
    with pytest.raises(ValueError, match="the one that they replaced"):
        lf.calibrate(model, model, torch.randn(4, 3, 32, 32))


def test_tokens_dropped_before_are_no_obstacle():
    teacher = randomise(lf.create("vit", **VIT)).eval()
    model = lf.apply(teacher, lf.RePa(idle_ratio=0.5, refine_steps=0), lf.EViT(keep_rate=0.6, at=(0,)))
    x = torch.randn(32, 3, 32, 32)
    fitted = lf.calibrate(model, teacher, x)
    pruned = lf.apply(teacher, lf.EViT(keep_rate=0.6, at=(0,)))
    assert error(fitted, pruned, x) < 0.5 * error(model, pruned, x)


def test_the_commands_write_calibrated_and_recalibrated_models(tmp_path):
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    for index in range(12):
        folder = tmp_path / "data" / "train" / f"class{index % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 255, (40, 48, 3), dtype=np.uint8)).save(folder / f"{index}.png")
    trained, lean, precise = (str(tmp_path / f"{name}.safetensors") for name in ("trained", "lean", "precise"))
    lf.save(randomise(lf.create("vit", **{**VIT, "num_classes": 3})), trained)
    data = str(tmp_path / "data")
    options = ["--apply", "repa:idle_ratio=0.5,refine_steps=2", "--images", "8", "--device", "cpu"]
    assert main(["calibrate", trained, "--data", data, "--output", lean, "--evaluate-on", "train", *options]) == 0
    assert main(["recalibrate", lean, "--data", data, "--output", precise, "--images", "8", "--device", "cpu"]) == 0
    assert lf.card_of(lf.load(lean)).methods[0].idle_ratio == 0.5
    assert lf.load(precise).blocks[0].ffn.norm1.num_batches_tracked == 1
    assert main(["calibrate", trained, "--data", data, "--output", lean]) == 2
