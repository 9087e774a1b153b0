"""The ViT-Ti of the studies on photographs, its photographs, and how answers are compared with labels and teacher."""

from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import leanformer as lf
from leanformer.core import input_of
from leanformer.data import Arrays, EvaluationView, open_data

INPUT = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "crop_pct": 1.0}
"""How the ViT-Ti of AugReg normalises; the photographs are cropped already."""


def teacher_of(checkpoint: Path) -> nn.Module:
    """The trained ViT-Ti.

    Args:
        checkpoint: its weights, under timm's keys.
    """
    return lf.create("vit_tiny_patch16_224", checkpoint, pretrained_cfg_overlay=INPUT).eval()


def timms_vit(checkpoint: Path) -> nn.Module:
    """The same model as timm has it.

    Args:
        checkpoint: its weights, under timm's keys.
    """
    model = timm.create_model("vit_tiny_patch16_224", pretrained_cfg_overlay=INPUT).eval()
    model.load_state_dict({key: value.float() for key, value in load_file(checkpoint).items()})
    return model


def labelled(pack: str) -> Arrays:
    """All photographs of a pack with their labels."""
    found = open_data(pack, "val")
    assert isinstance(found, Arrays), "the photographs are a pack"
    return found


def photographs(judge: str) -> dict[str, Arrays]:
    """The labelled photographs in two halves, by a fixed seed: one to choose recipes by, one to judge."""
    found = labelled(judge)
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))
    middle = len(order) // 2
    return {
        name: Arrays(found.images[part], found.labels[part], found.classes, name=f"{found.name}, {name}")
        for name, part in (("choose", order[:middle]), ("judge", order[middle:]))
    }


def unlabelled(data: str, images: int | None) -> Arrays:
    """Photographs without labels; a .npy file of uint8 (n, 3, H, W) is read as it is, without decoding."""
    if data.endswith(".npy"):
        pixels = torch.from_numpy(np.load(data, mmap_mode="r")[:images])
        return Arrays.unlabelled(pixels)
    found = open_data(data, "train")
    assert isinstance(found, Arrays), "the photographs are a pack"
    return Arrays.unlabelled(found.images[:images])


@torch.inference_mode()
def answers_of(model: nn.Module, data: Arrays, rounded: bool = False) -> Tensor:
    """The model's logits for all images of a data set, seen at its own size.

    Args:
        model: on the device where it is to run.
        data: the images.
        rounded: compute in bf16 on a CPU too; a GPU always does.
    """
    like = next(model.parameters())
    view = EvaluationView(input_of(model))
    batch = 256 if like.device.type == "cuda" else 16
    parts = data.images.split(batch)
    with torch.autocast(like.device.type, torch.bfloat16, enabled=rounded or like.device.type == "cuda"):
        return torch.cat([model(view(part.to(like.device))).float() for part in parts]).cpu()


def compared(logits: Tensor, data: Arrays, teacher: Tensor, part: str) -> dict[str, Any]:
    """Top-1, agreement with the teacher, divergence, and which images were right, as hexadecimal digits."""
    right = logits.argmax(1) == data.labels
    agree = (logits.argmax(1) == teacher.argmax(1)).float().mean().item()
    loss = torch.nn.functional.kl_div(
        logits.log_softmax(1), teacher.log_softmax(1), log_target=True, reduction="batchmean"
    ).item()
    bits = np.packbits(right.numpy()).tobytes().hex()
    return {f"{part}_top1": 100 * right.float().mean().item(), f"{part}_agreement": 100 * agree, f"{part}_loss": loss,
            f"{part}_right": bits}  # fmt: skip
