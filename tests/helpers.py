"""Functions that tests share: `from helpers import randomise`."""

import io
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import leanformer as lf

SHARED = Path(__file__).parents[2] / "shared"
OWN = Path(__file__).parent / "parity" / "data"
"""Three of the official answers, so that a bare checkout is compared with each kind of method too."""
ANSWERS = (
    "evit_small_fuse", "lvvit_small_dense", "metaformer_caformer_small", "metaformer_convformer_small",
    "metaformer_identityformer_small", "metaformer_poolformer_small", "metaformer_poolformerv2_small",
    "metaformer_ppaa_small", "metaformer_randformer_small", "repaformer_repamlpmixer_small",
    "repaformer_repapoolformer_small", "repaformer_repaswin_small_075", "repaformer_repavit_small_075",
    "riformer_small", "sit_small_4c",
)  # fmt: skip


def parity_files(pattern: str) -> list[Any]:
    """The official answers whose file names match, from `shared/parity` or from here; the others are to be skipped."""
    names = {path.name for path in (SHARED / "parity").glob(pattern)} | {f"{name}.pt" for name in ANSWERS}
    found = []
    for name in sorted(name for name in names if fnmatch(name, pattern)):
        path = next((folder / name for folder in (SHARED / "parity", OWN) if (folder / name).is_file()), None)
        skip = pytest.mark.skip(reason=f"the official answer {name} is not beside this checkout")
        found.append(path or pytest.param(Path(name), marks=skip, id=Path(name).stem))
    return found


def randomise(model: nn.Module, seed: int = 0, scale: float = 0.1) -> nn.Module:
    """Move every parameter and every batch-norm statistic away from its start, so that nothing hides in zeros."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        parameter.data.add_(noise.to(parameter) * scale)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.add_(torch.randn(buffer.shape, generator=generator).to(buffer) * scale)
        if name.endswith("running_var"):
            buffer.mul_(torch.rand(buffer.shape, generator=generator).to(buffer) + 0.5)
    return model


def tiny(seed: int = 0, size: int = 16) -> nn.Module:
    """A ViT for four classes that trains in milliseconds."""
    torch.manual_seed(seed)
    return lf.create("vit", img_size=size, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=4)


def arrays(images: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of noise, 20 x 20, of four classes."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (images, 3, 20, 20), generator=generator).byte(), torch.arange(images) % 4


def picture_folder(root: Path, images: int = 32) -> Path:
    """The same images as files, in one folder a class below train and val."""
    pixels, labels = arrays(images)
    for split in ("train", "val"):
        for index, (image, label) in enumerate(zip(pixels, labels)):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{index}.png")
    return root


def colour_pack(folder: Path) -> str:
    """Two classes of plain colours, 32 x 32, as the two packs of a data set; what `--data` takes for it."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 32), ("val", 16)):
        files, labels = [], np.arange(count) % 2
        for label in labels:
            pixels = rng.integers(0, 60, (32, 32, 3), dtype=np.uint8)
            pixels[..., label] += 150
            buffer = io.BytesIO()
            Image.fromarray(pixels).save(buffer, "JPEG")
            files.append(np.frombuffer(buffer.getvalue(), np.uint8))
        np.savez(
            folder / f"colours_{split}.npz", jpeg=np.concatenate(files), offsets=np.cumsum([0, *map(len, files)]),
            labels=labels.astype(np.int16), classes=np.array(["a", "b"]),
        )  # fmt: skip
    return f"pack:{folder / 'colours'}"
