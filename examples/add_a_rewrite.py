"""A step of `lf.optimize` of your own: a layer scale multiplied into the linear before it, so that it costs nothing.

    x + γ · (W h + b)    =    x + (γ W) h + γ b

A `LocalRewrite` finds modules (`fits`) and builds an equal, faster one for each (`build`). It reaches `lf.optimize` in
one of two ways: a method brings rewrites of its own modules in `rewrites()`; one that no method owns stands in GENERAL
in leanformer/speed/rewrite.py. Either way `lf.optimize` times it on the device and keeps it only where it pays.

    python examples/add_a_rewrite.py
"""

import copy
from typing import Any

import torch
from timm.layers import LayerScale
from torch import nn

import leanformer as lf
from leanformer.core import LocalRewrite

LAST = ("proj", "fc2")
"""What attention and MLPs call their last linear."""


def last_linear(fn: nn.Module) -> Any:
    """The linear whose output a branch scales, or None where it has another form."""
    found = [getattr(fn, name) for name in LAST if isinstance(getattr(fn, name, None), nn.Linear)]
    return found[0] if found else None


def scaled(module: Any) -> bool:
    """Whether a module is a branch with a layer scale behind a linear."""
    return type(module) is lf.Branch and type(module.scale) is LayerScale and last_linear(module.fn) is not None


def without_scale(branch: Any) -> nn.Module:
    """The same branch, its scale multiplied into the linear."""
    parts = copy.deepcopy(branch.parts())
    linear, gamma = last_linear(parts["fn"]), branch.scale.gamma.data
    linear.weight.data *= gamma[:, None]
    if linear.bias is not None:
        linear.bias.data *= gamma
    return lf.Branch(**{**parts, "scale": None})


SCALE_IN_PRODUCT = LocalRewrite("scale in product", scaled, without_scale)


def main() -> None:
    """Rewrite a ViT with layer scales, and show that it answers as before."""
    model = lf.create("vit", init_values=0.1, img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2).eval()
    fast = SCALE_IN_PRODUCT.apply(model)
    assert fast is not None
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        drift = (fast(images) - model(images)).abs().max().item()
    print(f"rewritten: {', '.join(SCALE_IN_PRODUCT.places(model))}")
    print(f"rewritten, the outputs differ by {drift:.1e}")


if __name__ == "__main__":
    main()
