"""Optimised models in files: the plain weights and how the fast form was made, which is made again where it can be."""

import os
import warnings
from typing import Any

import torch
from torch import nn

from ..backbones import load as load_plain
from ..core import card_of, set_card
from .memory import chip_name
from .optimized import Choice
from .search import Form, Task, all_steps, finished


class PlainForm(UserWarning):
    """A file of an optimised model gave its plain form, because it was optimised for another kind of device."""


def load(path: str | os.PathLike[str], fast: bool = True) -> nn.Module:
    """The model that `lf.save` wrote, rebuilt from the file alone, in evaluation mode.

    An optimised model comes back in its fast form on a device of the kind that it was optimised for, without a search;
    elsewhere it comes back as the plain fused model, with a warning that says so.

    Args:
        path: a file that `lf.save` wrote.
        fast: False for the plain form of an optimised model.

    Raises:
        ValueError: if the file is damaged, or is none that `lf.save` wrote.

    >>> import leanformer as lf
    >>> model = lf.load("lean.safetensors")  # doctest: +SKIP
    """
    model = load_plain(path)
    tuned = card_of(model).optimised
    model = set_card(model, card_of(model).replace(optimised=None))
    if tuned is None or not fast:
        return model
    _check(tuned, path)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    unknown = [step for step in tuned["steps"] if step not in all_steps(fp8=True)]
    device = torch.device("cpu") if tuned["device"] == "cpu" else device
    if tuned["device"] != chip_name(device) or unknown:
        why = f"the step '{unknown[0]}' is unknown" if unknown else f"this is {chip_name(device)}"
        warnings.warn(
            f"{path} was optimised for {tuned['device']} and {why}: it is loaded as the plain model; lf.optimize makes "
            "it fast here",
            PlainForm,
            stacklevel=2,
        )
        return model
    shape = (tuned["batch"], *tuned["size"])
    task = Task.of(model, device, getattr(torch, tuned["dtype"]), shape, repeats=1, fp8=False)
    form = Form.of(task, Choice.from_json(tuned["batch"], tuned))
    return finished(task, form, graph=form.choice.graph and device.type == "cuda")


def _check(tuned: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Refuse an entry that `lf.optimize` did not write."""
    kinds = {"steps": list, "places": dict, "graph": bool, "batch": int, "size": list, "dtype": str, "device": str}
    for name, kind in kinds.items():
        if not isinstance(tuned.get(name), kind):
            raise ValueError(f"the card in {path} is damaged: optimised.{name} is {tuned.get(name)!r}")
    if tuned["dtype"] not in ("float32", "bfloat16", "float16") or tuned["batch"] < 1 or len(tuned["size"]) != 3:
        raise ValueError(f"the card in {path} is damaged: optimised is {tuned}")
