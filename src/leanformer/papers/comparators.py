"""Models of others that the papers print beside their own: counted where timm has them, quoted where it has not."""

import timm
from torch import nn

from ..backbones.registry import MODELS, build
from ..core import set_input
from .table import Convention, Row

PRINTED = "not in timm: quoted"


def compared(
    table: str,
    label: str,
    name: str = "",
    params: str = "",
    macs: str = "",
    differs: str = "",
    size: int = 224,
    counted: Convention | None = None,
    **published: str,
) -> Row:
    """A row for a model of others; without a name it is quoted and not counted.

    Args:
        table: the paper's table.
        label: what the paper calls the model.
        name: what timm, or we, call it; "" where neither has it.
        params: parameters in M as printed.
        macs: MACs in G as printed.
        differs: why our count is another one, where that is known.
        size: the image size.
        counted: how the table counts.
        **published: further figures, `top1` and `speed` by these names.

    >>> compared("1", "RSB-ResNet-18", "resnet18", "12", "1.8", top1="70.6").build().num_classes
    1000
    """
    shown = {{"top1": "top-1", "speed": "img/s"}.get(key, key): value for key, value in published.items()}
    if not name:
        return Row(table, label, None, params, macs, differs=differs or PRINTED, published=shown, counted=counted)
    return Row(
        table, label, _Other(name, size), params, macs, size=(3, size, size), differs=differs, published=shown,
        counted=counted,
    )  # fmt: skip


class _Other:
    """Builds a model of that name for one image size, where it has one."""

    def __init__(self, name: str, size: int):
        assert name in MODELS or timm.is_model(name), name
        self.name, self.size = name, size

    def __call__(self) -> nn.Module:
        return set_input(build(self.name), {})
