"""What other libraries make of the same backbone at the same MACs. They are imported where the user has them.

| peer | package | what it does to a ViT |
| --- | --- | --- |
| torch-pruning | torch-pruning | removes channels of embedding, heads and MLP, by their size or by photographs |
| tome | tome (facebookresearch/ToMe) | merges r tokens in every block |
| pruna | pruna, transformers | the same, on a ViT of transformers with the backbone's dims |
| torchao | torchao | fp8 products, rounded row by row; beside ours, of the same lean model |

A peer's strength is set so that its MACs come as near to the wanted ones as its steps allow. Nothing is trained: speed
does not depend on the weights.
"""

import copy
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from leanformer.core import input_of
from leanformer.measure import count

ROUND_TO = 8
"""Channels that are left are a multiple of this, as matrix units want them."""
TRIES = 6
NEAR = 0.01
"""MACs within this share of the wanted ones are near enough."""


def installed(peer: str) -> bool:
    """Whether the packages of a peer are there.

    Args:
        peer: torch-pruning, tome, pruna or torchao.

    >>> installed("torch-pruning") in (True, False)
    True
    """
    if peer not in PACKAGES:
        raise ValueError(f"unknown peer '{peer}'; known: {', '.join(PACKAGES)}")
    return all(importlib.util.find_spec(package) is not None for package in PACKAGES[peer])


def make_peer(peer: str, backbone: nn.Module, macs: int) -> nn.Module:
    """What a peer makes of a ViT of timm's at about these MACs.

    Args:
        peer: torch-pruning, tome or pruna; it must be installed.
        backbone: the ViT, left as it was.
        macs: of one image.
    """
    return PEERS[peer](backbone, macs)


def pruned(backbone: nn.Module, macs: int, images: Tensor | None = None) -> nn.Module:
    """The ViT without its least channels, by Torch-Pruning; every layer loses the same share of them.

    Args:
        backbone: the ViT, left as it was.
        macs: of one image.
        images: photographs, normalised as the ViT wants them: channels then count by what the loss would rise without
            them (group Taylor), the ViT's own first answers being the labels; without photographs by their size.
    """
    whole, gradients = count(backbone).macs, None if images is None else _gradients(backbone, images)
    low, high, ratio = 0.0, 0.95, 1 - (macs / whole) ** 0.5  # MACs fall nearly with the square of the channels left
    best: tuple[float, nn.Module] | None = None
    for _ in range(TRIES):
        model = _pruned_by(backbone, ratio, gradients)
        found = count(model).macs
        off = abs(found / macs - 1)
        if best is None or off < best[0]:
            best = (off, model)
        if off < NEAR:
            break
        low, high = (ratio, high) if found > macs else (low, ratio)
        ratio = (low + high) / 2
    assert best is not None
    return best[1]


def _pruned_by(backbone: Any, ratio: float, gradients: dict[str, Tensor] | None) -> nn.Module:
    import torch_pruning  # type: ignore[import-not-found]

    model = copy.deepcopy(backbone).eval()
    attentions: list[Any] = [module for module in model.modules() if hasattr(module, "qkv")]
    for attention in attentions:
        attention.fused_attn = False  # the pruner follows products, not one fused operator
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the position embedding, which it prunes rightly
        if gradients is None:
            importance = torch_pruning.importance.GroupMagnitudeImportance(p=2)
        else:
            importance = torch_pruning.importance.GroupTaylorImportance()
            for name, parameter in model.named_parameters():
                parameter.grad = gradients[name].clone()
        pruner = torch_pruning.pruner.BasePruner(
            model, torch.randn(1, *input_of(model)["input_size"]), importance,
            pruning_ratio=ratio, ignored_layers=[model.head], round_to=ROUND_TO,
            num_heads={attention.qkv: attention.num_heads for attention in attentions},
        )  # fmt: skip
        pruner.step()
    for attention in attentions:
        attention.num_heads = pruner.num_heads[attention.qkv]
        attention.attn_dim = attention.qkv.out_features // 3
        attention.head_dim = attention.attn_dim // attention.num_heads
        attention.scale = attention.head_dim**-0.5
        attention.fused_attn = True
    model.zero_grad()
    return model


