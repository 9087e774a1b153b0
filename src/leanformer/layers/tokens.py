"""Fewer tokens: keep the highest-scored ones, fuse the rest, and remember which patches they were.

    [prefix | P tokens] → top K by score → [prefix | K tokens, highest score first | 1 fused]

B batch, P tokens that may go, K kept, C channels. Prefix tokens (class, distillation, registers) always stay.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import blocks_of, taps

FUSED = -1
"""Stands for a fused token where indices of patches are given."""


class Choose(nn.Module):
    """The indices of the `keep` highest scores, highest first: a module, so that hooks can see what was chosen.

    >>> Choose()(torch.tensor([[0.1, 0.7, 0.2]]), 2)
    tensor([[1, 2]])
    """

    def forward(self, score: Tensor, keep: int) -> Tensor:
        return score.topk(keep, dim=1).indices  # (B, K)


def reorganise(x: Tensor, score: Tensor, chosen: Tensor, fuse: bool = True) -> Tensor:
    """Keep the chosen tokens; sum the others, weighted by their raw scores, into one at the end.

    x (B, prefix + P, C) and score (B, P), of which `chosen` (B, K) stay; (B, prefix + K + 1, C) comes out.

    >>> reorganise(torch.ones(1, 4, 2), torch.tensor([[0.5, 0.2, 0.1]]), torch.tensor([[0]]))[0, :, 0]
    tensor([1.0000, 1.0000, 0.3000])
    """
    prefix = x.shape[1] - score.shape[1]
    tokens = x[:, prefix:]  # (B, P, C)
    kept = tokens.gather(1, chosen[..., None].expand(-1, -1, x.shape[2]))  # (B, K, C)
    if not fuse:
        return torch.cat([x[:, :prefix], kept], dim=1)  # (B, prefix + K, C)
    rest = score.scatter(1, chosen, 0.0).to(x.dtype)  # (B, P), zero where kept
    return torch.cat([x[:, :prefix], kept, rest[:, None] @ tokens], dim=1)  # (B, prefix + K + 1, C)


def choices(model: nn.Module) -> dict[str, nn.Module]:
    """Path of each `Choose` in a model → the slot module around it, in the order in which they run.

    >>> import leanformer as lf
    >>> list(choices(lf.apply(lf.create("deit_tiny_patch16_224"), lf.EViT())))
    ['blocks.3.mix.choose', 'blocks.6.mix.choose', 'blocks.9.mix.choose']
    """
    return {
        f"{path}.{slot}.choose": getattr(block, slot)
        for path, block in blocks_of(model).items()
        for slot in block.slots
        if isinstance(getattr(getattr(block, slot), "choose", None), Choose)
    }


def surviving(model: nn.Module, chosen: dict[str, Tensor]) -> list[Tensor]:
    """Which patches of the image the tokens behind each location stand for.

    `chosen` holds what each `Choose` gave in one forward pass, by path, as `core.taps(model, choices(model))` leaves
    it. The answer has for each location the patches (B, K), numbered row by row over the plane of patches, in the
    order of the tokens behind it, and `FUSED` where a token stands for no single patch.

    >>> import leanformer as lf
    >>> model = lf.apply(lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=2), lf.EViT())
    >>> with taps(model, choices(model)) as chosen:
    ...     _ = model(torch.zeros(2, 3, 32, 32))
    >>> [patches.shape[1] for patches in surviving(model, chosen)]
    [13, 11, 9]
    """
    _refuse_other_reducers(model)
    grid = next(iter(blocks_of(model).values())).grid
    assert grid is not None
    some = next(iter(chosen.values()), torch.zeros(1, 1))
    patches = torch.arange(grid.size[0] * grid.size[1], device=some.device).expand(len(some), -1)  # (B, P)
    history = []
    for path, slot in choices(model).items():
        if path in chosen:  # its indices are relative to the tokens that arrived there
            patches = patches.gather(1, chosen[path])  # (B, K)
            patches = F.pad(patches, (0, int(slot.fuse_tokens)), value=FUSED)  # type: ignore[arg-type]
        history.append(patches)
    return history


@torch.no_grad()
def kept_patches(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Which patches of these images survive each location of a model: see `surviving`.

    >>> import leanformer as lf
    >>> model = lf.apply(lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=2), lf.EViT())
    >>> (kept_patches(model, torch.zeros(2, 3, 32, 32))[0][:, -1] == FUSED).all()
    tensor(True)
    """
    paths = choices(model)
    if not paths:
        raise ValueError("no method in this model drops patches; apply lf.EViT first")
    with taps(model, paths) as chosen:
        model(images)
    return [patches.expand(len(images), -1) for patches in surviving(model, chosen)]


def _refuse_other_reducers(model: nn.Module) -> None:
    """A module that mixes patches into new tokens leaves nothing that could be traced back."""
    for path, block in blocks_of(model).items():
        for slot in block.slots:
            module = getattr(block, slot)
            if getattr(module, "leaves_grid", False) and not isinstance(getattr(module, "choose", None), Choose):
                raise ValueError(f"{path}.{slot} ({type(module).__name__}) mixes patches, so none can be traced")
