"""GFNet: its figures, its block against the equation, both official layouts, and half precision."""

import copy
import pickle

import pytest
import timm
import torch
import torch.nn.functional as F
from helpers import randomise
from timm.optim import param_groups_layer_decay
from torch import Tensor

import leanformer as lf

FLAT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_classes": 5}
PYRAMID = {
    "img_size": 64, "patch_size": 4, "embed_dim": [8, 16, 24, 32], "depth": [1, 2, 1, 1], "layer_scale": 0.1,
    "num_classes": 5,
}  # fmt: skip
KINDS = {"flat": FLAT, "pyramid": PYRAMID, "wide": {**FLAT, "img_size": (32, 48)}}
PUBLISHED = {  # millions of parameters, G MACs; the transforms, which we do not count, are 1% or 2% of the H models
    "gfnet_ti": (7.5, 1.3),
    "gfnet_xs": (16, 2.8),
    "gfnet_s": (25, 4.5),
    "gfnet_b": (43, 7.9),
    "gfnet_h_ti": (15, 2.1),
    "gfnet_h_s": (32, 4.6),
    "gfnet_h_b": (54, 8.6),
}


def tiny(kind: str = "flat"):
    torch.manual_seed(0)
    return randomise(lf.create("gfnet", **KINDS[kind])).eval()


def images(kind: str, batch: int = 2) -> Tensor:
    size = KINDS[kind]["img_size"]
    return torch.randn(batch, 3, *(size if isinstance(size, tuple) else (size, size)))


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_macs_are_close_to_the_published_ones(name: str):
    with torch.device("meta"):
        count = lf.measure.count(timm.create_model(name))
    parameters, macs = PUBLISHED[name]
    assert count.parameters / 1e6 == pytest.approx(parameters, rel=0.01)
    assert count.macs / 1e9 == pytest.approx(macs, rel=0.03)


def filtered(x: Tensor, weight: Tensor) -> Tensor:
    """The global filter by sums over the plane: x (B, H, W, C), weight (H, W/2 + 1, C, 2)."""
    height, width = x.shape[1:3]
    half = width // 2 + 1
    rows = torch.exp(-2j * torch.pi * torch.outer(torch.arange(height), torch.arange(height)).double() / height)
    columns = torch.exp(-2j * torch.pi * torch.outer(torch.arange(half), torch.arange(width)).double() / width)
    spectrum = torch.einsum("uh,vw,bhwc->buvc", rows, columns, x.to(torch.complex128))
    spectrum = spectrum * torch.view_as_complex(weight.contiguous())
    twice = torch.full((half,), 2.0, dtype=torch.float64)  # every frequency stands for its mirror as well
    twice[0] = 1.0
    if width % 2 == 0:
        twice[-1] = 1.0
    return torch.einsum("v,uh,vw,buvc->bhwc", twice + 0j, rows.conj(), columns.conj(), spectrum).real / (height * width)


def normed(x: Tensor, state: dict[str, Tensor], at: str) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], state[f"{at}.weight"], state[f"{at}.bias"], 1e-6)


def block(x: Tensor, state: dict[str, Tensor], at: str) -> Tensor:
    """One block by its equation, from weights under the official keys."""
    y = filtered(normed(x, state, f"{at}.norm1"), state[f"{at}.filter.complex_weight"])
    y = F.linear(normed(y, state, f"{at}.norm2"), state[f"{at}.mlp.fc1.weight"], state[f"{at}.mlp.fc1.bias"])
    y = F.linear(F.gelu(y), state[f"{at}.mlp.fc2.weight"], state[f"{at}.mlp.fc2.bias"])
    return x + state.get(f"{at}.gamma", torch.ones(())) * y


def patches(x: Tensor, state: dict[str, Tensor], at: str) -> Tensor:
    kernel = state[f"{at}.weight"]
    return F.conv2d(x, kernel, state[f"{at}.bias"], stride=kernel.shape[-1])


def head(x: Tensor, state: dict[str, Tensor]) -> Tensor:
    return F.linear(normed(x, state, "norm").mean((1, 2)), state["head.weight"], state["head.bias"])


def official(kind: str) -> tuple[str, dict, dict[str, Tensor]]:
    """The official class, its config, and a state dict of it in float64."""
    config = dict(KINDS[kind])
    name = "gfnet_h_ti" if kind == "pyramid" else "gfnet_ti"
    state = lf.to_official(randomise(lf.create(name, **config).double()))
    if kind == "pyramid":
        config |= {"init_values": config.pop("layer_scale"), "no_layerscale": False}
    return f"raoyongming/GFNet gfnet.GFNet{'Pyramid' * (kind == 'pyramid')}", config, state


@pytest.mark.parametrize("kind", ["flat", "wide"])
def test_flat_models_are_the_equation_over_official_keys(kind: str):
    name, config, state = official(kind)
    x = images(kind).double()
    y = patches(x, state, "patch_embed.proj").permute(0, 2, 3, 1)
    y = y + state["pos_embed"].reshape(1, *y.shape[1:])
    for i in range(3):
        y = block(y, state, f"blocks.{i}")
    torch.testing.assert_close(
        lf.from_official(name, config, {"model": state}).double()(x), head(y, state), rtol=0, atol=1e-5
    )


