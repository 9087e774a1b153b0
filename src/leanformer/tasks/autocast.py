"""Detectors under autocast: layers compute in half precision, places are computed in float32.

torchvision makes anchors and decodes boxes in the type of the maps and of the heads' answers. In bfloat16, which tells
numbers above 256 apart in steps of 2, boxes would be off by pixels; so maps and answers leave their modules as float32.
"""

from typing import Any

import torch
from torch import Tensor, nn

HALF = (torch.bfloat16, torch.float16)


def keep_places_exact(detector: Any) -> None:
    """Let a detector's maps and the answers of its heads be float32 wherever autocast made them half as wide.

    Args:
        detector: RetinaNet, Faster or Mask R-CNN of torchvision, changed itself.
    """
    heads = getattr(detector, "roi_heads", None)
    found = [detector.backbone, *([detector.head] if heads is None else [detector.rpn.head, heads.box_predictor])]
    if heads is not None and heads.has_mask():
        found.append(heads.mask_predictor)
    for module in found:
        module.register_forward_hook(_widen)


def _widen(module: nn.Module, inputs: Any, output: Any) -> Any:
    return widened(output)


def widened(found: Any) -> Any:
    """Tensors of half precision in nested lists and dicts as float32, under autocast alone.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     widened({"0": [torch.zeros(1, dtype=torch.bfloat16)]})
    {'0': [tensor([0.])]}
    """
    if isinstance(found, Tensor):
        half = found.dtype in HALF and torch.is_autocast_enabled(found.device.type)
        return found.float() if half else found
    if isinstance(found, dict):
        return {name: widened(each) for name, each in found.items()}  # torch.compile makes no other kind of dict
    return type(found)(widened(each) for each in found)
