"""Ways to damage what is read from outside, each made from a random generator alone."""

import random
from typing import Any

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 3, 10**9, 10**30, -(10**12), 0.5, -0.5, 1e308, float("nan"), float("inf"), "", "x",
    "x" * 5000, "\x00", "\ud800", "../../etc/passwd", "hf-hub:timm/vit", [], [[]], [0] * 3, [1] * 5000, ["a", 1], {},
    {"": None}, {"a": {"b": []}},
]  # fmt: skip
"""Values of every type that JSON has, small and huge."""


def damaged_bytes(data: bytes, draws: random.Random) -> bytes:
    """Bits flipped, a piece cut off, taken out, doubled, or filled with noise; mostly near the beginning."""
    kind, changed = draws.randrange(6), bytearray(data)
    reach = max(1, len(data) if draws.random() < 0.5 else min(len(data), 2000))
    place = draws.randrange(reach)
    length = draws.choice([1, 2, 8, 100])
    if kind == 0:
        for _ in range(draws.choice([1, 1, 2, 8])):
            changed[draws.randrange(reach)] ^= 1 << draws.randrange(8)
    elif kind == 1:
        del changed[place:]
    elif kind == 2:
        del changed[place : place + length]
    elif kind == 3:
        changed[place:place] = changed[place : place + length]
    elif kind == 4:
        changed[place : place + length] = draws.randbytes(length)
    else:
        changed += draws.randbytes(length)
    return bytes(changed)


def damaged_json(value: Any, draws: random.Random) -> Any:
    """The same JSON with one value somewhere replaced, taken out, or added."""
    if isinstance(value, dict) and value and draws.random() < 0.85:
        key = draws.choice(sorted(value))
        kind = draws.random()
        if kind < 0.1:
            return {name: each for name, each in value.items() if name != key}
        if kind < 0.2:
            return {**value, draws.choice(["depth", "img_size", "classes", "input", "zz", ""]): draws.choice(ODD)}
        return {**value, key: damaged_json(value[key], draws)}
    if isinstance(value, list) and value and draws.random() < 0.6:
        place = draws.randrange(len(value))
        return [*value[:place], damaged_json(value[place], draws), *value[place + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and draws.random() < 0.4:
        return draws.choice([value + 1, value * 2, value * 10**6, -value, float(value)])
    return draws.choice(ODD)
