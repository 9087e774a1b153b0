"""Command lines that a hostile or a hurried user would give, made from a number: verbs, options, values."""

import dataclasses
import inspect
import os
import random
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import torch
from command_values import BAD, GOOD, INTEGERS, NUMBERS, TEXTS
from PIL import Image

import leanformer as lf
from leanformer.cli import VERBS, find_verb

TINY = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 2}
SLOW = {"compile", "tensorboard", "shard", "per_class", "fp8"}
"""Switches that do much, but read nothing from the user."""
ALWAYS = {
    "bench": ["--modes", "eager", "--batches", "1", "--repeats", "1"],
    "profile": ["--repeats", "1"],
    "train": ["--workers", "0", "--max-updates", "1", "--quiet", "--recipe", "plain:epochs=1,batch_size=2"],
    "eval": ["--workers", "0"],
    "export": ["--repeats", "1", "--format", "torch"],
    "sweep": ["--vary", "keep_rate=0.5"],
    "calibrate": ["--images", "4"],
    "recalibrate": ["--images", "4"],
}
"""Options that keep a verb short where the case does not give them itself."""
FITTING = {
    ("export", "output"): ("out.pt2",),
    ("show", "output"): ("out.png", "out.svg"),
    ("report", "runs"): ("WORLD/table.json",),
    ("recalibrate", "model"): ("WORLD/lean.safetensors",),
    ("train", "resume"): (),
}
"""What fits one verb alone."""
RARE = {"backbones": "zz", "tables": "zz", "demo": None}
"""Verbs that take minutes when all is well: they always get something wrong."""


def command_line(number: int, seed: int, world: Path) -> list[str]:
    """The command line of a number: a verb, most of what it needs, and a few options, each good or bad."""
    draws = random.Random(f"{seed}/{number}")
    verb = draws.choice([*VERBS, *VERBS, *VERBS, "zz"])
    if verb == "zz":
        return [draws.choice(TEXTS), *draws.choices(TEXTS, k=draws.randrange(3))]
    given, seen, good = [], set(), draws.choice([0.5, 0.9, 0.97])
    for name, parameter in parameters(verb).items():
        needed = parameter.default is inspect.Parameter.empty or name in ("model", "models", "data", "output", "image")
        if draws.random() < (0.92 if needed else 0.12):
            given += option(verb, name, parameter, draws, good)
            seen.add(flag(parameter, name))
    if verb in RARE:
        given = [*given, "--epochs", "0"] if verb == "demo" else [RARE[verb] or ""]
    given += extra(verb, seen)
    if "vit" in given:  # not the large one
        taken = [word.partition("=")[0] for word in given]
        sizes = {key: value for key, value in TINY.items() if key not in taken}
        given += [word for key, value in sizes.items() for word in ("--set", f"{key}={value}")]
    if draws.random() < 0.05:
        given.insert(draws.randrange(len(given) + 1), draws.choice([*TEXTS, "--zz", "--help", "--", "-h"]))
    return [verb, *(word.replace("DATA", str(world / "data")).replace("WORLD", str(world)) for word in given)]


def extra(verb: str, seen: set[str]) -> list[str]:
    """The options that keep a verb short, without those that are given already."""
    words, kept = ALWAYS.get(verb, []), []
    for index, word in enumerate(words):
        if word.startswith("--") and word not in seen:
            value = words[index + 1 : index + 2]
            kept += [word, *(value if value and not value[0].startswith("--") else [])]
    return kept


def parameters(verb: str) -> dict[str, inspect.Parameter]:
    """The parameters of a verb with their types; those of a group of settings stand beside the others."""
    function = find_verb(verb)
    hints = get_type_hints(function, include_extras=True)
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        inner = get_args(kind)[0] if get_origin(kind) is not None and get_args(kind) else kind
        if dataclasses.is_dataclass(inner):
            types = get_type_hints(inner)
            for field in dataclasses.fields(inner):
                found[field.name] = parameter.replace(
                    name=field.name, annotation=types[field.name], default=field.default
                )
        else:
            found[name] = parameter.replace(annotation=kind)
    return found


def flag(parameter: inspect.Parameter, name: str) -> str:
    """How an option is spelled on the command line; '' for what has no name there."""
    told = " ".join(map(str, getattr(parameter.annotation, "__metadata__", ())))
    if "Positional" in told:
        return ""
    renamed = {"methods": "apply", "arguments": "set", "teachers": "teacher", "formats": "format"}
    return f"--{renamed.get(name, name).replace('_', '-')}"


def option(verb: str, name: str, parameter: inspect.Parameter, draws: random.Random, good: float) -> list[str]:
    """An option with a value of its kind, which may work with the probability `good`."""
    spelled, told = flag(parameter, name), str(parameter.annotation)
    if "bool" in told and "str" not in told:
        return [] if name in SLOW else [draws.choice([spelled, f"--no-{spelled[2:]}"])]
    known = "classes_file" if verb == "serve" and name == "classes" else name
    kinds = NUMBERS if "float" in told else INTEGERS if "int" in told else TEXTS
    fitting = FITTING.get((verb, name), GOOD.get(known, ("1",)))
    values = fitting if draws.random() < good else BAD.get(known, kinds)
    if not values:
        return []
    value = draws.choice(values)
    words = value.split(" ") if name in ("emit", "size", "preprocess") else [value]
    return [*([spelled] if spelled else []), *words]


def make_world(root: Path) -> Path:
    """A folder with a data set, checkpoints, result files and pictures, whole and damaged."""
    for split in ("train", "val"):
        for name in ("a", "b"):
            (root / "data" / split / name).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (16, 16), (50 * number, 0, 99)).save(root / "data" / split / name / f"{number}.png")
    tiny = lf.create("vit", **TINY)
    lf.save(tiny, root / "tiny.safetensors")
    lf.save(lf.apply(tiny, lf.parse_method("evit:at=(1,)"), lf.parse_method("repa")), root / "lean.safetensors")
    torch.save(tiny.state_dict(), root / "weights.pth")
    torch.save({3: torch.zeros(2)}, root / "numbers.pth")
    whole = (root / "tiny.safetensors").read_bytes()
    (root / "damaged.safetensors").write_bytes(whole[: len(whole) // 2])
    (root / "integers.safetensors").write_bytes(whole.replace(b'"F32"', b'"I32"'))
    (root / "damaged.onnx").write_bytes(b"\x08\x07\x12\x00nonsense")
    (root / "file").write_text("text")
    (root / "result.json").write_text('{"kind": "bench", "rows": [{"model": "a"}]}')
    (root / "list.json").write_text("[]")
    (root / "odd.json").write_text('{"kind": "bench", "rows": [3, {"model": null}]}')
    (root / "table.json").write_text('{"kind": "table", "rows": [{"a": 1}]}')
    (root / "classes.txt").write_text("a\nb\n")
    Image.new("RGB", (20, 16)).save(root / "picture.png")
    (root / "damaged.png").write_bytes((root / "picture.png").read_bytes()[:40])
    (root / "empty").mkdir()
    os.mkfifo(root / "pipe.jpg")
    return root


def as_seen(arguments: list[str]) -> str:
    """A command line that can be printed whatever it holds."""
    return " ".join(ascii(word[:60]) for word in arguments)
