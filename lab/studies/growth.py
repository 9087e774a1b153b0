"""Growing a trained ViT to twice its width without changing what it computes: a larger teacher, half trained already.

    x' = [x | x]             twice the channels, twice the heads; LayerNorm sees the same mean and variance
    W' = [W/2 + E | W/2 − E]     on doubled inputs this is W x, whatever E is

so E breaks the symmetry of the two halves at no cost (Net2Net's widening leaves it to noise that harms). With E of half
the deviation of W, W' would have the spread of weights trained at the new width; but E also amplifies whatever comes to
differ between the halves, and so much of it costs accuracy in a short training. Rows of W' are doubled for the outputs;
those of queries, keys and values each for themselves. C channels.
"""

import torch
from torch import Tensor, nn

from leanformer.backbones import create
from leanformer.core import blocks_of, card_of

NOISE = 0.1
"""The deviation of E over that of W."""


def double_outputs(tensor: Tensor, dim: int = 0, parts: int = 1) -> Tensor:
    """Each of `parts` equal parts along `dim`, twice.

    >>> double_outputs(torch.tensor([1, 2, 3, 4]), parts=2)
    tensor([1, 2, 1, 2, 3, 4, 3, 4])
    """
    return torch.cat([part for part in tensor.chunk(parts, dim) for _ in range(2)], dim)


def double_inputs(weight: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """A weight (out, C) for inputs that are doubled, (out, 2C).

    >>> double_inputs(torch.tensor([[2.0]]), 0.0, torch.Generator())
    tensor([[1., 1.]])
    """
    drawn = torch.randn(weight.shape, generator=generator, dtype=weight.dtype).to(weight.device)
    difference = noise * drawn * weight.std(correction=0)  # (out, C)
    return torch.cat([weight / 2 + difference, weight / 2 - difference], dim=1)


def widen(tensors: dict[str, Tensor], shapes: dict[str, torch.Size], noise: float, seed: int) -> dict[str, Tensor]:
    """A ViT's state dict for shapes of twice the width; what has its shape already stays."""
    generator = torch.Generator().manual_seed(seed)
    wide = {}
    for key, tensor in tensors.items():
        parts = 3 if ".qkv." in key else 1
        for dim in range(tensor.ndim):
            if shapes[key][dim] == tensor.shape[dim]:
                continue
            is_input = dim == 1 and tensor.ndim == 2
            tensor = double_inputs(tensor, noise, generator) if is_input else double_outputs(tensor, dim, parts)
        wide[key] = tensor
    return wide


def grow(model: nn.Module, name: str | None = None, noise: float = NOISE, seed: int = 0) -> nn.Module:
    """A ViT of twice the width and heads that gives the same answers.

    Args:
        model: a ViT without methods.
        name: the model of the new size, if it has a name.
        noise: the deviation of E over that of W.
        seed: of E.

    >>> import leanformer as lf
    >>> small = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=5)
    >>> grow(small).embed_dim
    64
    """
    card, blocks = card_of(model), list(blocks_of(model).values())
    heads = getattr(getattr(blocks[0].mix, "fn", None), "num_heads", None)
    if card.methods or heads is None or not hasattr(model, "embed_dim"):
        raise ValueError(
            f"only a ViT without methods can grow, not a {type(model).__name__} with {len(card.methods)} methods"
        )
    sizes = {"embed_dim": 2 * blocks[0].dim, "num_heads": 2 * heads, "num_classes": model.num_classes}
    wide = create(name or card.backbone, **{**card.arguments, **sizes})
    shapes = {key: value.shape for key, value in wide.state_dict().items()}
    reference = next(model.parameters())
    wide = wide.to(device=reference.device, dtype=reference.dtype)
    wide.load_state_dict(widen(model.state_dict(), shapes, noise, seed))
    return wide.train(model.training)
