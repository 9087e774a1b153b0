"""RIFormer (Wang et al., CVPR 2023): PoolFormers without token mixers, distilled for 600 epochs, then 30 at 384 pixels.

    leanformer train --recipe riformer_s12 --checkpoint poolformer_s12.pth \\
        --teacher gfnet_h_b:gfnet_h_b.pth --teacher imitation=poolformer_s12:poolformer_s12.pth \\
        --data imagenet/ --output runs/riformer_s12

`lf.create("riformer_s12")` is `lf.apply(lf.create("poolformer_s12"), lf.RIFormer())` and has the same card.

No training code was released: the optimizer's settings are those of the released inference configuration, the weights
of the imitation terms are the method's defaults. Feature terms count for 80 of 120 epochs and the relation term for 20
in the paper's study, here in the same shares of the run. No training time is stated.

`riformer_*` is the paper's: its losses are plain means of squares, and its affines start as the released configuration
has them. `riformer_*_ours` differs in both: losses relative to the teacher's features, and affines that calibration
fits to the token mixers before training (`start="fit"`).

The official class is mmpretrain's backbone with global pooling and a linear head, in both of its forms. In the deploy
form `norm_reparam` stands for norm and affine, and the LayerScale behind it is still there. Ours has folded that into
the norm as well; on the way back it is all ones.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..backbones import create
from ..backbones.metaformer_config import SIZES
from ..backbones.registry import register_named
from ..core import apply, blocks_of, card_of, fold
from ..methods import RIFormer
from ..methods.riformer.affine import AffineBranch, NormResidual
from ..train.recipe import Recipe
from .comparators import compared
from .door import CONVERTERS, RELEASED, Converter, KeyMap, State
from .published import Published, publish
from .table import PaperTables, Row, fvcore

OFFICIAL = "mmpretrain RIFormer + GAP + LinearClsHead"
PIXELS = {"": 224, "_384": 384}
"""What a model's name ends in → its image size."""

# models


def riformer(backbone: str, **arguments: Any) -> nn.Module:
    """A backbone with an affine for each token mixer."""
    return apply(create(backbone, **arguments), RIFormer())


for _size in SIZES:
    for _end, _pixels in PIXELS.items():
        _settings = {"backbone": f"poolformer_{_size}", "img_size": _pixels}
        register_named(riformer, {f"riformer_{_size}{_end}": _settings})
        RELEASED[f"riformer_{_size}{_end}"] = (OFFICIAL, {"arch": _size, "img_size": _pixels})

# official keys

REPARAM = "norm_reparam.weight"
RENAMED = {"in_channels": "in_chans", "num_classes": "num_classes", "img_size": "img_size", "drop_rate": "drop_rate"}
CONVS = {"stem": ("in_patch_size", "in_stride", "in_pad"), "down": ("down_patch_size", "down_stride", "down_pad")}
CONV_DEFAULTS = {"stem": (7, 4, 2), "down": (3, 2, 1)}
NEUTRAL = {"norm_cfg": {"type": "GN", "num_groups": 1}, "act_cfg": {"type": "GELU"}, "frozen_stages": -1}
FORM = ("deploy", "init_cfg")
"""Options that say nothing about the weights: which form they are in shows in their keys."""


def _build(config: dict[str, Any], state: State) -> nn.Module:
    name, arguments = _arguments(config)
    if "head.fc.weight" not in state:  # the backbone alone
        arguments["num_classes"] = 0
    model = apply(create(name, **arguments), RIFormer())
    return fold(model) if _deployed(state) else model


