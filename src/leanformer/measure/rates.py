"""What a device can do at most, measured: products of matrices and copies in its memory."""

import torch

from .timing import interleave


def matrix_peak(device: torch.device, dtype: torch.dtype) -> float:
    """The device's matrix rate in FLOP/s, measured on products of random numbers: of the sizes the best one.

    Args:
        device: the device.
        dtype: of the factors.

    >>> matrix_peak(torch.device("cpu"), torch.float32) > 1e9
    True
    """
    sizes = (8192,) if device.type == "cuda" else (512, 1024)  # a CPU is fastest where its cache holds all three
    return max(_product_rate(n, device, dtype) for n in sizes)


def _product_rate(n: int, device: torch.device, dtype: torch.dtype) -> float:
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    timing = interleave({"product": lambda: a @ b}, device, repeats=5)["product"]
    return 2 * n**3 / min(timing.repeats)


def memory_rate(device: torch.device) -> float:
    """The device's memory rate in bytes a second, measured by a copy too large for its caches.

    Args:
        device: the device.

    >>> memory_rate(torch.device("cpu")) > 1e8
    True
    """
    size = 2**30 if device.type == "cuda" else 2**26
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    timing = interleave({"copy": lambda: target.copy_(source)}, device, repeats=5, seconds=0.05)["copy"]
    return 2 * size / min(timing.repeats)
