"""Token slimming laid out for speed: GELU in the epilogue of a product; softmax, mixtures and prefix in one pass."""

from typing import Any

from torch import Tensor, nn

from ...core import H200, LocalRewrite
from ...layers.products import linear_gelu
from .kernels.slim import slim_in_one_pass
from .slimming import FusedSlimming, Slimming


class OnePassSlimming(Slimming):
    """Fused token slimming whose weights are never written: two products and one pass behind the bare norm.

    >>> import torch
    >>> from leanformer.methods.sit.slimming import TokenSlimming
    >>> fused, x = TokenSlimming(8, tokens=4, prefix=1).fused(), torch.randn(2, 17, 8)
    >>> torch.allclose(OnePassSlimming(fused)(x), fused(x), atol=1e-5)
    True
    """

    def __init__(self, fused: FusedSlimming):
        super().__init__(fused.fc2.out_features, fused.prefix, fused.axis, fused.prior)
        self.norm, self.fc1, self.fc2 = fused.norm, fused.fc1, fused.fc2
        if self.prior is not None:  # in memory as the logits are, so that the kernel reads both alike
            self.prior.bias.data = self.prior.bias.data.mT.contiguous().mT

    def logits(self, patches: Tensor) -> Tensor:
        return self.fc2(linear_gelu(self.norm(patches), self.fc1.weight, self.fc1.bias))  # (B, N, M)

    def forward(self, x: Tensor) -> Tensor:
        patches = x[:, self.prefix :]  # (B, N, C)
        prior = None if self.prior is None else self.prior(patches.shape[1])  # (M, N)
        return slim_in_one_pass(x, self.logits(patches), prior, self.prefix)  # (B, prefix + M, C)


def slims_in_one_pass(module: Any) -> bool:
    """Whether a module is a fused slimming whose new tokens are weighted means of the old ones.

    >>> slims_in_one_pass(nn.Identity())
    False
    """
    if type(module) is not FusedSlimming or module.axis != "inputs":
        return False
    plain = type(module.fc1) is nn.Linear and type(module.fc2) is nn.Linear
    return plain and module.fc1.bias is not None


REWRITES = (LocalRewrite("tokens slimmed in one pass", slims_in_one_pass, OnePassSlimming, measured_on=H200),)
