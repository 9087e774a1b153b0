"""A backbone of your own that every method, command and exporter takes: a row of blocks and one registered name.

    images → patches (B, C, H, W) → blocks: x + conv(norm(x)), x + mlp(norm(x)) → norm → mean → classes

Each `lf.Block` says how wide it is, how its tensors lie (`NLC`, `NHWC` or `NCHW`) and in which stage it stands, which
is what methods ask. `register` makes the function's name one that `lf.create` knows, and `with_config` says which
images the model takes. Arguments of the function stand on the card of a checkpoint, so that `lf.load` builds the model
again: they are plain values.

    python examples/add_a_backbone.py

B batch, C channels, H x W the plane of patches.
"""

import torch
from torch import Tensor, nn

import leanformer as lf
from leanformer.backbones import register
from leanformer.backbones.generic import with_config


class TinyConv(nn.Module):
    """Depthwise convolutions as token mixers, an MLP of 1 x 1 convolutions behind each."""

    def __init__(self, dim: int, depth: int, num_classes: int):
        super().__init__()
        self.num_classes, self.num_features, self.in_chans = num_classes, dim, 3
        self.stem = nn.Conv2d(3, dim, 4, 4)
        self.blocks = nn.Sequential(*(self._block(dim) for _ in range(depth)))
        self.norm = nn.GroupNorm(1, dim)
        self.head = nn.Linear(dim, num_classes)

    def _block(self, dim: int) -> lf.Block:
        mlp = nn.Sequential(nn.Conv2d(dim, 4 * dim, 1), nn.GELU(), nn.Conv2d(4 * dim, dim, 1))
        mix = lf.Branch(nn.GroupNorm(1, dim), nn.Conv2d(dim, dim, 3, padding=1, groups=dim))
        return lf.Block(mix=mix, ffn=lf.Branch(nn.GroupNorm(1, dim), mlp), dim=dim, layout="NCHW")

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.blocks(self.stem(x)))  # (B, C, H, W)
        return self.head(x.mean(dim=(2, 3)))


@register
def tiny_conv(dim: int = 32, depth: int = 4, num_classes: int = 10, img_size: int = 32) -> nn.Module:
    """A small convolutional MetaFormer."""
    return with_config(TinyConv(dim, depth, num_classes), {"img_size": img_size})


def main() -> None:
    """Build it by its name, take its mixers out, fuse, and show what came out."""
    model = lf.apply(lf.create("tiny_conv"), lf.RIFormer(blocks=(0, 1)))
    fast = lf.fuse(model)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        drift = (fast(images) - model.eval()(images)).abs().max().item()
    print(lf.describe(fast))
    print(f"fused, the outputs differ by {drift:.1e}")


if __name__ == "__main__":
    main()
