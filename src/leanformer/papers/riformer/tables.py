"""RIFormer, Table 6: parameters and MACs at 224 and 384 pixels, of the form that is deployed.

The paper's MACs are those of fvcore, which adds five operations for each element that a norm touches. At 384 pixels
that is the difference between 5.3 and 5.4 G, so it is counted here as well.
"""

from functools import partial

import torch
from timm.layers import GroupNorm1
from torch import nn

from ...backbones import create
from ...core import fold, input_of
from ...measure import Count
from ..table import Row

NORM_OPERATIONS = 5
PRINTED = {
    "s12": ("12", "1.8", "4899.80", "76.9", "5.4", "1586.51", "78.3"),
    "s24": ("21", "3.4", "2530.48", "80.3", "10.0", "819.40", "81.4"),
    "s36": ("31", "5.0", "1699.94", "81.3", "14.7", "552.07", "82.2"),
    "m36": ("56", "8.8", "1185.33", "82.6", "25.9", "403.15", "83.4"),
    "m48": ("73", "11.6", "897.05", "82.8", "34.1", "304.43", "83.7"),
}
"""Size → parameters; MACs, images/s and top-1 at 224; the same at 384."""
POOLFORMER = {
    "s12": ("4160.18", "77.2"),
    "s24": ("2140.20", "80.3"),
    "s36": ("1440.37", "81.4"),
    "m36": ("1009.45", "82.1"),
    "m48": ("761.93", "82.5"),
}
"""Size → images/s and top-1 at 224; parameters and MACs are printed as RIFormer's."""


def deployed(name: str) -> nn.Module:
    """The model as it runs: no affine, no token mixer.

    >>> sum(p.numel() for p in deployed("riformer_s12").parameters())
    11911848
    """
    return fold(create(name))


def with_norms(ours: Count, model: nn.Module) -> tuple[float, float]:
    """Parameters in M and MACs in G with the norms' operations added, as fvcore counts."""
    elements = 0

    def add(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        nonlocal elements
        elements += output.numel()

    handles = [m.register_forward_hook(add) for m in model.modules() if isinstance(m, GroupNorm1)]
    with torch.no_grad():
        model.eval()(torch.empty(1, *input_of(model)["input_size"], device="meta"))
    for handle in handles:
        handle.remove()
    return ours.parameters / 1e6, (ours.macs + NORM_OPERATIONS * elements) / 1e9


def _row(name: str, title: str, params: str, macs: str, speed: str, top1: str) -> Row:
    build = partial(deployed if name.startswith("riformer") else create, name)
    published = {"img/s": speed, "top-1": top1}
    return Row("6", title, build, params, macs, published=published, counted=with_norms)


ROWS = [
    *(
        _row(f"poolformer_{s}", f"PoolFormer-{s.upper()} 224", *PRINTED[s][:2], *figures)
        for s, figures in POOLFORMER.items()
    ),
    *(_row(f"riformer_{s}", f"RIFormer-{s.upper()} 224", *figures[:4]) for s, figures in PRINTED.items()),
    *(
        _row(f"riformer_{s}_384", f"RIFormer-{s.upper()} 384", figures[0], *figures[4:])
        for s, figures in PRINTED.items()
    ),
]