def _arguments(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Our backbone and its arguments for the official constructor's."""
    left = {"arch": "s12", "num_classes": 1000, **config}
    arch = left.pop("arch")
    arguments: dict[str, Any] = {ours: left.pop(theirs) for theirs, ours in RENAMED.items() if theirs in left}
    arguments["drop_path_rate"] = left.pop("drop_path_rate", 0.0)
    for ours, parts in CONVS.items():
        given = tuple(left.pop(part, default) for part, default in zip(parts, CONV_DEFAULTS[ours]))
        arguments |= {ours: given} if given != CONV_DEFAULTS[ours] else {}
    name, stages = f"poolformer_{arch}", 4
    if isinstance(arch, dict):
        name, stages = "metaformer", len(arch["layers"])
        arguments |= {"depths": tuple(arch["layers"]), "dims": tuple(arch["embed_dims"])}
        arguments |= {"mlp_ratios": tuple(arch["mlp_ratios"])}
        arguments |= {"layer_scale_init_values": arch["layer_scale_init_value"]}
    elif arch not in SIZES:
        raise ValueError(f"unknown RIFormer '{arch}'; known: {', '.join(SIZES)}, or a dict of layers and widths")
    arguments |= _outputs(left.pop("out_indices", -1), stages)
    for key, value in left.items():
        if key not in FORM and value != NEUTRAL.get(key):
            raise ValueError(f"the official option {key}={value!r} has no counterpart in our RIFormer")
    return name, arguments


def _outputs(indices: Any, stages: int) -> dict[str, Any]:
    """The stages whose maps are normalised and given out. Officially the downsamplings count as well: 0, 1, …, 6."""
    given = [indices] if isinstance(indices, int) else list(indices)
    entries = sorted(index % (2 * stages - 1) for index in given)
    if any(entry % 2 for entry in entries) or entries[-1] != 2 * stages - 2:
        raise ValueError(f"out_indices={indices} gives out a downsampling, or not the last stage, which the head reads")
    return {"out_norms": tuple(entry // 2 for entry in entries[:-1])} if len(entries) > 1 else {}


def _keys(stages: int) -> KeyMap:
    pairs = [("backbone.patch_embed.proj.{*}", "stem.conv.{*}"), ("head.fc.{*}", "head.{*}")]
    for s in range(stages):
        theirs, ours = f"backbone.network.{2 * s}.{{i}}", f"stages.{s}.blocks.{{i}}"
        pairs += [
            (f"{theirs}.token_mixer.affine.{{*}}", f"{ours}.mix.fn.{{*}}"),
            (f"{theirs}.norm1.{{*}}", f"{ours}.mix.norm.{{*}}"),
            (f"{theirs}.layer_scale_1", f"{ours}.mix.scale.gamma"),
            (f"{theirs}.norm2.{{*}}", f"{ours}.ffn.norm.{{*}}"),
            (f"{theirs}.layer_scale_2", f"{ours}.ffn.scale.gamma"),
            (f"{theirs}.mlp.{{*}}", f"{ours}.ffn.fn.{{*}}"),
            (f"backbone.network.{2 * s - 1}.proj.{{*}}", f"stages.{s}.downsample.conv.{{*}}"),
            (f"backbone.norm{2 * s}.{{*}}", f"out_norms.{s}.{{*}}" if s < stages - 1 else "norm.{*}"),
        ]
    return KeyMap(pairs)


def _deployed(state: State) -> bool:
    return any(key.endswith(REPARAM) for key in state)


def _ours(state: State, model: Any) -> State:
    """Affine weights lose their convolution's shape; in deploy form LayerScale goes into the norm."""
    if not any(key.startswith("backbone.") for key in state):  # saved from the backbone alone
        state = {key if key.startswith("head.") else f"backbone.{key}": value for key, value in state.items()}
    if _deployed(state):
        for key in [key for key in state if key.endswith("layer_scale_1")]:
            scale, block = state.pop(key), key.removesuffix("layer_scale_1")
            for part in ("weight", "bias"):
                state[f"{block}norm1.{part}"] = state.pop(f"{block}norm_reparam.{part}") * scale
    renamed = {_keys(len(model.stages)).ours(key): value for key, value in state.items()}
    return {key: value.flatten() if ".mix.fn." in key else value for key, value in renamed.items()}


def _theirs(state: State, model: Any) -> State:
    keys = _keys(len(getattr(model, "stages", ())))
    if not all(keys.theirs(key).startswith(("backbone.", "head.fc.")) for key in state) or not _all_free(model):
        raise ValueError(
            "the official RIFormer is a PoolFormer with an affine for every token mixer, or fused "
            "without any token mixer; this model has other modules, or keeps some of its token mixers"
        )
    official = {keys.theirs(key): _as_conv(key, value) for key, value in state.items()}
    if not card_of(model).fused:
        return official
    renamed = {key.replace(".norm1.", ".norm_reparam."): value for key, value in official.items()}
    scales = {
        key.replace(REPARAM, "layer_scale_1"): torch.ones_like(value)
        for key, value in renamed.items()
        if key.endswith(REPARAM)
    }
    return renamed | scales


def _all_free(model: nn.Module) -> bool:
    """Whether every block has an affine, or nothing but its norm, where a token mixer was."""
    return all(isinstance(block.mix, AffineBranch | NormResidual) for block in blocks_of(model).values())


def _as_conv(key: str, value: Tensor) -> Tensor:
    return value[:, None, None, None] if key.endswith(".mix.fn.weight") else value


CONVERTERS.append(Converter("riformer", "mmpretrain RIFormer", _build, _ours, _theirs, method="riformer"))

# Table 6

PRINTED = {
    "s12": ("12", "1.8", "4899.80", "76.9", "5.4", "1586.51", "78.3"),
    "s24": ("21", "3.4", "2530.48", "80.3", "10.0", "819.40", "81.4"),
    "s36": ("31", "5.0", "1699.94", "81.3", "14.7", "552.07", "82.2"),
    "m36": ("56", "8.8", "1185.33", "82.6", "25.9", "403.15", "83.4"),
    "m48": ("73", "11.6", "897.05", "82.8", "34.1", "304.43", "83.7"),
}
"""Size → parameters; MACs, images/s and top-1 at 224; the same at 384."""
NORMS_TOO = "counted with norms, which we leave out"
FILTERS = "we count no Fourier transforms"
POOLFORMER = {
    "s12": ("4160.18", "77.2"),
    "s24": ("2140.20", "80.3"),
    "s36": ("1440.37", "81.4"),
    "m36": ("1009.45", "82.1"),
    "m48": ("761.93", "82.5"),
}
"""Size → images/s and top-1 at 224; parameters and MACs are printed as RIFormer's."""


def deployed(name: str) -> nn.Module:
    """The model as it runs: no affine, no token mixer.

    >>> sum(p.numel() for p in deployed("riformer_s12").parameters())
    11911848
    """
    return fold(create(name))


def _row(name: str, title: str, params: str, macs: str, speed: str, top1: str) -> Row:
    build = partial(deployed if name.startswith("riformer") else create, name)
    return Row("6", title, build, params, macs, published={"img/s": speed, "top-1": top1}, counted=fvcore)


COMPARED = [
    compared("6, others", label, name, params, macs, differs, top1=top1, speed=speed)
    for label, name, params, macs, speed, top1, differs in (
        ("RSB-ResNet-34", "resnet34", "22", "3.7", "6653.75", "75.5", ""),
        ("RSB-ResNet-50", "resnet50", "26", "4.1", "2732.85", "79.8", ""),
        ("RSB-ResNet-101", "resnet101", "45", "7.9", "1856.48", "81.3", NORMS_TOO),
        ("RSB-ResNet-152", "resnet152", "60", "11.6", "1308.26", "81.8", ""),
        ("DeiT-S", "deit_small_patch16_224", "22", "4.6", "3092.02", "79.8", ""),
        ("DeiT-B", "deit_base_patch16_224", "86", "17.5", "1348.76", "81.8", ""),
        ("PVT-Small", "", "25", "3.8", "1622.53", "79.8", ""),
        ("PVT-Medium", "", "44", "6.7", "1190.48", "81.2", ""),
        ("PVT-Large", "", "61", "9.8", "865.33", "81.7", ""),
        ("MLP-Mixer-B/16", "mixer_b16_224", "59", "12.7", "1855.45", "76.4", NORMS_TOO),
        ("ResMLP-S24", "resmlp_24_224", "30", "6.0", "3228.75", "79.4", ""),
        ("ResMLP-B24", "", "116", "23.0", "298.94", "81.0", ""),
        ("Swin-Mixer-T/D6 256", "", "23", "4.0", "1625.59", "79.7", ""),
        ("Swin-Mixer-B/D24", "", "61", "10.4", "1131.60", "81.3", ""),
        ("GFNet-H-Ti", "gfnet_h_ti", "15", "2.1", "1979.56", "80.1", FILTERS),
        ("GFNet-H-S", "gfnet_h_s", "32", "4.6", "1434.19", "81.5", FILTERS),
        ("GFNet-B", "gfnet_b", "43", "7.9", "1771.07", "80.7", FILTERS),
        ("GFNet-H-B", "gfnet_h_b", "54", "8.6", "939.20", "82.9", FILTERS),
    )
]
"""The models of others in Table 6."""

TABLES = PaperTables(
    [
        *COMPARED,
        *(_row(f"poolformer_{s}", f"PoolFormer-{s.upper()} 224", *PRINTED[s][:2], *POOLFORMER[s]) for s in SIZES),
        *(_row(f"riformer_{s}", f"RIFormer-{s.upper()} 224", *PRINTED[s][:4]) for s in SIZES),
        *(_row(f"riformer_{s}_384", f"RIFormer-{s.upper()} 384", PRINTED[s][0], *PRINTED[s][4:]) for s in SIZES),
    ],
    """RIFormer, Table 6: parameters and MACs at 224 and 384 pixels, of the form that is deployed.

The paper's MACs are those of fvcore, which adds five operations for each element that a norm touches. At 384 pixels
that is the difference between 5.3 and 5.4 G, so it is counted here as well. The paper does not say on what this table's
throughput was measured; its study of latency used one A100 at batch 2048.""",
)

# recipes

RECIPE = Recipe(
    epochs=600, batch_size=4096, learning_rate=4e-3, warmup_epochs=20, warmup_learning_rate=4e-6, clip_grad=5.0,
    drop_path=0.1, color_jitter=0.0,
)  # fmt: skip
PAPER = RIFormer(start="paper", relative=False, feature_epochs=400, relation_epochs=100)
FINE = RECIPE.replace(epochs=30, learning_rate=1e-4, warmup_epochs=0, batch_size=1024)
LARGER: dict[str, Any] = {
    "arguments": {"img_size": 384}, "img_size": 384, "schedule": {"layers": 0}, "teacher": "gfnet_h_b", "recipe": FINE,
}  # fmt: skip
"""The model comes from training at 224 pixels with imitation; here it learns from logits alone."""
FROM_PAPER = "epochs and augmentation from the paper; optimizer from mmpretrain's configuration"
OURS = "not in the paper: relative losses, and affines fitted to the token mixers before training"
NO_RATE = "30 epochs from the model trained at 224; the paper states no rate, 1e-4 at batch 1024 is ours"


def _published(size: str, end: str, method: RIFormer, note: str, **more: Any) -> Published:
    usual: dict[str, Any] = {"teacher": f"gfnet_h_b + imitation=poolformer_{size}", "recipe": RECIPE, **more}
    return Published(name=f"riformer_{size}{end}", model=f"poolformer_{size}", methods=(method,), note=note, **usual)


for _size in SIZES:
    publish(
        [
            _published(_size, "", PAPER, FROM_PAPER, top1=PRINTED[_size][3]),
            _published(_size, "_ours", PAPER.replace(relative=True, start="fit"), OURS),
            _published(_size, "_384", PAPER.replace(layers=0), NO_RATE, top1=PRINTED[_size][6], **LARGER),
        ]
    )
