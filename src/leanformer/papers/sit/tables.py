"""SiT's Tables 2, 3 and 7: parameters and MACs of the paper and ours.

The paper counts students without the reverse modules, which exist in training only, but with the token-labelling head
that LV-ViT+ keeps and does not use. Teachers' figures are those of the published code's README.
"""

from functools import partial
from typing import Any

from torch import nn

from ...backbones import create
from ...core import apply
from ...methods import SiT
from ..table import Row

SPEED = "img/s"


def _student(size: str, distilled: bool = False, **options: Any) -> nn.Module:
    name = f"lvvit_plus_{size}"
    return apply(create(name, distilled=distilled), SiT.preset(name, **{"start": "random", **options}))


def _published(top1: str, speed: str = "") -> dict[str, str]:
    return {"top-1": top1, SPEED: speed}


TEACHERS = (  # size, name, parameters and MACs of the README, images/s and top-1 of Table 2
    ("tiny", "LV-ViT+-Ti", "15.7", "3.5", "1827", "82.1"),
    ("small", "LV-ViT+-S", "25.4", "5.5", "1360", "83.3"),
    ("medium", "LV-ViT+-M", "55.2", "11.9", "804", "84.2"),
    ("large", "LV-ViT+-L", "147", "56.1", "204", "85.7"),
)
STUDENTS = (  # size, name, parameters, MACs, images/s, top-1, then the same with a CNN as a second teacher
    ("tiny", "SiT-Ti", "15.9", "1.0", "5896", "80.1", ("16.2", "5833", "80.6")),
    ("xsmall", "SiT-XS", "25.6", "1.5", "4839", "81.1", ("26.0", "4798", "81.8")),
    ("small", "SiT-S", "25.6", "4.0", "1892", "83.2", ("26.0", "1873", "83.4")),
    ("medium", "SiT-M", "55.6", "8.1", "1197", "84.1", ("56.2", "1185", "84.3")),
    ("large", "SiT-L", "148.2", "34.4", "346", "85.6", None),
)

ROWS: list[Row] = [
    Row("2 teacher", name, partial(create, f"lvvit_plus_{size}"), params, macs, published=_published(top1, speed))
    for size, name, params, macs, speed, top1 in TEACHERS
]
for _size, _name, _params, _macs, _speed, _top1, _cnn in STUDENTS:
    ROWS.append(Row("2, 3", _name, partial(_student, _size), _params, _macs, published=_published(_top1, _speed)))
    if _cnn is not None:
        _build, _note = partial(_student, _size, distilled=True), _published(_cnn[2], _cnn[1])
        ROWS.append(Row("3", f"{_name} + CNN teacher", _build, _cnn[0], _macs, published=_note))
ROWS += [
    Row("7", "Ti, average pooling", partial(_student, "tiny", operator="pool", keep_ratio=0.25, stages=(1, 9, 4)),
        macs="1.0", published=_published("77.4"),
        differs="the paper does not say where; here after blocks 1 and 10"),
    Row("7", "Ti, convolution", partial(_student, "tiny", operator="conv", keep_ratio=0.25, stages=(1, 9, 4)),
        macs="1.0", published=_published("79.3"),
        differs="the paper does not say where; here after blocks 1 and 10"),
    Row("7", "Ti, token MLP", partial(_student, "tiny", operator="token-mlp"), macs="1.1",
        published=_published("79.3")),
    Row("7", "Ti, TSM", partial(_student, "tiny"), macs="1.0", published=_published("80.1")),
    Row("1", "DeiT-S", partial(create, "deit_small_patch16_224"), published=_published("79.8", "1637")),
    Row("1", "SiT on DeiT-S, 7+2+1+2", lambda: apply(create("deit_small_patch16_224"), SiT(start="random")),
        differs="the paper does not print stages, parameters or MACs"),
]  # fmt: skip