def test_pyramids_are_the_equation_over_official_keys():
    name, config, state = official("pyramid")
    x = y = images("pyramid").double()
    for s, depth in enumerate(config["depth"]):
        y = patches(y, state, f"patch_embed.{s}.proj").permute(0, 2, 3, 1)
        y = y + state["pos_embed"].reshape(1, *y.shape[1:]) if s == 0 else y
        for i in range(depth):
            y = block(y, state, f"blocks.{s}.{i}")
        y = y.permute(0, 3, 1, 2)
    expected = head(y.permute(0, 2, 3, 1), state)
    torch.testing.assert_close(lf.from_official(name, config, state).double()(x), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_official_weights_go_back_bit_equal(kind: str):
    name, config, state = official(kind)
    state = {key: value.float() for key, value in state.items()}
    again = lf.to_official(lf.from_official(name, config, state))
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], state[key]) for key in state)


def test_missing_official_keys_are_refused():
    name, config, state = official("flat")
    del state["blocks.1.filter.complex_weight"]
    with pytest.raises(ValueError, match=r"missing: .*blocks\.1\.mix\.fn\.filter"):
        lf.from_official(name, config, state)
    with pytest.raises(ValueError, match="representation_size=64"):
        lf.from_official(name, {**config, "representation_size": 64}, state)


def test_a_block_is_one_branch_in_the_mix_slot():
    first = next(iter(lf.blocks_of(tiny()).values()))
    assert first.slots == ("pre", "mix")
    assert first.layout == "NHWC"
    assert [b.stage for b in lf.blocks_of(tiny("pyramid")).values()] == [0, 1, 1, 2, 3]


@pytest.mark.parametrize("kind", ["flat", "pyramid"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near(kind: str, dtype: torch.dtype):
    model, x = tiny(kind), images(kind)
    low = copy.deepcopy(model).to(dtype)(x.to(dtype))
    assert low.dtype == dtype
    assert (low.float() - model(x)).abs().max() < 0.1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (model(x).float() - model(x)).abs().max() < 0.1


def test_other_image_sizes_are_refused():
    with pytest.raises(ValueError, match="built for 32x32"):
        tiny()(torch.zeros(1, 3, 64, 64))
    with pytest.raises(ValueError, match="cannot be halved"):
        lf.create("gfnet", **{**PYRAMID, "img_size": 48})
    with pytest.raises(ValueError, match="give one per stage"):
        lf.create("gfnet", **{**PYRAMID, "depth": [1, 2]})


def test_resizing_interpolates_the_filters_frequencies():
    model = tiny("pyramid")
    larger = lf.resize(model, 128)
    old, new = (next(iter(lf.blocks_of(m).values())).mix.fn.filter.complex_weight for m in (model, larger))
    assert (old.shape, new.shape) == ((16, 9, 8, 2), (32, 17, 8, 2))
    torch.testing.assert_close(new[0, 0], old[0, 0])  # the mean of the plane
    torch.testing.assert_close(new[-1, -1], old[-1, -1])
    assert larger(torch.randn(1, 3, 128, 128)).shape == (1, 5)


@pytest.mark.parametrize("kind", ["flat", "pyramid"])
def test_intermediates_follow_blocks_or_stages(kind: str):
    model, x = tiny(kind), images(kind)
    final, maps = model.forward_intermediates(x, norm=True)
    torch.testing.assert_close(final, model.forward_features(x))
    torch.testing.assert_close(maps[-1], final.permute(0, 3, 1, 2))
    expected = [(2, 24, 4, 4)] * 3 if kind == "flat" else [(2, 8, 16, 16), (2, 16, 8, 8), (2, 24, 4, 4), (2, 32, 2, 2)]
    assert [tuple(m.shape) for m in maps] == expected
    early = model.forward_intermediates(x, indices=[0], stop_early=True, intermediates_only=True, output_fmt="NHWC")
    assert [tuple(m.shape[1:3]) for m in early] == [expected[0][2:]]


@pytest.mark.parametrize("kind", ["flat", "pyramid"])
def test_gradient_checkpointing_changes_no_gradient(kind: str):
    x, grads = images(kind), []
    for enable in (False, True):
        model = tiny(kind).train()
        model.set_grad_checkpointing(enable)
        model(x).square().sum().backward()
        grads.append(next(iter(lf.blocks_of(model).values())).mix.fn.filter.complex_weight.grad)
    torch.testing.assert_close(*grads)
    assert grads[0].abs().max() > 0


@pytest.mark.parametrize("kind", ["flat", "pyramid"])
def test_models_pickle_save_and_compile(kind: str, tmp_path):
    model, x = tiny(kind), images(kind)
    expected = model(x)
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), expected)
    assert torch.equal(lf.load(lf.save(model, tmp_path / "gfnet.safetensors"))(x), expected)
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(x), expected)


def test_export_keeps_the_batch_free():
    model, x = tiny(), images("flat")
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
    five = images("flat", batch=5)
    torch.testing.assert_close(program.module()(five), model(five))


def test_new_classifiers_and_layer_decay():
    model = tiny("pyramid")
    model.reset_classifier(7)
    assert model(images("pyramid")).shape == (2, 7)
    groups = param_groups_layer_decay(model, layer_decay=0.5)
    scale = {id(p): g["lr_scale"] for g in groups for p in g["params"]}
    deep, shallow = (b.mix.fn.mlp.fc1.weight for b in list(lf.blocks_of(model).values())[::4][::-1])
    assert scale[id(shallow)] < scale[id(deep)]
    model.reset_classifier(0)
    assert model(images("pyramid")).shape == (2, 32)
