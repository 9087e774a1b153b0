"""The models of others in SiT's Tables 1 and 3: methods that prune ViTs, CNNs and ViTs of its accuracy."""

from .comparators import compared
from .table import Row

PRUNED = (  # method, images/s on a V100, top-1: all of DeiT-S
    ("S2ViTE", "2117", "79.2"), ("PS-ViT", "2351", "79.4"), ("IA-RED2", "2369", "79.1"), ("DynamicViT", "2575", "79.3"),
    ("Evo-ViT", "2629", "79.4"), ("EViT", "2783", "79.1"),
)  # fmt: skip
NO_MACS = "the paper prints no size"
ELSE = "the paper's count has more in it than products of weights"
MODELS = (  # name in the paper, in timm, image size, parameters, MACs, images/s, top-1, why our count differs
    ("EfficientNet-B1", "efficientnet_b1", 240, "7.8", "0.7", "2559", "79.1", ""),
    ("EfficientNet-B2", "efficientnet_b2", 260, "9.1", "1.1", "1808", "80.1", ELSE),
    ("DeiT-T, distilled", "deit_tiny_distilled_patch16_224", 224, "5.9", "1.3", "3346", "74.5", ""),
    ("LeViT-256", "levit_256", 224, "18.9", "1.1", "5802", "80.1", ""),
    ("EfficientNet-B3", "efficientnet_b3", 300, "12.2", "1.9", "1062", "81.6", ELSE),
    ("Swin-T", "swin_tiny_patch4_window7_224", 224, "28.3", "4.5", "1023", "81.3", ""),
    ("DeiT-S, distilled", "deit_small_distilled_patch16_224", 224, "22.4", "4.6", "1598", "81.2", ""),
    ("LeViT-384", "levit_384", 224, "39.1", "2.4", "3876", "81.6", ""),
    ("EfficientNet-B4", "efficientnet_b4", 380, "19.3", "4.6", "545", "82.9", ELSE),
    ("Swin-B", "swin_base_patch4_window7_224", 224, "87.8", "15.5", "474", "83.3", ""),
    ("DeiT-B, distilled", "deit_base_distilled_patch16_224", 224, "87.3", "17.7", "718", "83.4", ""),
    ("LV-ViT-S", "lvvit_s", 224, "26.2", "6.6", "1270", "83.3", ""),
    ("EfficientNet-B6", "efficientnet_b6", 528, "43.0", "19.9", "153", "84.0", ELSE),
    ("EfficientNetV2-S", "tf_efficientnetv2_s", 384, "21.5", "8.5", "742", "83.9", ELSE),
    ("CaiT-S36", "", 224, "68.2", "13.9", "233", "83.9", ""),
    ("LV-ViT-M", "lvvit_m", 224, "55.8", "12.7", "768", "84.1", ""),
    ("EfficientNetV2-M", "tf_efficientnetv2_m", 480, "54.1", "25.0", "271", "85.1", ELSE),
    ("NFNet-F1", "dm_nfnet_f1", 320, "132.6", "36.0", "128", "84.7", ELSE),
    ("CaiT-M36", "", 224, "270.1", "53.4", "130", "85.1", ""),
    ("LV-ViT-L", "lvvit_l", 288, "150.1", "58.8", "208", "85.3", ""),
)


def rows() -> list[Row]:
    """One row for each of them.

    >>> rows()[0].model
    'S2ViTE on DeiT-S'
    """
    pruned = [
        compared("1, others", f"{name} on DeiT-S", differs=NO_MACS, speed=speed, top1=top1)
        for name, speed, top1 in PRUNED
    ]
    return pruned + [
        compared("3, others", label, name, params, macs, differs, size, top1=top1, speed=speed)
        for label, name, size, params, macs, speed, top1, differs in MODELS
    ]
