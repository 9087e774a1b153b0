"""Attention that stays fused, and beside it the attention that each token receives.

    y = softmax(q kᵀ / √d) v                       by the fused kernel: the map never exists in memory
    a = mean over heads of softmax(q₀ kᵀ / √d)     one row of the map, the class token's

B batch, H heads, N tokens, D channels of a head, C channels.
"""

import contextlib

import torch
import torch.nn.functional as F
from timm.layers import Attention
from torch import Tensor


def attend(attention: Attention, x: Tensor, score: str = "class") -> tuple[Tensor, Tensor]:
    """What `attention(x)` gives, (B, N, C), and the attention that each token receives, (B, N).

    `score` is "class" for the first token's row or "mean" for the mean over all rows. In training the scores are the
    probabilities before attention dropout: the fused kernel does not tell which of them it dropped. An attention that
    computes both together says so by a method `attend_with_class_row`.

    >>> y, received = attend(Attention(64, num_heads=2), torch.randn(4, 10, 64))
    >>> y.shape, received.shape
    (torch.Size([4, 10, 64]), torch.Size([4, 10]))
    """
    own = getattr(attention, "attend_with_class_row", None)
    if own is not None and score == "class":
        return own(x)
    q, k, v = project(attention, x)  # (B, H, N, D) each
    dropout = attention.attn_drop.p if attention.training else 0.0
    y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    return join_heads(attention, x, y), SCORES[score](q, k)


def project(attention: Attention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values by head, the first two normalised where the attention does so.

    >>> [t.shape for t in project(Attention(64, num_heads=2), torch.zeros(4, 10, 64))][0]
    torch.Size([4, 2, 10, 32])
    """
    batch, tokens, _ = x.shape
    qkv = attention.qkv(x).reshape(batch, tokens, 3, attention.num_heads, attention.head_dim)  # (B, N, 3, H, D)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, N, D)
    return attention.q_norm(q), attention.k_norm(k), v


def class_attention(q: Tensor, k: Tensor) -> Tensor:
    """The attention of the first token to all tokens, mean over heads: one row of the map, (B, N).

    >>> class_attention(torch.zeros(1, 2, 4, 8), torch.zeros(1, 2, 4, 8))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    # a sum of products and no matmul: k is a strided view, which a matmul would first copy
    logits = (_exact(q[:, :, :1]) * _exact(k)).sum(-1) * k.shape[-1] ** -0.5  # (B, H, N)
    return logits.softmax(-1).mean(1)


def mean_attention(q: Tensor, k: Tensor) -> Tensor:
    """The attention that each token receives from all tokens on average, mean over heads, (B, N).

    It needs every row of the map, so the map is made, one head at a time.

    >>> mean_attention(torch.zeros(1, 2, 4, 8), torch.zeros(1, 2, 4, 8))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    heads = q.shape[1]
    total = torch.zeros_like(_exact(k[:, 0, :, 0]))  # (B, N)
    with without_autocast(q):
        for head in range(heads):
            logits = _exact(q[:, head]) @ _exact(k[:, head]).mT * k.shape[-1] ** -0.5  # (B, N, N)
            total = total + logits.softmax(-1).mean(1)
    return total / heads


SCORES = {"class": class_attention, "mean": mean_attention}


def without_autocast(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Within the context, products on the device of x keep the digits of their inputs."""
    return contextlib.nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)  # meta has none


def _exact(x: Tensor) -> Tensor:
    """Half precision has too few digits to rank attention values: float32 then, else as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def join_heads(attention: Attention, x: Tensor, y: Tensor) -> Tensor:
    """From the heads' outputs (B, H, N, D) to the layer's: norm, gate, projection, dropout.

    >>> join_heads(Attention(64, num_heads=2), torch.zeros(4, 10, 64), torch.zeros(4, 2, 10, 32)).shape
    torch.Size([4, 10, 64])
    """
    y = attention.norm(y.transpose(1, 2).flatten(2))  # (B, N, C)
    if attention.gate is not None:
        y = y * attention.gate(x).sigmoid()
    return attention.proj_drop(attention.proj(y))
