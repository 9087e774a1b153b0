"""What a user asks of optimize, checked before anything is computed."""

import torch

DTYPES = ("float32", "bfloat16", "float16")
"""What a model can be optimised in."""


def device_asked(name: str | torch.device | None) -> torch.device:
    """The device of this name, which is there; by default the GPU if there is one.

    >>> device_asked("cpu")
    device(type='cpu')
    """
    there = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    try:
        device = torch.device(name or ("cuda" if len(there) > 1 else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"unknown device '{name}'; there are: {', '.join(there)}") from error
    if device.type == "cuda" and f"cuda:{device.index or 0}" not in there:
        raise ValueError(f"device '{device}' is not there; there are: {', '.join(there)}")
    return device


def dtype_asked(name: str | None, device: torch.device) -> str:
    """The dtype's name; by default bfloat16 on a GPU and float32 elsewhere.

    >>> dtype_asked(None, torch.device("cpu"))
    'float32'
    """
    name = name or ("bfloat16" if device.type == "cuda" else "float32")
    if name not in DTYPES:
        raise ValueError(f"unknown dtype '{name}'; known: {', '.join(DTYPES)}")
    return name


def way_asked(search: bool | str) -> str | None:
    """How to find out what pays: "modules", "model", or None for not at all.

    >>> way_asked(True)
    'modules'
    """
    ways = {True: "modules", False: None, "modules": "modules", "model": "model"}
    if search not in ways:
        raise ValueError(f"search is '{search}'; give 'modules', 'model' or False")
    return ways[search]


def check_counts(**counts: int) -> None:
    """Refuse numbers of images or repeats below one.

    >>> check_counts(batch=256, repeats=5)
    """
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{name} is {count}; give a whole number from 1 on")
