"""Channel-idle FFN: an activation on the first hidden channels only, so that the others are a linear path.

    trained   z = skip(x) + s · (W₂ n₂([act(h) | h′]) + b₂),   [h | h′] = W₁ n₁(x) + b₁
    fused     z = W_out act(W_in x + b_in) + W x + b

n₁ and n₂ are batch norms, affine maps in evaluation; s is a LayerScale; the shortcut is a diagonal of W.
C channels, R hidden channels, A active ones, R − A idle ones.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

Rounding = Literal["ceil", "floor", "nearest"]


class Affine(NamedTuple):
    """y = weight x + bias, for (out, in) weights."""

    weight: Tensor
    bias: Tensor


class ThreeLinears(NamedTuple):
    """The fused FFN: `out(act(into(x))) + path(x)`."""

    into: Affine
    out: Tensor
    path: Affine


def active_channels(hidden: int, idle_ratio: float, rounding: Rounding = "ceil") -> int:
    """How many of the hidden channels keep their activation, A.

    >>> active_channels(1280, 0.7), active_channels(1280, 0.7, "floor"), active_channels(1280, 0.7, "nearest")
    (385, 384, 384)
    """
    exact = hidden * (1 - idle_ratio)
    whole = {"ceil": math.ceil, "floor": math.floor, "nearest": round}[rounding](exact)
    return min(max(whole, 0), hidden)


def linear_schedule(idle_ratio: float, depth: int) -> list[float]:
    """Idle ratios that grow linearly over depth to 1 around the mean `idle_ratio`; the last block is fully active.

    >>> linear_schedule(0.75, 5)
    [0.625, 0.75, 0.875, 1.0, 0.0]
    """
    first = 2 * idle_ratio - 1
    return [first + (2 - 2 * idle_ratio) * (i + 1) / (depth - 1) for i in range(depth - 1)] + [0.0]


def activate_some(h: Tensor, act: Callable[[Tensor], Tensor], active: int, axis: int) -> Tensor:
    """`act` on the first `active` channels of `axis`, nothing on the others."""
    if active == 0:
        return h
    if active == h.shape[axis]:
        return act(h)
    head, tail = h.split([active, h.shape[axis] - active], dim=axis)
    return torch.cat([act(head), tail], dim=axis)


def normalise(norm: nn.Module, x: Tensor, axis: int) -> Tensor:
    """A batch norm over the channels of `axis`: the last one (any leading dims) or axis 1 of (B, C, H, W)."""
    return norm(x) if axis == 1 else norm(x.flatten(0, -2)).view(x.shape)


def after(layer: Affine, scale: Tensor, shift: Tensor) -> Affine:
    """The layer behind x → scale · x + shift, in one: W (s x + t) + b.

    >>> after(Affine(torch.eye(2), torch.zeros(2)), torch.tensor([2.0, 3.0]), torch.ones(2)).bias
    tensor([1., 1.])
    """
    return Affine(layer.weight * scale, layer.weight @ shift + layer.bias)


def scaled(layer: Affine, scale: Tensor) -> Affine:
    """The layer with its outputs scaled: s (W x + b)."""
    return Affine(scale[:, None] * layer.weight, scale * layer.bias)


def reparameterise(first: Affine, second: Affine, active: int, shortcut: Tensor | None = None) -> ThreeLinears:
    """Multiply the idle path out: W = W₂′ W₁′ + diag(shortcut), b = W₂′ b₁′ + b₂, primes on idle channels.

    >>> first, second = Affine(torch.ones(4, 2), torch.zeros(4)), Affine(torch.ones(2, 4), torch.zeros(2))
    >>> reparameterise(first, second, active=1, shortcut=torch.ones(2)).path.weight
    tensor([[4., 3.],
            [3., 4.]])
    """
    idle_out = second.weight[:, active:]  # (C, R - A)
    path = idle_out @ first.weight[active:]  # (C, C)
    if shortcut is not None:
        path = path + torch.diag(shortcut)
    return ThreeLinears(
        into=Affine(first.weight[:active], first.bias[:active]),
        out=second.weight[:, :active],
        path=Affine(path, idle_out @ first.bias[active:] + second.bias),
    )


def pointwise(weight: Tensor, bias: Tensor | None, conv: bool) -> nn.Module:
    """A Linear, or a 1 x 1 convolution, with these weights.

    >>> pointwise(torch.ones(3, 2), None, conv=True).weight.shape
    torch.Size([3, 2, 1, 1])
    """
    kind: Callable[..., nn.Module] = nn.Conv2d if conv else nn.Linear
    sizes = (weight.shape[1], weight.shape[0]) + ((1,) if conv else ())
    with torch.device("meta"):
        layer = kind(*sizes, bias=bias is not None)
    layer.weight = nn.Parameter(weight.reshape(layer.weight.shape).detach().clone())  # type: ignore[arg-type]
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer


def add_linear(y: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
    """y + layer(h) for a layer without bias; on a GPU the product is added into y as it is made.

    That saves a pass over y (10% of a fused FFN in bf16). Compilers and autocast find their own way.
    """
    weight: Tensor = layer.weight  # type: ignore[assignment]
    plain = torch.compiler.is_compiling() or not y.is_cuda or weight.ndim != 2
    if plain or not y.dtype == h.dtype == weight.dtype:
        return y + layer(h)
    y.flatten(0, -2).addmm_(h.flatten(0, -2), weight.mT)
    return y


class FusedFFN(nn.Module):
    """Eq. 7, `fc3(act(fc2(x))) + fc1(x)`; without active channels `fc1(x)` alone.

    With `norm` the linears see norm(x) and the shortcut stays outside, in `skip`.
    """

    def __init__(
        self,
        linears: ThreeLinears,
        act: nn.Module,
        conv: bool,
        norm: nn.Module | None = None,
        skip: nn.Module | None = None,
    ):
        super().__init__()
        self.norm = norm
        self.skip = skip
        self.fc1 = pointwise(*linears.path, conv=conv)
        if linears.out.shape[1]:
            self.fc2 = pointwise(*linears.into, conv=conv)
            self.fc3 = pointwise(linears.out, None, conv=conv)
            self.act = act
        else:
            self.fc2 = None

    def three_products(self) -> tuple[Tensor, ...] | None:
        """The weights W, b, W_in, b_in, W_out of three products around GELU, or None where there is more to it."""
        if self.norm is not None or self.skip is not None or self.fc2 is None or type(self.act) is not nn.GELU:
            return None
        if any(type(fc) not in (nn.Linear, nn.Conv2d) for fc in (self.fc1, self.fc2, self.fc3)):
            return None
        weights: Any = (self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias, self.fc3.weight)
        return tuple(w.detach().flatten(1) if w.ndim > 1 else w.detach() for w in weights)

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.norm is None else self.norm(x)
        y = self.fc1(h)
        if self.fc2 is not None:
            y = add_linear(y, self.act(self.fc2(h)), self.fc3)
        return y if self.skip is None else self.skip(x) + y


class FusedPair(nn.Module):
    """`skip(x) + fc2(act(fc1(norm(x))))` with the batch norms folded: cheaper than Eq. 7 where few channels idle."""

    def __init__(
        self,
        first: Affine,
        second: Affine,
        act: nn.Module,
        active: int,
        conv: bool,
        norm: nn.Module | None = None,
        skip: nn.Module | None = None,
    ):
        super().__init__()
        self.norm = norm or nn.Identity()
        self.skip = skip or nn.Identity()
        self.fc1 = pointwise(*first, conv=conv)
        self.act = act
        self.fc2 = pointwise(*second, conv=conv)
        self.active = active
        self.axis = 1 if conv else -1

    def forward(self, x: Tensor) -> Tensor:
        h = activate_some(self.fc1(self.norm(x)), self.act, self.active, self.axis)
        return self.skip(x) + self.fc2(h)
