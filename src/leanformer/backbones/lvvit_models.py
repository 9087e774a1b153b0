"""The names of the LV-ViT family: LV-ViT as released (Jiang et al., 2021), the teachers LV-ViT+, and any other."""

from typing import Any

from torch import nn

from .generic import with_config
from .lvvit import LVViT
from .registry import register, register_named


@register
def lvvit(**arguments: Any) -> nn.Module:
    """An LV-ViT of any dimensions; the defaults are those of LV-ViT-S."""
    crop = 1.0 if arguments.get("embed_dim", 384) >= 512 else 0.9
    return with_config(LVViT(**arguments), arguments, crop_pct=crop)


_T = {"embed_dim": 240, "depth": 12, "num_heads": 4, "skip_lam": 1.0}
_S = {"embed_dim": 384, "depth": 16, "num_heads": 6, "skip_lam": 2.0}
_M = {"embed_dim": 512, "depth": 20, "num_heads": 8, "skip_lam": 2.0}
_L = {"embed_dim": 768, "depth": 24, "num_heads": 12, "skip_lam": 3.0}
_PLUS = {"stem": "4c", "aux": "unused"}

CONFIGS: dict[str, dict[str, Any]] = {
    "lvvit_t": _T,
    "lvvit_s": _S,
    "lvvit_s_384": {**_S, "img_size": 384},
    "lvvit_m": _M,
    "lvvit_m_384": {**_M, "img_size": 384},
    "lvvit_l": {**_L, "img_size": 288, "stem": "4_2_128"},
    "lvvit_l_448": {**_L, "img_size": 448, "stem": "4_2_128"},
    "lvvit_plus_tiny": {**_PLUS, "embed_dim": 320, "depth": 14, "num_heads": 5, "skip_lam": 2.0},
    "lvvit_plus_xsmall": {**_PLUS, **_S},
    "lvvit_plus_small": {**_PLUS, **_S},
    "lvvit_plus_medium": {**_PLUS, **_M},
    "lvvit_plus_large": {**_PLUS, **_L, "stem": "6c", "img_size": 288},
}

register_named(lvvit, CONFIGS)
