"""The MetaFormer family's published figures: PoolFormer's tables and whole ablation, hybrids, the baselines' README."""

from collections.abc import Iterable
from functools import partial

from ...backbones import create
from ...backbones.metaformer_config import CONV_SIZES, SIZES
from ..comparators import compared
from ..table import Convention, PaperTables, Row, fvcore, trainable


def _v1(table: str, label: str, name: str, params: str, macs: str, top1: str) -> Row:
    return Row(table, label, partial(create, name), params, macs, published={"top-1": top1}, counted=fvcore)


POOLFORMER = {
    "s12": ("11.9", "1.8", "77.2"),
    "s24": ("21.4", "3.4", "80.3"),
    "s36": ("30.8", "5.0", "81.4"),
    "m36": ("56.1", "8.8", "82.1"),
    "m48": ("73.4", "11.6", "82.5"),
}
"""Size → parameters, MACs and top-1."""

ABLATION = [
    _v1("ablation of S12", label, name, params, macs, top1)
    for label, name, params, macs, top1 in (
        ("baseline: pooling 3", "poolformer_s12", "11.9", "1.8", "77.2"),
        ("identity mapping", "metaformer_id_s12", "11.9", "1.8", "74.3"),
        ("global random matrix", "poolformer_s12_random", "11.9", "3.3", "75.8"),
        ("depthwise convolution", "poolformer_s12_depthwise", "11.9", "1.8", "78.1"),
        ("pooling 5", "poolformer_s12_pool5", "11.9", "1.8", "77.2"),
        ("pooling 7", "poolformer_s12_pool7", "11.9", "1.8", "77.1"),
        ("pooling 9", "poolformer_s12_pool9", "11.9", "1.8", "76.8"),
        ("LayerNorm", "poolformer_s12_layernorm", "11.9", "1.8", "76.5"),
        ("BatchNorm", "poolformer_s12_batchnorm", "11.9", "1.8", "76.4"),
        ("no norm", "poolformer_s12_nonorm", "11.9", "1.8", "46.1"),
        ("ReLU", "poolformer_s12_relu", "11.9", "1.8", "76.4"),
        ("SiLU", "poolformer_s12_silu", "11.9", "1.8", "77.2"),
        ("StarReLU (not in the paper)", "poolformer_s12_starrelu", "", "", ""),
        ("no residual", "poolformer_s12_noresidual", "11.9", "1.8", "0.1"),
        ("no channel MLP", "poolformer_s12_nomlp", "2.5", "0.2", "5.7"),
        ("pool, pool, pool, attention", "metaformer_pppa_s12_224", "14.0", "1.9", "78.3"),
        ("pool, pool, attention, attention", "metaformer_ppaa_s12_224", "16.5", "2.5", "81.0"),
        ("pool, pool, pool, spatial FC", "metaformer_pppf_s12_224", "11.9", "1.8", "77.5"),
        ("pool, pool, spatial FC, spatial FC", "metaformer_ppff_s12_224", "12.2", "1.9", "77.9"),
    )
]

SIMPLE_PARAMS = "11.9 21.3 30.8 56.1 73.3"
SIMPLE = {
    "IdentityFormer": ("1.8 3.4 5.0 8.8 11.5", "74.6 78.2 79.3 80.0 80.4"),
    "RandFormer": ("1.9 3.5 5.2 9.0 11.9", "76.6 78.2 79.5 81.2 81.4"),
    "PoolFormerV2": ("1.8 3.4 5.0 8.8 11.5", "78.0 80.7 81.6 82.2 82.6"),
}
"""Family → MACs and top-1 of S12, S24, S36, M36 and M48."""
CONV = {
    ("CAFormer", ""): ("26 39 56 99", "4.1 8.0 13.2 23.2", "83.6 84.5 85.2 85.5", "84.1 85.8 86.6 87.4"),
    ("CAFormer", "_384"): ("26 39 56 99", "13.4 26.0 42.0 72.2", "85.0 85.7 86.2 86.4", "85.4 86.9 87.5 88.1"),
    ("ConvFormer", ""): ("27 40 57 100", "3.9 7.6 12.8 22.6", "83.0 84.1 84.5 84.8", "83.7 85.4 86.1 87.0"),
    ("ConvFormer", "_384"): ("27 40 57 100", "11.6 22.4 37.7 66.5", "84.4 85.4 85.6 85.7", "85.0 86.4 86.9 87.6"),
}
"""Family and suffix of the name → parameters, MACs, top-1, and top-1 after training on ImageNet-21k, of S18 S36 M36
and B36."""
TOP1: dict[str, str] = {
    **{f"poolformer_{size}": top1 for size, (_, _, top1) in POOLFORMER.items()},
    **{
        f"{family.lower()}_{size}": top1
        for family, (_, accuracies) in SIMPLE.items()
        for size, top1 in zip(SIZES, accuracies.split(), strict=True)
    },
    **{
        f"{family.lower()}_{size}{suffix}": top1
        for (family, suffix), columns in CONV.items()
        for size, top1 in zip(CONV_SIZES, columns[2].split(), strict=True)
    },
}
"""Name of a model → its published top-1, trained on ImageNet-1k alone."""


