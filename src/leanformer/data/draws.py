"""Random numbers that depend on nothing but (seed, epoch, position): the same on any device, batch and process.

A counter is scrambled by the finaliser of splitmix64; there is no generator whose state could be lost or shared.
"""

import hashlib
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

_WORD = 2**64


def key_of(*parts: int | str) -> int:
    """One signed 64-bit number out of several.

    >>> key_of(0, 1) == key_of(0, 1) != key_of(1, 0)
    True
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def uniforms(key: int | Tensor, positions: Tensor, count: int) -> Tensor:
    """`count` uniform numbers in [0, 1) for each position: (B,) → (B, count).

    >>> uniforms(1, torch.arange(4), 2).shape
    torch.Size([4, 2])
    """
    counter = positions.long()[:, None] * count + torch.arange(count, device=positions.device)  # (B, count)
    x = counter * _signed(0x9E3779B97F4A7C15) + key
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    x = x ^ _shift(x, 31)
    return _shift(x, 40).to(torch.float32) * 2.0**-24


def seed_all(*parts: int | str) -> None:
    """Seed Python, numpy and torch from (seed, update, …), so that what they draw next depends on that alone."""
    key = key_of(*parts) % _WORD
    random.seed(key)
    np.random.seed(key % 2**32)
    torch.default_generator.manual_seed(key % 2**63)
    # torch.manual_seed would also leave word, with a stack trace, for every kind of device that is not there
    for device in (torch.cuda, torch.xpu):
        if device.is_initialized():
            device.manual_seed_all(key % 2**63)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(key % 2**63)


def rng_state() -> dict[str, object]:
    """The states of all generators, of plain numbers and tensors."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()  # type: ignore[misc]
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, [int(k) for k in keys], int(position), int(has_gauss), float(cached)],  # type: ignore[union-attr]
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict) -> None:
    """Put the generators back to where `rng_state` found them."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all([s.cpu() for s in state["cuda"]])


def host_state() -> tuple[Any, ...]:
    """The states of the generators that pictures are augmented with: Python's, numpy's and torch's on the host."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_host_state(state: tuple[Any, ...]) -> None:
    """Put the generators back to where `host_state` found them.

    >>> state = host_state()
    >>> first = random.random()
    >>> set_host_state(state)
    >>> random.random() == first
    True
    """
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])


def _signed(value: int) -> int:
    return value - _WORD if value >= _WORD // 2 else value


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right: torch's own keeps the sign."""
    return (x >> bits) & (2 ** (64 - bits) - 1)
