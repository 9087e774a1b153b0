"""Products that int8 would spoil: found on real images before a file is quantised, and left in float.

One token with values far beyond the others' sets the range of a whole tensor, and too few of the 256 steps are left for
the rest. What counts is the error of the average token, not that of the tensor, which the large token dominates:

    error = mean over tokens of |x̂ Ŵ - x W| / |x W|       x̂ in 256 steps for the tensor, Ŵ in 255 for each column

M tokens, C channels in, D channels out.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ALLOWED = 0.1
PROBED = 8
"""Images that are looked at."""


def int8_error(x: Tensor, weight: Tensor) -> float:
    """The mean relative error of the rows of x (M, C) times weight (C, D) when both are rounded to int8.

    >>> x = torch.randn(64, 16)
    >>> int8_error(x, torch.eye(16)) < 0.02
    True
    >>> x[0, 0] = 1000.0
    >>> int8_error(x, torch.eye(16)) > 0.5
    True
    """
    low, high = x.min().clamp_max(0), x.max().clamp_min(0)
    step = ((high - low) / 255).clamp_min(1e-12)
    zero = (-low / step).round()
    rounded = (((x / step).round() + zero).clamp(0, 255) - zero) * step  # (M, C)
    column = (weight.abs().amax(0) / 127).clamp_min(1e-12)  # (D,)
    wanted = x @ weight  # (M, D)
    found = rounded @ ((weight / column).round() * column)
    return ((found - wanted).norm(dim=1) / wanted.norm(dim=1).clamp_min(1e-12)).mean().item()


def sensitive_products(path: Path, images: Tensor, allowed: float = ALLOWED) -> list[str]:
    """Names of an ONNX file's products with a weight whose int8 result is off by more than `allowed` on `images`.

    >>> sensitive_products(Path("lean.onnx"), images)  # doctest: +SKIP
    ['node_MatMul_493']
    """
    import onnx
    import onnxruntime

    file = onnx.load(str(path))
    weights = {each.name: each for each in file.graph.initializer}
    products = [n for n in file.graph.node if n.op_type in ("MatMul", "Gemm") and n.input[1] in weights]
    inputs = list(dict.fromkeys(node.input[0] for node in products))
    known = {output.name for output in file.graph.output}
    value: Any = onnx.helper.make_tensor_value_info
    file.graph.output.extend(value(name, onnx.TensorProto.FLOAT, None) for name in inputs if name not in known)
    session = onnxruntime.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    seen = session.run(inputs, {session.get_inputs()[0].name: images[:PROBED].numpy()})
    values = {name: torch.from_numpy(x).flatten(0, -2) for name, x in zip(inputs, seen)}  # (M, C) each
    return [
        node.name
        for node in products
        if int8_error(values[node.input[0]], _weight(node, weights[node.input[1]])) > allowed
    ]


def _weight(node: Any, weight: Any) -> Tensor:
    """The weight of a product as (C, D)."""
    import onnx

    found = torch.from_numpy(onnx.numpy_helper.to_array(weight).copy())
    turned = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return found.T if turned else found
