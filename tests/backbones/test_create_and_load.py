"""create, save and load: what goes in comes out, and whatever is wrong is said and changes nothing."""

import argparse
import builtins
import copy
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from families import BACKBONES, STAGES, VIT, backbone
from helpers import randomise
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

import leanformer as lf
from leanformer.backbones import knows_classes
from leanformer.backbones.registry import build
from leanformer.core import has_card, input_of, set_classes, write_atomically

TINY = {**VIT, "embed_dim": 16, "depth": 2}


def tiny(**arguments: Any) -> nn.Module:
    return randomise(lf.create("vit", **{**TINY, **arguments})).eval()


def timm_weights(**arguments: Any) -> dict[str, Tensor]:
    model = timm.models.VisionTransformer(**{**TINY, **arguments})
    return randomise(model).state_dict()


def answers(model: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        return model.eval()(torch.randn(2, *input_of(model)["input_size"], generator=generator))


# ---- weights from files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin", ".safetensors"])
def test_weights_are_read_from_every_kind_of_file(suffix: str, tmp_path: Path) -> None:
    weights, path = timm_weights(), tmp_path / f"weights{suffix}"
    save_file(weights, path) if suffix == ".safetensors" else torch.save(weights, path)
    model = lf.create("vit", path, **TINY)
    assert torch.equal(model.head.weight, weights["head.weight"])
    assert torch.equal(model.blocks[1].mix.fn.qkv.weight, weights["blocks.1.attn.qkv.weight"])


@pytest.mark.parametrize("nest", ["model", "state_dict", "model_ema", "state_dict_ema"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_nested_and_wrapped_checkpoints_are_unpacked(nest: str, prefix: str, tmp_path: Path) -> None:
    weights, path = timm_weights(), tmp_path / "checkpoint.pth"
    options = argparse.Namespace(lr=0.1)
    torch.save({nest: {f"{prefix}{k}": v for k, v in weights.items()}, "epoch": 3, "args": options}, path)
    assert torch.equal(lf.create("vit", path, **TINY).cls_token, weights["cls_token"])


class Evil:
    """Writes a file when it is unpickled without care."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.trace}",)


def test_a_pickle_with_code_is_refused_and_not_executed(tmp_path: Path) -> None:
    path, trace = tmp_path / "evil.pth", tmp_path / "trace"
    torch.save({"model": timm_weights(), "extra": Evil(trace)}, path)
    with pytest.raises(ValueError, match="is not a file of plain weights"):
        lf.create("vit", path, **TINY)
    path.write_bytes(pickle.dumps(Evil(trace)))
    with pytest.raises(ValueError, match="is not a file of plain weights"):
        lf.create("vit", path, **TINY)
    assert not trace.exists()


@pytest.mark.parametrize(
    "content", [b"", b"not a checkpoint", b"\x80\x02}q\x00.", b"PK\x03\x04 truncated", os.urandom(500)]
)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_file_that_is_no_checkpoint_is_refused_by_create(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"file\{suffix} (is not|holds no)"):
        lf.create("vit", path, **TINY)


@pytest.mark.parametrize("content", [{"epoch": 3}, {"model": nn.Linear(2, 2).state_dict(), "x": 1}, [1, 2], {}, 3])
def test_a_pickle_without_a_fitting_state_dict_is_refused(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "file.pth")
    with pytest.raises(ValueError, match=r"holds no state dict|is for another model"):
        lf.create("vit", tmp_path / "file.pth", **TINY)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_what_is_no_file_is_called_what_it_is(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, secret = tmp_path / f"pipe{suffix}", tmp_path / f"secret{suffix}"
    os.mkfifo(pipe)
    secret.touch()
    opened = builtins.open

    def guarded(path: Any, *rest: Any, **options: Any) -> Any:
        if Path(path) == secret:
            raise PermissionError(13, "Permission denied")
        return opened(path, *rest, **options)

    monkeypatch.setattr(builtins, "open", guarded)
    found = {tmp_path / f"no{suffix}": "does not exist", tmp_path: "is a folder", pipe: "is not a plain file"}
    for path, line in {**found, secret: "cannot be read: Permission denied"}.items():
        for read in (lambda path: lf.create("vit", path, **TINY), lf.load):
            with pytest.raises(ValueError, match=line):
                read(path)
    assert not has_card(pipe)


ODD: dict[str, Any] = {
    "integers": lambda t: t.long(),
    "truth values": lambda t: t.bool(),
    "complex numbers": lambda t: t.to(torch.complex64),
    "a sparse tensor": lambda t: t.to_sparse(),
    "a tensor without numbers": lambda t: t.to("meta"),
    "an expanded tensor": lambda t: t.new_zeros(1).expand(t.shape),
}


@pytest.mark.parametrize("kind", ODD)
def test_weights_of_another_kind_are_refused_not_cast(kind: str, tmp_path: Path) -> None:
    odd = {key: ODD[kind](value) for key, value in timm_weights().items()}
    torch.save(odd, tmp_path / "odd.pth")
    with pytest.raises(ValueError, match=r"^[^\n]*odd\.pth(: | is for another model; of another kind)[^\n]*$"):
        lf.create("vit", tmp_path / "odd.pth", **TINY)
    path = lf.save(tiny(), tmp_path / "model.safetensors")
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    if kind in ("integers", "truth values", "complex numbers"):
        save_file({key: ODD[kind](value) for key, value in load_file(path).items()}, path, metadata)
        with pytest.raises(ValueError, match="of another kind: cls_token is"):
            lf.load(path)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_quantised_weights_and_keys_that_are_numbers_are_refused(tmp_path: Path) -> None:
    quantised = torch.quantize_per_tensor(torch.zeros(3, 3), 0.1, 0, torch.qint8)
    for content, line in (({"x": quantised}, "x is quantised"), ({1: torch.zeros(1)}, "the key 1, which is no text")):
        torch.save(content, tmp_path / "odd.pth")
        with pytest.raises(ValueError, match=line):
            lf.create("vit", tmp_path / "odd.pth", **TINY)


def test_a_checkpoint_for_another_model_is_reported_key_by_key(tmp_path: Path) -> None:
    weights = timm_weights(num_classes=7)
    del weights["norm.weight"]
    weights["extra.weight"] = torch.zeros(1)
    torch.save(weights, tmp_path / "other.pth")
    with pytest.raises(ValueError, match="is for another model") as error:
        lf.create("vit", tmp_path / "other.pth", **TINY)
    report = str(error.value)
    assert "missing: norm.weight (1 in all)" in report
    assert "unexpected: extra.weight (1 in all)" in report
    assert "of another shape: head.weight is (7, 16) instead of (5, 16)" in report
    with pytest.raises(ValueError, match=r"is for another model; missing: .* more \(\d+ in all\)"):
        lf.create("mixer", tmp_path / "other.pth", **BACKBONES["mixer"][1])


def test_a_leanformer_checkpoint_is_not_taken_for_bare_weights(tmp_path: Path) -> None:
    path = lf.save(tiny(), tmp_path / "lean.safetensors")
    with pytest.raises(ValueError, match=r"use lf\.load"):
        lf.create("vit", path, **TINY)


def test_positions_are_resampled_on_request_only(tmp_path: Path) -> None:
    weights = timm_weights()
    torch.save(weights, tmp_path / "small.pth")
    with pytest.raises(ValueError, match=r"pos_embed is \(1, 17, 16\) instead of \(1, 37, 16\)"):
        lf.create("vit", tmp_path / "small.pth", **{**TINY, "img_size": 48})
    model = lf.create("vit", tmp_path / "small.pth", resample_positions=True, **{**TINY, "img_size": 48})
    reference = timm.models.VisionTransformer(**TINY)
    reference.load_state_dict(weights)
    reference.set_input_size(img_size=(48, 48))
    assert torch.equal(model.pos_embed, reference.pos_embed)
    same = lf.create("vit", tmp_path / "small.pth", resample_positions=True, **TINY)
    assert torch.equal(same.pos_embed, weights["pos_embed"])


def test_relative_positions_are_resampled_to_other_windows(tmp_path: Path) -> None:
    swin = BACKBONES["swin"][1]
    small = randomise(timm.models.SwinTransformer(**swin))
    torch.save(small.state_dict(), tmp_path / "swin.pth")
    larger = {**swin, "img_size": 64, "window_size": 8}
    with pytest.raises(ValueError, match="relative_position_bias_table is"):
        lf.create("swin", tmp_path / "swin.pth", **larger)
    model = lf.create("swin", tmp_path / "swin.pth", resample_positions=True, **larger)
    small.set_input_size(img_size=(64, 64), window_size=(8, 8))
    torch.testing.assert_close(answers(model), answers(lf.adopt(small, "swin", larger)))


def test_positions_of_another_width_or_a_rectangle_are_refused(tmp_path: Path) -> None:
    torch.save(timm_weights(img_size=(32, 64)), tmp_path / "wide.pth")
    with pytest.raises(ValueError, match="positions for 32 patches, not a square"):
        lf.create("vit", tmp_path / "wide.pth", resample_positions=True, **TINY)
    torch.save(timm_weights(embed_dim=32), tmp_path / "other.pth")
    with pytest.raises(ValueError, match="is for another model"):
        lf.create("vit", tmp_path / "other.pth", resample_positions=True, **TINY)


# ---- weights as their authors have them -----------------------------------------------------------------------------


def microsofts(model: nn.Module) -> dict[str, Tensor]:
    """A Swin's weights in Swin's own layout: a stage ends with its downsampling, and buffers are stored."""
    found = {"layers.0.blocks.1.attn_mask": torch.zeros(16, 16, 16)}
    found["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(16, 16, dtype=torch.long)
    for key, value in model.state_dict().items():
        key = re.sub(r"layers\.(\d+)\.downsample", lambda match: f"layers.{int(match[1]) - 1}.downsample", key)
        found[key.replace("head.fc.", "head.")] = value
    return found


def facebooks(model: nn.Module) -> dict[str, Tensor]:
    """A ResMLP's weights in ResMLP's own layout."""
    names = {"stem.": "patch_embed.", "linear_tokens.": "attn.", "mlp_channels.": "mlp.", ".ls": ".gamma_"}
    found = {}
    for key, value in model.state_dict().items():
        for ours, theirs in names.items():
            key = key.replace(ours, theirs)
        found[key] = value.flatten() if key.endswith((".alpha", ".beta")) else value
    return found


def metas(model: nn.Module) -> dict[str, Tensor]:
    """A DINOv2's weights with registers in DINOv2's own layout: the class token has a position."""
    found = dict(model.state_dict())
    first = torch.ones(1, 1, found["cls_token"].shape[2])
    found |= {"register_tokens": found.pop("reg_token"), "mask_token": first[0]}
    found |= {"pos_embed": torch.cat([first, found["pos_embed"]], dim=1), "cls_token": found["cls_token"] - first}
    return found


LAYOUTS = {"swin": microsofts, "resmlp": facebooks, "dinov2_reg": metas}


@pytest.mark.parametrize("family", LAYOUTS)
def test_a_file_in_its_authors_layout_is_read_as_timm_reads_it(family: str, tmp_path: Path) -> None:
    name, arguments = BACKBONES[family]
    theirs = randomise(build(name, **arguments)).eval()
    weights = LAYOUTS[family](theirs)
    assert set(weights) != set(theirs.state_dict())
    torch.save(weights, tmp_path / "theirs.pth")
    model = lf.create(name, tmp_path / "theirs.pth", **arguments)
    torch.testing.assert_close(answers(model), answers(lf.adopt(theirs, name, arguments)))


def test_a_file_in_its_authors_layout_is_resampled_on_request_only(tmp_path: Path) -> None:
    arguments = BACKBONES["swin"][1]
    torch.save(microsofts(timm.models.SwinTransformer(**arguments)), tmp_path / "swin.pth")
    larger = {**arguments, "img_size": 64, "window_size": 8}
    with pytest.raises(ValueError, match=r"is for another model; of another shape: [^;]*relative_position_bias_table"):
        lf.create("swin", tmp_path / "swin.pth", **larger)
    assert lf.create("swin", tmp_path / "swin.pth", resample_positions=True, **larger).num_classes == 5


def test_weights_that_timm_would_leave_out_are_refused(tmp_path: Path) -> None:
    torch.save({**timm_weights(), "pre_logits.fc.weight": torch.zeros(16, 16)}, tmp_path / "more.pth")
    with pytest.raises(ValueError, match=r"unexpected: pre_logits\.fc\.weight \(1 in all\)"):
        lf.create("vit", tmp_path / "more.pth", **TINY)


RELEASED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("poolformer_s12", "convformer_s18", "caformer_s18", "riformer_s12", "randformer_s12"), STAGES),
    "metaformer_ppaa_s12_224": STAGES,
    "lvvit_s": TINY,
    "gfnet_h_ti": {"img_size": 64, "embed_dim": [8, 8, 16, 16], "depth": [1, 1, 1, 1], "num_classes": 5},
}


@pytest.mark.parametrize("name", RELEASED)
def test_the_authors_keys_are_read_for_any_classes_and_image_size(name: str, tmp_path: Path) -> None:
    arguments = RELEASED[name]
    model = randomise(lf.create(name, **arguments)).eval()
    official = lf.to_official(model)
    assert set(official) != set(model.state_dict())
    torch.save(official, tmp_path / "mine.pth")
    assert torch.equal(answers(lf.create(name, tmp_path / "mine.pth", **arguments)), answers(model))


def test_the_authors_keys_and_another_image_size_are_read_together(tmp_path: Path) -> None:
    model: Any = randomise(lf.create("lvvit_s", **TINY))
    torch.save(lf.to_official(model), tmp_path / "mine.pth")
    larger: Any = lf.create("lvvit_s", tmp_path / "mine.pth", resample_positions=True, **{**TINY, "img_size": 48})
    assert torch.equal(larger.pos_embed, lf.resize(model, 48).pos_embed)


# ---- names and arguments --------------------------------------------------------------------------------------------


def test_unknown_models_are_refused_with_near_names() -> None:
    with pytest.raises(
        ValueError, match=r"unknown model 'deit_smal_patch16_224'; did you mean .*deit_small_patch16_224"
    ):
        lf.create("deit_smal_patch16_224")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("deit_tiny_patch16_224", {"nonsense": 1}),
        ("vit", {**TINY, "num_heads": 3}),
        ("vit", {**TINY, "depth": "many"}),
        ("vit", {**TINY, "img_size": 33}),
        ("vit", {**TINY, "img_size": 4}),
        ("vit", {**TINY, "patch_size": 0}),
        ("deit_tiny_patch16_224", {"img_size": 225}),
        ("deit_tiny_patch16_224", {"img_size": "large"}),
        ("swin_tiny_patch4_window7_224", {"img_size": 223}),
        ("mixer", {**BACKBONES["mixer"][1], "img_size": 30}),
        ("timm_metaformer", {"token_mixers": ["magic"] * 4}),
    ],
)
def test_arguments_and_image_sizes_a_model_cannot_take_are_refused(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=name):
        lf.create(name, **arguments)


def test_other_image_sizes_are_refused_by_the_count_too() -> None:
    with pytest.raises(ValueError, match=r"takes no images of size \(3, 40, 40\)"):
        lf.measure.count(tiny(), (3, 40, 40))


# ---- checkpoints that describe themselves ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", BACKBONES)
def test_every_family_is_saved_and_loaded_bit_equal(family: str, tmp_path: Path) -> None:
    name, arguments = BACKBONES[family]
    model = randomise(lf.create(name, **arguments))
    again = lf.load(lf.save(model, tmp_path / "model.safetensors"))
    assert not again.training
    assert torch.equal(answers(again), answers(model))
    assert input_of(again) == input_of(model)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_dtype_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    again = lf.load(lf.save(tiny().to(dtype), tmp_path / "model.safetensors"))
    assert {p.dtype for p in again.parameters()} == {dtype}


def test_mixed_dtypes_are_kept(tmp_path: Path) -> None:
    model = tiny().bfloat16()
    model.head.double()
    again = lf.load(lf.save(model, tmp_path / "model.safetensors"))
    assert {k: v.dtype for k, v in again.state_dict().items()} == {k: v.dtype for k, v in model.state_dict().items()}


@pytest.mark.parametrize("family", ["vit", "swin", "mixer", "timm_poolformer", "deit_distilled"])
def test_a_classifier_that_was_reset_is_kept(family: str, tmp_path: Path) -> None:
    name, arguments = BACKBONES[family]
    model: Any = lf.create(name, **arguments)
    model.reset_classifier(11)
    again: Any = lf.load(lf.save(randomise(model), tmp_path / "model.safetensors"))
    assert again.num_classes == 11
    assert torch.equal(answers(again), answers(model))


@pytest.mark.parametrize("pool", ["avg", "max", ""])
def test_a_pooling_that_was_reset_is_kept(pool: str, tmp_path: Path) -> None:
    model: Any = tiny()
    model.reset_classifier(5, global_pool=pool)
    again = lf.load(lf.save(model, tmp_path / "model.safetensors"))
    assert torch.equal(answers(again), answers(model))


@pytest.mark.parametrize("size", [(48, 48), (32, 64)])
def test_a_resized_vision_transformer_is_saved_at_its_size(size: tuple[int, int], tmp_path: Path) -> None:
    model: Any = tiny()
    model.set_input_size(img_size=size)
    again = lf.load(lf.save(model, tmp_path / "model.safetensors"))
    assert input_of(again)["input_size"] == (3, *size)
    assert torch.equal(answers(again), answers(model))


def test_a_resized_swin_is_refused_because_its_windows_changed(tmp_path: Path) -> None:
    model: Any = lf.create("swin", **BACKBONES["swin"][1])
    model.set_input_size(img_size=(64, 64), window_size=(8, 8))
    with pytest.raises(ValueError, match="was resized from"):
        lf.save(model, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_arguments_that_are_no_plain_values_are_refused_on_saving(tmp_path: Path) -> None:
    model = lf.create("vit", **TINY, act_layer=nn.ReLU)
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        lf.save(model, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_the_card_says_what_the_model_is(tmp_path: Path) -> None:
    card = card_in(lf.save(tiny(), tmp_path / "model.safetensors"))
    assert card["backbone"] == "vit"
    assert card["arguments"] == TINY
    assert card["num_classes"] == 5
    assert card["fused"] is False
    assert card["methods"] == []
    assert card["input"]["input_size"] == [3, 32, 32]
    assert len(card["input"]["mean"]) == 3
    assert set(card["versions"]) == {"leanformer", "timm", "torch"}


def test_the_source_of_weights_is_not_on_the_card(tmp_path: Path) -> None:
    torch.save(timm_weights(), tmp_path / "weights.pth")
    model = lf.create("vit", tmp_path / "weights.pth", **TINY)
    assert str(tmp_path) not in json.dumps(card_in(lf.save(model, tmp_path / "model.safetensors")))


def test_tied_weights_are_saved(tmp_path: Path) -> None:
    model: Any = tiny()
    model.blocks[1].ffn.fn.fc1.weight = model.blocks[0].ffn.fn.fc1.weight
    again = lf.load(lf.save(model, tmp_path / "model.safetensors"))
    assert torch.equal(answers(again), answers(model))


# ---- damaged and foreign files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 0.5, 0.999])
def test_a_truncated_checkpoint_is_refused(keep: float, tmp_path: Path) -> None:
    path = lf.save(tiny(), tmp_path / "model.safetensors")
    content = path.read_bytes()
    path.write_bytes(content[: int(keep if keep >= 1 else keep * len(content))])
    with pytest.raises(ValueError, match=r"model\.safetensors is not a whole safetensors file"):
        lf.load(path)


def test_a_foreign_file_is_refused_and_told_where_to_go(tmp_path: Path) -> None:
    save_file(timm_weights(), tmp_path / "foreign.safetensors")
    with pytest.raises(ValueError, match=r"has weights but no leanformer card; give them to lf\.create"):
        lf.load(tmp_path / "foreign.safetensors")
    torch.save(timm_weights(), tmp_path / "foreign.pth")
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        lf.load(tmp_path / "foreign.pth")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("not json", "card in .* is damaged"),
        ([1, 2], "card in .* is damaged"),
        ({"backbone": None}, "card in .* is damaged.*'backbone'"),
        ({"arguments": [1]}, "card in .* is damaged.*'arguments'"),
        ({"methods": "evit"}, "card in .* is damaged.*'methods'"),
        ({"fused": "yes"}, "card in .* is damaged.*'fused'"),
        ({"methods": [{"name": "evit"}]}, "card in .* is damaged"),
        ({"methods": [{"name": "magic", "version": 1, "options": {}}]}, "unknown method 'magic'"),
        ({"format": 99}, "is of format 99"),
        ({"backbone": "magic"}, "unknown model 'magic'"),
        ({"backbone": "resnet18", "arguments": {}}, "cannot adopt ResNet"),
        ({"arguments": {**TINY, "embed_dim": 32}}, "is for another model"),
        ({"arguments": {**TINY, "nonsense": 1}}, "cannot be built with"),
        ({"arguments": {**TINY, "checkpoint": "other.pth"}}, "asks for weights from elsewhere"),
        ({"arguments": {**TINY, "pretrained": True}}, "asks for weights from elsewhere"),
        ({"arguments": {**TINY, "checkpoint_path": "x"}}, "asks for weights from elsewhere"),
        ({"arguments": {**TINY, "pretrained_cfg": {"file": "x"}}}, "asks for weights from elsewhere"),
        ({"global_pool": "magic"}, "magic"),
    ],
    ids=str,
)
def test_a_tampered_card_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    path = lf.save(tiny(), tmp_path / "model.safetensors")
    card = card_in(path)
    card = card | change if isinstance(change, dict) else change
    text = card if isinstance(card, str) else json.dumps(card)
    save_file(load_file(path), path, {"leanformer": text})
    with pytest.raises(ValueError, match=f"(?s){message}"):
        lf.load(path)


# ---- outputs that cannot be written ---------------------------------------------------------------------------------


def test_an_output_path_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (tmp_path / "missing" / "model.safetensors", folder, tmp_path / ("x" * 300)):
        with pytest.raises(ValueError, match="cannot write"):
            lf.save(tiny(), path)
    assert list(tmp_path.iterdir()) == [folder]
    assert not list(folder.iterdir())


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fails(name: str) -> None:
        Path(name).write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(ValueError, match="No space left on device"):
        write_atomically(path, fails)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, lambda name: (_ for _ in ()).throw(KeyboardInterrupt))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_saved_files_can_be_read_by_those_who_may_read_other_files(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    path = lf.save(tiny(), tmp_path / "model.safetensors")
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def card_in(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["leanformer"])


@pytest.mark.parametrize("names", [None, ["n01440764"], ["n01440764", "cat", "dog"]])
def test_a_head_is_fresh_unless_every_class_is_known(names):
    vit = lf.create("vit", depth=1, embed_dim=8, num_heads=1, num_classes=1000)
    rows = vit.head.weight
    head = lf.with_head(vit, 3, names).head
    assert head.weight.shape == (3, 8)
    assert not torch.equal(head.weight, rows[:3])


@pytest.mark.parametrize("classes", [5, 1000])
def test_a_head_can_be_taken_off(classes: int) -> None:
    vit = tiny(num_classes=classes)
    assert lf.with_head(vit, 0)(torch.zeros(1, 3, 32, 32)).shape == (1, 16)
    assert vit(torch.zeros(1, 3, 32, 32)).shape == (1, classes)


@pytest.mark.parametrize("names", [["dog", "bee"], ["elk", "dog", "cat", "bee", "ant"]], ids=["some", "all"])
@pytest.mark.parametrize("family", BACKBONES)
def test_a_head_for_known_classes_answers_as_the_model_did(family: str, names: list[str]) -> None:
    known = ["ant", "bee", "cat", "dog", "elk"]
    model = set_classes(copy.deepcopy(backbone(family)), known)
    expected = answers(model)[:, [known.index(name) for name in names]]
    torch.testing.assert_close(answers(lf.with_head(model, len(names), names)), expected)


def test_rows_of_a_head_that_was_put_in_by_hand_are_not_taken_for_those_of_imagenet() -> None:
    vit: Any = tiny(num_classes=1000)
    vit.head = nn.Linear(16, 7)
    assert lf.with_head(vit, 2, ["n01440764", "n01443537"]).head.weight.shape == (2, 16)


def test_a_model_of_another_number_of_classes_without_names_knows_none() -> None:
    assert knows_classes(tiny(num_classes=1000), ["n01440764", "n01443537"])
    assert not knows_classes(tiny(num_classes=21_841), ["n01440764", "n01443537"])


# ---- another image size ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 128), (96, 96), (128, 72)], ids=str)
@pytest.mark.parametrize("built", [(72, 128), (72, 88)], ids=str)
def test_a_model_for_rectangles_is_resized_from_its_own_plane(built: tuple[int, int], size: tuple[int, int]) -> None:
    """72 x 128 pixels are 9 x 16 patches, as many as those of a square of 12."""
    model: Any = tiny(img_size=built)
    old, new = ([pixels // 8 for pixels in pair] for pair in (built, size))
    expected = resample_abs_pos_embed(model.pos_embed, new, old)
    resized: Any = lf.resize(model, size)
    assert torch.equal(resized.pos_embed, expected)
    assert not torch.equal(resized.pos_embed[:, 1:], model.pos_embed[:, 1 : resized.pos_embed.shape[1]])
    assert torch.equal(lf.resize(model, built).pos_embed, model.pos_embed)


@pytest.mark.parametrize("pool", ["avg", "max"])
def test_a_pooling_that_was_reset_is_resized(pool: str, tmp_path: Path) -> None:
    model: Any = tiny()
    model.reset_classifier(5, global_pool=pool)
    for each in (model, lf.load(lf.save(model, tmp_path / "model.safetensors"))):
        assert torch.equal(answers(lf.resize(each, 32)), answers(model))


@pytest.mark.parametrize("name", ["deit", "dinov2", "vit"])
def test_a_resized_model_answers_as_the_model_itself_at_that_size(name: str) -> None:
    model = randomise(lf.create(name, **TINY, dynamic_img_size=True)).eval()
    larger = torch.randn(2, 3, 48, 56)
    assert torch.equal(lf.resize(model, (48, 56))(larger), model(larger))


def test_weights_for_one_number_of_patches_are_refused_by_resize() -> None:
    message = "cannot be resized to 64; weights that count patches.* instead of "
    for model in (lf.create("mixer", **BACKBONES["mixer"][1]), lf.apply(tiny(), lf.SiT())):
        with pytest.raises(ValueError, match=message) as told:
            lf.resize(model, 64)
        assert "\n" not in str(told.value)


# ---- nothing silently lost ------------------------------------------------------------------------------------------


OVERLAY = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6), "crop_pct": 1.0, "interpolation": "bilinear"}


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "vit"])
def test_normalisation_and_crop_of_an_overlay_are_kept(name: str, tmp_path: Path) -> None:
    model = lf.create(name, **TINY, pretrained_cfg_overlay=OVERLAY)
    assert OVERLAY.items() <= input_of(model).items()
    again = lf.load(lf.save(model, tmp_path / "model.safetensors"))
    assert input_of(again) == input_of(model)
    assert input_of(lf.resize(again, 64))["mean"] == OVERLAY["mean"]
    assert input_of(lf.create(name, **TINY))["mean"] != OVERLAY["mean"]


def test_sizes_of_an_overlay_are_kept(tmp_path: Path) -> None:
    model = lf.create("deit_tiny_patch16_224", depth=1, pretrained_cfg_overlay={"input_size": (1, 64, 64)})
    again = lf.load(lf.save(model, tmp_path / "model.safetensors"))
    assert input_of(again)["input_size"] == input_of(model)["input_size"] == (1, 64, 64)


def test_a_model_that_lost_blocks_is_refused_on_saving(tmp_path: Path) -> None:
    model: Any = tiny()
    model.prune_intermediate_layers([0])
    with pytest.raises(
        ValueError, match=r"^this VisionTransformer was changed since it was made[^\n]*missing: blocks\.1"
    ):
        lf.save(model, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["vit_giant_patch14_dinov2", "vit_gigantic_patch14_224", "swinv2_cr_giant_384"])
def test_a_small_file_that_claims_a_giant_is_refused_before_it_is_built(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lf.save(tiny(), tmp_path / "model.safetensors")
    card = card_in(path) | {"backbone": name, "arguments": {}}
    save_file(load_file(path), path, {"leanformer": json.dumps(card)})
    made: list[torch.device] = []
    linear = nn.Linear.reset_parameters
    monkeypatch.setattr(nn.Linear, "reset_parameters", lambda self: made.append(self.weight.device) or linear(self))
    with pytest.raises(ValueError, match=r"^the card in [^\n]*$"):
        lf.load(path)
    assert {device.type for device in made} == {"meta"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arguments": {**TINY, "depth": 10**9}}, "more than its weights could carry"),
        ({"arguments": {**TINY, "depth": 5000}}, "more than its weights could carry"),
        ({"arguments": {**TINY, "embed_dim": 10**300}}, "a number of more than 30 digits"),
        ({"arguments": {**TINY, "img_size": 65_536}}, "sides are 1 to 8192"),
        ({"arguments": {**TINY, "num_heads": -1}}, "nothing of a model can be negative"),
        ({"arguments": {**TINY, "drop_path_rate": float("nan")}}, "not finite"),
        ({"methods": [{"name": "evit", "version": 1, "options": {}}] * 500}, "names 500 methods"),
        ({"classes": ["a"]}, "1 names of classes do not fit a model with 5 outputs"),
        ({"classes": "abcde"}, "names of classes are texts"),
        ({"input": {"crop_pct": 1e-9}}, "crop_pct=1e-09"),
        ({"input": {"std": [0, 1, 1]}}, r"std=\[0, 1, 1\]"),
        ({"input": 3}, "the card's input is 3"),
        ({"official": 3}, "card in .* is damaged.*'official'"),
    ],
    ids=str,
)
def test_a_card_that_claims_too_much_or_nonsense_is_one_line(change: Any, message: str, tmp_path: Path) -> None:
    path = lf.save(tiny(), tmp_path / "model.safetensors")
    save_file(load_file(path), path, {"leanformer": json.dumps(card_in(path) | change)})
    with pytest.raises(ValueError, match=message) as error:
        lf.load(path)
    assert "\n" not in str(error.value)