def _gradients(backbone: nn.Module, images: Tensor, batch: int = 32) -> dict[str, Tensor]:
    """Gradients of the loss over all images by name of the parameter; the model's own first answers are the labels."""
    model = copy.deepcopy(backbone).eval()
    for part in images.split(batch):
        logits = model(part)
        nn.functional.cross_entropy(logits, logits.argmax(1), reduction="sum").backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def merged_by_tome(backbone: nn.Module, macs: int) -> nn.Module:
    """The ViT with r tokens merged in every block, by the authors of token merging."""
    import tome  # type: ignore[import-not-found]

    model: Any = copy.deepcopy(backbone).eval()
    tome.patch.timm(model)

    def merging(r: int) -> nn.Module:
        model.r = r
        return model

    return merging(_merges_for(merging, macs, model.patch_embed.num_patches))


def merged_by_pruna(backbone: nn.Module, macs: int) -> nn.Module:
    """A ViT of transformers with the backbone's dims, r tokens merged in every block by Pruna."""
    from pruna import SmashConfig, smash  # type: ignore[import-not-found]
    from transformers import ViTConfig, ViTForImageClassification  # type: ignore[import-not-found]

    given: Any = backbone
    block, size = given.blocks[0], input_of(backbone)["input_size"]
    make_config: Any = ViTConfig  # its type hides what its base takes
    config = make_config(
        hidden_size=given.embed_dim, num_hidden_layers=len(given.blocks), num_attention_heads=block.attn.num_heads,
        intermediate_size=block.mlp.fc1.out_features, image_size=size[1], patch_size=given.patch_embed.patch_size[0],
        num_labels=given.num_classes,
    )  # fmt: skip

    def merging(r: int) -> nn.Module:
        smashed = smash(
            ViTForImageClassification(config).eval(), SmashConfig({"token_merging": {"r": r}}, device="cpu")
        )
        return LogitsAlone(smashed.model, size)

    return merging(_merges_for(merging, macs, given.patch_embed.num_patches))


class LogitsAlone(nn.Module):
    """A model of transformers as one from images to logits."""

    def __init__(self, model: Any, size: tuple[int, int, int]):
        super().__init__()
        self.model = model
        self.pretrained_cfg = {"input_size": size}

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


def fp8_by_torchao(model: nn.Module) -> nn.Module:
    """A copy of a bfloat16 model whose linear layers, all but the classifier, are torchao's fp8 products."""
    from torchao.quantization import (  # type: ignore[import-not-found]
        Float8DynamicActivationFloat8WeightConfig,
        PerRow,
        quantize_,
    )

    new: Any = copy.deepcopy(model).eval()
    head = new.get_classifier()
    config = Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())
    quantize_(new, config, filter_fn=lambda module, path: isinstance(module, nn.Linear) and module is not head)
    return new


def _merges_for(merging: Callable[[int], nn.Module], macs: int, patches: int) -> int:
    """How many tokens to merge in every block for MACs nearest to the wanted ones; more merges cost less."""
    low, high = 0, patches // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(merging(middle)).macs > macs else (low, middle)
    return min((low, high), key=lambda r: abs(count(merging(r)).macs - macs))


PACKAGES = {
    "torch-pruning": ("torch_pruning",),
    "tome": ("tome",),
    "pruna": ("pruna", "transformers"),
    "torchao": ("torchao",),
}
"""Peer → the packages that it needs."""

PEERS: dict[str, Callable[[nn.Module, int], nn.Module]] = {
    "torch-pruning": pruned,
    "tome": merged_by_tome,
    "pruna": merged_by_pruna,
}
"""Peer → the function that makes its model of a backbone at about so many MACs."""
