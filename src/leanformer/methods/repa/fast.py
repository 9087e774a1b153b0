"""RePa's fused FFN laid out for speed: three products that do everything else in passing."""

from typing import Any

from torch import Tensor, nn

from ...core import LocalRewrite
from .idle import FusedFFN
from .products import repa_ffn


class RePaProducts(nn.Module):
    """RePa's three linears, the sum of the two paths taken inside the last product."""

    def __init__(self, ffn: Any):
        super().__init__()
        weights = (ffn.fc1.weight, ffn.fc1.bias, ffn.fc2.weight, ffn.fc2.bias, ffn.fc3.weight)
        self.w, self.b, self.w_in, self.b_in, self.w_out = (
            nn.Parameter(w.detach().flatten(1) if w.ndim > 1 else w) for w in weights
        )
        self.channels_first = ffn.fc1.weight.ndim == 4

    def forward(self, x: Tensor) -> Tensor:
        if self.channels_first:
            return self._rows(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self._rows(x)

    def _rows(self, x: Tensor) -> Tensor:
        return repa_ffn(x, self.w, self.b, self.w_in, self.b_in, self.w_out)


def _gelu_repa(module: Any) -> bool:
    if type(module) is not FusedFFN or module.fc2 is None or type(module.act) is not nn.GELU:
        return False
    plain = all(type(fc) in (nn.Linear, nn.Conv2d) for fc in (module.fc1, module.fc2, module.fc3))
    return plain and module.norm is None and module.skip is None and module.fc1.bias is not None


REWRITES = (LocalRewrite("RePa by products", _gelu_repa, RePaProducts),)
