"""RePa's fused FFN laid out for speed: three products that do everything else in passing."""

from typing import Any

from torch import Tensor, nn

from ...core import H200, LocalRewrite
from ...layers.products import three_products
from .idle import FusedFFN


class RePaProducts(nn.Module):
    """RePa's three linears, the sum of the two paths taken inside the last product."""

    def __init__(self, ffn: Any):
        super().__init__()
        self.w, self.b, self.w_in, self.b_in, self.w_out = (nn.Parameter(w) for w in ffn.three_products())
        self.channels_first = ffn.fc1.weight.ndim == 4

    def forward(self, x: Tensor) -> Tensor:
        if self.channels_first:
            return self._rows(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self._rows(x)

    def three_products(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The weights W, b, W_in, b_in, W_out."""
        return self.w, self.b, self.w_in, self.b_in, self.w_out

    def _rows(self, x: Tensor) -> Tensor:
        return three_products(x, self.w, self.b, self.w_in, self.b_in, self.w_out)


def _gelu_repa(module: Any) -> bool:
    return type(module) is FusedFFN and module.three_products() is not None


REWRITES = (LocalRewrite("RePa by products", _gelu_repa, RePaProducts, measured_on=H200),)
