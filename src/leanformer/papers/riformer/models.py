"""RIFormer S12 to M48 at 224 and 384 pixels: PoolFormers whose token mixers are affines, ready to train or to fuse.

`lf.create("riformer_s12")` is `lf.apply(lf.create("poolformer_s12"), lf.RIFormer())` and has the same card.
"""

from typing import Any

from torch import nn

from ...backbones.build import create
from ...backbones.registry import register
from ...core import apply, method_from

SIZES = ("s12", "s24", "s36", "m36", "m48")


def _register(name: str, backbone: str, img_size: int) -> None:
    def entry(**arguments: Any) -> nn.Module:
        return apply(create(backbone, **{"img_size": img_size, **arguments}), method_from("riformer", {}))

    entry.__name__ = entry.__qualname__ = name
    entry.__doc__ = f"{backbone} at {img_size} pixels with an affine for each token mixer."
    register(entry)


for _size in SIZES:
    _register(f"riformer_{_size}", f"poolformer_{_size}", 224)
    _register(f"riformer_{_size}_384", f"poolformer_{_size}", 384)
