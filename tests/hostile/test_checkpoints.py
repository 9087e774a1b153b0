"""Damaged and lying checkpoints: each is loaded or refused in one line; no code runs and nothing large is built."""

import json
import os
import pickle
import random
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import damaged_bytes, damaged_json
from families import BACKBONES
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from time_limit import at_most
from torch import Tensor, nn

import leanformer as lf

SECONDS = 20
LARGEST = 3_000_000
"""Kilobytes that loading files of less than one megabyte may take at most, all of torch included."""
KINDS = [torch.int64, torch.bool, torch.complex64, torch.float16, torch.bfloat16, torch.float64, torch.uint8]
NAMES = ["vit_giant_patch14_dinov2", "resnet18", "vit", "swin", "", "timm/vit_base_patch16_224", "mixer_l16_224"]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    """Whole checkpoints of several families, plain, with methods and fused."""
    folder = tmp_path_factory.mktemp("whole")
    made = {family: lf.create(name, **arguments) for family, (name, arguments) in BACKBONES.items()}
    models = {
        "vit": made["vit"],
        "evit": lf.apply(made["vit"], lf.EViT(keep_rate=0.7)),
        "repa": lf.apply(made["vit"], lf.RePa(idle_ratio=0.5)),
        "swin": made["swin"],
        "poolformer": made["poolformer"],
    }
    return [lf.save(model, folder / f"{name}.safetensors") for name, model in models.items()]


def outcome(read: Any) -> str:
    """What came of reading a file; whatever must not be begins with 'bad'."""
    try:
        with at_most(SECONDS):
            read()
    except ValueError as error:
        told = str(error)
        return "refused" if told and "\n" not in told and len(told) < 2000 else f"bad line: {told[:300]!r}"
    except BaseException as error:
        return f"bad: {type(error).__name__} {str(error)[:200]}"
    return "loaded"


def changed_tensors(tensors: dict[str, Tensor], draws: random.Random) -> dict[str, Tensor]:
    """The tensors with one of another dtype or shape, missing, renamed, or one too many; or all of another dtype."""
    key, kind = draws.choice(sorted(tensors)), draws.randrange(6)
    tensor = tensors[key]
    if kind == 0:
        return {name: value.to(draws.choice(KINDS)) for name, value in tensors.items()}
    if kind == 1:
        return {**tensors, key: tensor.to(draws.choice(KINDS))}
    if kind == 2:
        shapes = [(0,), (1,), (), (*tensor.shape, 1), tuple(reversed(tensor.shape)), (2, *tensor.shape)]
        return {**tensors, key: torch.zeros(draws.choice(shapes), dtype=tensor.dtype)}
    rest = {name: value for name, value in tensors.items() if name != key}
    if kind == 3:
        return rest
    return {**(rest if kind == 4 else tensors), draws.choice(["", "x", f"{key}.x", key.upper()]): tensor.clone()}


def damaged_checkpoint(whole: Path, path: Path, draws: random.Random) -> None:
    kind = draws.random()
    if kind < 0.35:
        path.write_bytes(damaged_bytes(whole.read_bytes(), draws))
        return
    with safe_open(whole, framework="pt") as file:
        card = json.loads(file.metadata()["leanformer"])
    tensors = load_file(whole)
    if kind < 0.55:
        tensors = changed_tensors(tensors, draws)
    elif kind < 0.65:
        card = {**card, "backbone": draws.choice(NAMES), "arguments": draws.choice([{}, card["arguments"]])}
    else:
        for _ in range(draws.choice([1, 1, 2])):
            card = damaged_json(card, draws)
    text = json.dumps(card)
    if draws.random() < 0.1:
        text = damaged_bytes(text.encode(), draws).decode("latin-1")
    save_file(tensors, path, {"leanformer": text})


@pytest.mark.parametrize("cases", [40], indirect=True)
def test_checkpoints(cases, seed, tally: Counter[str], files, tmp_path):
    wrong = []
    for number in range(cases):
        draws = random.Random(f"checkpoints/{seed}/{number}")
        path = tmp_path / "x.safetensors"
        damaged_checkpoint(draws.choice(files), path, draws)
        found = outcome(lambda path=path: lf.load(path))
        tally[found[:40]] += 1
        if found.startswith("bad"):
            wrong.append(f"{number}: {found}")
    assert not wrong, wrong
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < LARGEST
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


class Evil:
    """Makes a folder when it is unpickled without care."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


def weights_file(path: Path, draws: random.Random, trace: Path) -> None:
    """A .pth file that someone might give for a tiny ViT: damaged, odd, or with code in it."""
    tensors: dict[Any, Any] = dict(nn.Linear(3, 5).state_dict()) | {"head.weight": torch.zeros(5, 32)}
    key = draws.choice(list(tensors))
    odd = [
        tensors[key].to_sparse(), tensors[key].to("meta"), tensors[key].long(), tensors[key].to(torch.complex64),
        torch.zeros(1).expand(1000, 1000), 3, "text", None, [tensors[key]], {"x": tensors[key]}, Evil(trace),
        nn.Parameter(tensors[key]),
    ]  # fmt: skip
    kind = draws.randrange(5)
    if kind == 0:
        tensors[key] = draws.choice(odd)
    elif kind == 1:
        tensors = {draws.choice([1, None, 2.5, ("a",), b"x"]): value for value in tensors.values()}
    content = draws.choice([tensors, {"model": tensors}, {"state_dict": tensors, "more": draws.choice(odd)}, [tensors]])
    if draws.random() < 0.1:
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=draws.random() < 0.8)
    if kind > 2:
        path.write_bytes(damaged_bytes(path.read_bytes(), draws))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("cases", [60], indirect=True)
def test_weights(cases, seed, tally: Counter[str], tmp_path):
    arguments, wrong = BACKBONES["mixer"][1], []
    for number in range(cases):
        draws = random.Random(f"weights/{seed}/{number}")
        path, trace = tmp_path / "x.pth", tmp_path / "trace"
        weights_file(path, draws, trace)
        found = outcome(lambda path=path: lf.create("mixer", path, **arguments))
        tally[found[:40]] += 1
        if found.startswith("bad") or trace.exists():
            wrong.append(f"{number}: {found}, code executed: {trace.exists()}")
    assert not wrong, wrong