def _baseline(family: str, suffix: str, sizes: Iterable[str], counted: Convention | None, *columns: str) -> list[Row]:
    return [
        Row(
            "baselines", f"{family}-{size.upper()}{suffix.replace('_', ' ')}",
            partial(create, f"{family.lower()}_{size}{suffix}"), params, macs,
            published=dict(zip(("top-1", "top-1 (21k)"), accuracies)), counted=counted,
        )
        for size, params, macs, *accuracies in zip(sizes, *(column.split() for column in columns), strict=True)
    ]  # fmt: skip


def _activation(label: str, act: str, top1: str) -> Row:
    build = partial(create, f"{label.lower()}_s18", act=act, mixer_act=act)
    return Row("activation of S18", f"{label} with {act}", build, published={"top-1": top1})


ACTIVATION = [
    _activation(label, act, top1)
    for label, accuracies in (("ConvFormer", "83.0 82.1 82.6 82.7"), ("CAFormer", "83.6 82.9 83.4 83.4"))
    for act, top1 in zip(("star_relu", "relu", "squared_relu", "gelu"), accuracies.split(), strict=True)
]

EPOCHS = {300: "77.2", 400: "77.5", 500: "77.9", 1000: "78.4", 1500: "78.6", 2000: "78.8", 2500: "78.8", 3000: "78.8"}
"""Epochs → top-1 of PoolFormer-S12 in Table 7 of its paper."""
NO_HEAD = "307 M are with the head of pre-training"
NORMS_TOO = "counted with norms and products of maps, which we leave out"
OTHERS = {  # table → name in the paper, in timm, parameters, MACs, top-1, why our count differs
    "PoolFormer": (
        ("RSB-ResNet-18", "resnet18", "12", "1.8", "70.6", NORMS_TOO),
        ("RSB-ResNet-34", "resnet34", "22", "3.7", "75.5", NORMS_TOO),
        ("RSB-ResNet-50", "resnet50", "26", "4.1", "79.8", NORMS_TOO),
        ("RSB-ResNet-101", "resnet101", "45", "7.9", "81.3", NORMS_TOO),
        ("RSB-ResNet-152", "resnet152", "60", "11.6", "81.8", NORMS_TOO),
        ("ViT-B/16", "vit_base_patch16_224", "86", "17.6", "79.7", ""),
        ("ViT-L/16", "vit_large_patch16_224", "307", "63.6", "76.1", NO_HEAD),
        ("DeiT-S", "deit_small_patch16_224", "22", "4.6", "79.8", ""),
        ("DeiT-B", "deit_base_patch16_224", "86", "17.5", "81.8", ""),
        ("PVT-Tiny", "", "13", "1.9", "75.1", ""),
        ("PVT-Small", "", "25", "3.8", "79.8", ""),
        ("PVT-Medium", "", "44", "6.7", "81.2", ""),
        ("PVT-Large", "", "61", "9.8", "81.7", ""),
        ("MLP-Mixer-B/16", "mixer_b16_224", "59", "12.7", "76.4", NORMS_TOO),
        ("ResMLP-S12", "resmlp_12_224", "15", "3.0", "76.6", ""),
        ("ResMLP-S24", "resmlp_24_224", "30", "6.0", "79.4", ""),
        ("ResMLP-B24", "", "116", "23.0", "81.0", ""),
        ("Swin-Mixer-T/D24 256", "", "20", "4.0", "79.4", ""),
        ("Swin-Mixer-T/D6 256", "", "23", "4.0", "79.7", ""),
        ("Swin-Mixer-B/D24", "", "61", "10.4", "81.3", ""),
        ("gMLP-S", "gmlp_s16_224", "20", "4.5", "79.6", NORMS_TOO),
    ),
    "baselines": (
        ("Swin-B", "swin_base_patch4_window7_224", "88", "15.4", "83.5", ""),
        ("CSwin-B", "", "78", "15.0", "84.2", ""),
        ("MViTv2-B", "mvitv2_base", "52", "10.2", "84.4", NORMS_TOO),
        ("CoAtNet-2", "coatnet_2_224", "75", "15.7", "84.1", "timm's has other details"),
        ("MaxViT-S", "maxvit_small_tf_224", "69", "11.7", "84.5", ""),
        ("iFormer-L", "", "87", "14.0", "84.8", ""),
    ),
}
COMPARED = [
    compared(f"{table}, others", label, name, params, macs, differs, top1=top1)
    for table, rows in OTHERS.items()
    for label, name, params, macs, top1, differs in rows
]
"""The models of others on the slides' two ImageNet tables."""

TABLES = PaperTables(
    [
        *(_v1("PoolFormer", f"PoolFormer-{s.upper()}", f"poolformer_{s}", *POOLFORMER[s]) for s in SIZES),
        *ABLATION,
        *(row for name, both in SIMPLE.items() for row in _baseline(name, "", SIZES, trainable, SIMPLE_PARAMS, *both)),
        *(row for named, columns in CONV.items() for row in _baseline(*named, CONV_SIZES, None, *columns)),
        *ACTIVATION,
        *(
            _v1("epochs of S12", f"PoolFormer-S12, {n} epochs", "poolformer_s12", "", "", top1)
            for n, top1 in EPOCHS.items()
        ),
        *COMPARED,
    ],
    """The MetaFormer family: PoolFormer's tables and its whole ablation, the hybrid models, and the baselines' README.

PoolFormer's paper counts MACs with fvcore, which adds five operations for each element that enters a GroupNorm and
nothing for a norm written out by hand; its parameters are cut, not rounded, after the first decimal. The baselines
count as we do. Neither counts frozen random matrices as parameters.""",
)
