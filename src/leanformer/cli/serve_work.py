"""What `leanformer serve` does: open a model or a file, listen, or write a repository for Triton."""

import dataclasses
import functools
import re
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from ..core import card_of, classes_of, fuse
from ..export import onnx, open_file
from ..export.target import require
from ..measure.terminal import console
from ..serve import Limits, OnnxFile, Servable, Watched, of_file, of_model, write_repository
from ..speed import Optimized, optimize
from ..visualise.names import class_names_of
from .common import AS_NAMED, Build

SERVING = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")


@dataclasses.dataclass(frozen=True)
class How:
    """How the models of a command line are opened.

    Attributes:
        built: Methods that are applied to each; weights and arguments for a model given by name.
        classes: A file with the names of the classes.
        fused: Whether models are fused.
        optimized: Whether the fastest form is searched for; None: on a GPU.
        max_batch: Images that go through a model together.
    """

    built: Build
    classes: Path | None
    fused: bool
    optimized: bool | None
    max_batch: int

    def among(self, model: str, models: Collection[str]) -> "How":
        """How one of several models is opened: weights and arguments are for those given by name, if any is."""
        return dataclasses.replace(self, built=self.built.among(model, models))


def named(models: tuple[str, ...], name: str | None) -> dict[str, str]:
    """What each model is called → its name or file.

    Args:
        models: What was given, each as MODEL or NAME=MODEL.
        name: What was given as --name.

    >>> named(("runs/lean.safetensors", "full=b.safetensors"), None)
    {'lean': 'runs/lean.safetensors', 'full': 'b.safetensors'}
    """
    if not models:
        raise ValueError("give at least one model, by name or as a file")
    if name is not None and len(models) > 1:
        raise ValueError(f"--name names one model, but there are {len(models)}; write NAME=FILE for each")
    found: dict[str, str] = {}
    for given in models:
        called, sign, model = given.partition("=")
        if not sign or Path(given).exists():
            called, model = name or Path(given).stem, given
        if not re.fullmatch(r"[\w .-]+", called) or not model:
            raise ValueError(
                f"'{given}' cannot be a model and its name; write NAME=FILE with letters, digits, _, - and ."
            )
        if called in found:
            raise ValueError(f"two models are called '{called}'; write NAME=FILE to tell them apart")
        found[called] = model
    return found


def listen(
    served: Sequence[Servable],
    limits: Limits,
    max_batch: int,
    max_wait: float,
    host: str,
    port: int,
    watched: Sequence[Watched] = (),
    look_every: float = 2.0,
) -> None:
    """Answer requests until the process is told to end."""
    from ..serve import server
    from ..serve.app import create_app

    app = create_app(
        served, limits, max_batch=max_batch, max_wait=max_wait, watched=watched, look_every=look_every
    )  # fmt: skip
    for each in served:
        console().print(f"{each.name} on {each.runtime}: http://{host}:{port}", highlight=False)
    server.listen(app, limits, host, port)


def emit(folder: Path, name: str, model: str, how: How, max_wait: float) -> None:
    """Write the folder of one model into a model repository for Triton."""
    require(("onnx", "onnxscript", "onnxruntime"), "onnx", "a repository for Triton")
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(model)
        if path.suffix == ".onnx":
            only_file(model, how)
        else:
            opened = how.built.open(model)
            path = onnx(opened, Path(temporary) / "model.onnx", fused=how.fused).path
        file = OnnxFile.read(path)
        names = _classes(how.classes, file.output_dims[-1], file.classes)
        written = write_repository(folder, name, file, names, max_batch=how.max_batch, max_wait=max_wait)
    console().print(f"wrote {written}; serve it with: tritonserver --model-repository={folder}")


def only_file(model: str, how: How) -> None:
    """Refuse options that say how to build a model beside a file that is one."""
    if how.built != AS_NAMED:
        raise ValueError(f"{model} is finished: give no methods, no checkpoint and no arguments with it")


def open_served(name: str, model: str, how: How, place: torch.device) -> Servable:
    """A model that is ready to answer, and has answered once.

    Args:
        name: What it is called.
        model: Its name or file.
        how: How it is opened.
        place: Where PyTorch computes.
    """
    require(SERVING, "serve", "serving")
    if Path(model).suffix == ".onnx":
        only_file(model, how)
        file = OnnxFile.read(model)
        served = of_file(file, open_file(model), name, _classes(how.classes, file.output_dims[-1], file.classes))
    else:
        served = _of_torch(name, model, how, place)
    served.warm_up(how.max_batch)
    return served


def watched(models: dict[str, str], how: How, place: torch.device) -> list[Watched]:
    """Those of the models that lie in files, to be opened anew when these change."""
    files = {name: model for name, model in models.items() if Path(model).suffix in (".safetensors", ".onnx")}
    return [
        Watched(
            name, Path(model), functools.partial(open_served, name, model, how.among(model, models.values()), place)
        )
        for name, model in files.items()
    ]


def _of_torch(name: str, model: str, how: How, place: torch.device) -> Servable:
    ready = how.built.open(model, fast=how.optimized is not False and not how.built.methods)
    if isinstance(ready, Optimized) and next(ready.parameters()).device.type != place.type:
        ready = how.built.open(model)
    fast = None
    if not isinstance(ready, Optimized):
        ready = (fuse(ready) if how.fused and not card_of(ready).fused else ready.eval()).to(place)
        if place.type == "cuda" if how.optimized is None else how.optimized:
            fast = functools.partial(optimize, device=place, batch=how.max_batch)
    names = _classes(how.classes, ready.num_classes, classes_of(ready))  # type: ignore[arg-type]
    return of_model(ready, name, names, fast)


def _classes(path: Path | None, total: int, carded: Sequence[str] | None) -> Sequence[str]:
    """The names in a text file, else those on the model's card, else ImageNet's or numbers."""
    if path is None:
        return class_names_of(total, carded if carded is not None and len(carded) == total else None)
    try:
        names = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the class names in {path}: {error}") from error
    if len(names) != total:
        raise ValueError(f"{path} names {len(names)} classes, but the model has {total}")
    return names
