"""Our EViT answers what the official one answered: logits, kept tokens, their order, and their counts."""

from pathlib import Path

import pytest
import torch
from helpers import parity_files
from torch import nn

import leanformer as lf
from leanformer.core import decision_paths, taps

FILES = parity_files("evit_*.pt")
CONFIG = {"img_size": 48, "embed_dim": 24, "depth": 4, "num_heads": 2, "num_classes": 3}


def official(path: Path) -> tuple[dict, nn.Module]:
    answer = torch.load(path, weights_only=True)
    return answer, lf.from_official(answer["official"], answer["config"], answer["state_dict"])


def as_called(answer: dict, model: nn.Module) -> nn.Module:
    """The model at the rate or with the counts that the official one was called with."""
    call = {key: value for key, value in (answer.get("call") or {}).items() if value is not None}
    return lf.with_options(model, **call)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_logits_kept_tokens_and_counts_are_the_official_ones(path):
    answer, model = official(path)
    model = as_called(answer, model)
    places = decision_paths(model)
    blocks = [f"blocks.{i}" for i in range(len(model.blocks))]
    with torch.no_grad(), taps(model, [*places, *blocks]) as seen:
        logits = model(answer["input"])
        features = model.forward_head(model.forward_features(answer["input"]), pre_logits=True)
    assert (logits - answer["output"]).abs().max() < 1e-4
    assert (features - answer["pre_logits"]).abs().max() < 1e-4
    assert [seen[block].shape[1] - 1 for block in blocks] == answer["tokens_after_block"]
    kept = [seen[place] for place in places if place in seen]
    assert len(kept) == len(answer["kept_idx"])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(kept, answer["kept_idx"], strict=True))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_way_back_gives_the_official_state_dict(path):
    answer, model = official(path)
    back = lf.to_official(model)
    assert back.keys() == answer["state_dict"].keys()
    assert all(torch.equal(back[key], value) for key, value in answer["state_dict"].items())


def test_a_converted_model_saves_and_loads(tmp_path):
    answer, model = official(FILES[0])
    again = lf.load(lf.save(model, tmp_path / "evit.safetensors"))
    assert torch.equal(again(answer["input"]), model(answer["input"]))


def _fresh(config: dict) -> dict:
    arguments = {key: value for key, value in config.items() if key in (*CONFIG, "patch_size")}
    model = lf.create("deit", **arguments)
    swap = {"mix.norm": "norm1", "mix.fn": "attn", "ffn.norm": "norm2", "ffn.fn": "mlp"}
    state = {}
    for key, value in model.state_dict().items():
        for ours, theirs in swap.items():
            key = key.replace(f".{ours}.", f".{theirs}.")
        state[key] = value
    return state


@pytest.mark.parametrize(
    ("options", "at", "rate"),
    [
        ({"keep_rate": (0.5,)}, (0, 1, 2, 3), 0.5),
        ({"keep_rate": (1, 0.9, 1, 0.8)}, (1, 3), (0.9, 0.8)),
        ({"base_keep_rate": 0.6, "drop_loc": (1, 2)}, (1, 2), 0.6),
    ],
)
def test_every_way_to_say_the_rates_is_understood(options, at, rate):
    model = lf.from_official("evit.EViT", {**CONFIG, **options}, _fresh(CONFIG))
    (method,) = lf.card_of(model).methods
    assert (method.at, method.keep_rate, method.fuse_tokens) == (at, rate, False)


def test_our_own_evit_on_a_deit_has_an_official_form_and_on_other_models_none():
    lean = lf.apply(lf.create("vit", **CONFIG), lf.EViT())
    assert lf.to_official(lean).keys() == _fresh(CONFIG).keys()
    with pytest.raises(ValueError, match="plain DeiT"):
        lf.to_official(lf.apply(lf.create("vit", **CONFIG, init_values=0.1), lf.EViT()))


def test_a_rate_of_one_everywhere_is_the_backbone():
    assert lf.card_of(lf.from_official("evit.EViT", CONFIG, _fresh(CONFIG))).methods == ()


@pytest.mark.parametrize("option", [{"distilled": True}, {"representation_size": 7}, {"keep_rates": 0.5}])
def test_what_has_no_counterpart_is_refused(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        lf.from_official("evit.EViT", {**CONFIG, **option}, _fresh(CONFIG))


def test_positions_of_other_sizes_are_resampled_by_plain_bicubic():
    """timm's antialiased resampling is another function, also where the grid grows."""
    model = lf.from_official("evit.EViT", CONFIG, _fresh(CONFIG)).eval()
    nn.init.normal_(model.pos_embed)
    with taps(model, ["pos_drop"]) as seen, torch.no_grad():
        model(torch.zeros(1, 3, 80, 80))
        patches = model.patch_embed(torch.zeros(1, 3, 80, 80)).flatten(1, 2)
    grid = model.pos_embed[:, 1:].reshape(1, 3, 3, -1).permute(0, 3, 1, 2)
    wanted = nn.functional.interpolate(grid, (5, 5), mode="bicubic", align_corners=False).flatten(2).mT
    assert torch.allclose(seen["pos_drop"][:, 1:] - patches, wanted, atol=1e-6)
