"""Latency by component, by the clock: each component's modules run alone on the inputs they really get.

    patch embedding | token mixer | FFN | norms | token reduction | head | rest = whole - all of these

All components and the whole model are timed in turn. Compiled, each component is compiled by itself, so what the
compiler gains across components shows as a negative rest.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from ..core import Block, Branch, Reducer, blocks_of, card_of, input_of, reducers
from .results import record, write_result
from .terminal import Printed
from .timing import Call, Timing, interleave, prepare

COMPONENTS = ("patch embedding", "token mixer", "FFN", "norms", "token reduction", "head")
EMBEDDINGS = ("patch_embed", "stem", "downsample")
HEADS = ("norm", "fc_norm", "attn_pool", "head", "head_dist", "aux_head")
BY_SLOT = {"pre": "token reduction", "mix": "token mixer", "ffn": "FFN"}


@dataclass(frozen=True)
class Profile:
    """One model's latency by component, in seconds a batch. `spread` is that of the whole model."""

    model: str
    mode: str
    batch: int
    dtype: str
    whole: float
    spread: float
    parts: dict[str, float]

    @property
    def rest(self) -> float:
        """What the components do not add up to: residuals, position embedding, pooling, and calls in between."""
        return self.whole - sum(self.parts.values())

    def share(self, component: str) -> float:
        """A component's share of the whole."""
        seconds = self.rest if component == "rest" else self.parts.get(component, 0.0)
        return seconds / self.whole


@dataclass(frozen=True)
class Profiles(Printed):
    """Several models' profiles, with what they ran on."""

    rows: tuple[Profile, ...]
    device: str

    def __rich__(self) -> Table:
        return _render(self)

    def record(self, **more: Any) -> dict[str, Any]:
        """The run in the schema of `results`."""
        return record("profile", [asdict(row) for row in self.rows], self.device, **more)

    def save(self, path: str | Path) -> Path:
        """Write the run as JSON."""
        return write_result(self.record(), path)


def profile(
    models: Mapping[str, nn.Module] | nn.Module,
    *,
    device: str | torch.device | None = None,
    batch: int = 1,
    dtype: str | None = None,
    modes: Sequence[str] = ("eager",),
    repeats: int = 5,
    ready: Callable[[], None] | None = None,
) -> Profiles:
    """Time models component by component.

    Args:
        models: one model, or several by name.
        device: by default the GPU if there is one.
        batch: images at a time.
        dtype: by default bfloat16 on a GPU and float32 on a CPU.
        modes: eager, compiled.
        repeats: how often each component is timed, in turn with the others.
        ready: called whenever a model is compiled and only its timing is left.

    >>> import leanformer as lf
    >>> tiny = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2)
    >>> sorted(profile(tiny, device="cpu", repeats=1).rows[0].parts)
    ['FFN', 'head', 'norms', 'patch embedding', 'token mixer']
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = dtype or ("bfloat16" if place.type == "cuda" else "float32")
    named = dict(models) if isinstance(models, Mapping) else {card_of(models).backbone: models}
    rows = []
    for name, model in named.items():
        twin = copy.deepcopy(model).eval().to(place, getattr(torch, dtype))
        images = torch.randn(batch, *input_of(model)["input_size"], device=place).to(getattr(torch, dtype))
        for mode in modes:
            torch.compiler.reset()
            whole, parts = _profile(twin, images, mode, repeats, ready)
            rows.append(Profile(name, mode, batch, dtype, whole.median, whole.spread, parts))
    return Profiles(tuple(rows), str(place))


def components(model: nn.Module) -> dict[str, list[str]]:
    """Component → paths of the modules that make it up; no module stands in two.

    Args:
        model: a model with blocks.

    >>> import leanformer as lf
    >>> components(lf.create("vit", depth=1))["norms"]
    ['blocks.0.mix.norm', 'blocks.0.ffn.norm']
    """
    found: dict[str, list[str]] = {name: [] for name in COMPONENTS}
    blocks = blocks_of(model)
    taken: list[str] = []
    for path, module in model.named_modules():
        if any(path.startswith(f"{outer}.") for outer in taken):
            continue
        if path in blocks:
            taken.append(path)
            for component, inner in _of_block(path, blocks[path]):
                found[component].append(inner)
        elif (outside := _outside(path)) and not any(block.startswith(f"{path}.") for block in blocks):
            taken.append(path)
            if not isinstance(module, nn.Identity):
                found[outside].append(path)
    return {name: paths for name, paths in found.items() if paths}


class Together(nn.Module):
    """The modules of one component, each on its own inputs, as one module: all outputs are returned, none skipped.

    >>> Together([nn.Identity()], [((torch.zeros(1),), {})])(torch.zeros(1))
    [tensor([0.])]
    """

    def __init__(self, modules: Sequence[nn.Module], inputs: Sequence[tuple[tuple, dict]]):
        super().__init__()
        self.parts = nn.ModuleList(modules)
        self.inputs = list(inputs)

    def forward(self, _: Tensor) -> list[Any]:
        return [part(*given, **named) for part, (given, named) in zip(self.parts, self.inputs, strict=True)]


def _of_block(path: str, block: Block) -> Iterator[tuple[str, str]]:
    for slot in block.slots:
        module = getattr(block, slot)
        where = f"{path}.{slot}"
        if isinstance(module, nn.Identity):
            continue
        if isinstance(module, Reducer) and isinstance(module, Branch):
            yield "token reduction", where  # what it takes beyond the branch that keeps all tokens: see _profile
        if isinstance(module, Branch):
            yield from (("norms", f"{where}.norm"), (BY_SLOT[slot], f"{where}.fn"))
        else:
            yield BY_SLOT[slot], where


def _outside(path: str) -> str | None:
    """The component of a module outside the blocks, by its name."""
    last = path.rpartition(".")[2]
    if last in EMBEDDINGS:
        return "patch embedding"
    return "head" if path in HEADS else None


@torch.inference_mode()
def _profile(
    model: nn.Module, images: Tensor, mode: str, repeats: int, ready: Callable[[], None] | None = None
) -> tuple[Timing, dict[str, float]]:
    whole = _without_reduction(model)
    seen = _captured(model, images, whole)
    parts = {name: [inner for path in paths for inner in _ran(path, seen)] for name, paths in components(model).items()}
    calls: dict[str, Call] = {"": prepare(model, images, mode)}
    for name, paths in parts.items():
        if paths:
            calls[name] = prepare(
                Together([model.get_submodule(p) for p in paths], [seen[p] for p in paths]), images, mode
            )
    reducing = [path for path in parts.get("token reduction", ()) if path in whole]
    if reducing:
        calls["unreduced"] = prepare(Together([whole[p] for p in reducing], [seen[p] for p in reducing]), images, mode)
    timings = interleave(calls, images.device, repeats, ready=ready)
    seconds = {name: timings[name].median for name in parts if name in timings}
    if reducing:
        seconds["token reduction"] = max(0.0, seconds["token reduction"] - timings["unreduced"].median)
    return timings[""], seconds


def _without_reduction(model: nn.Module) -> dict[str, Branch]:
    """Branches that also take tokens away, by path, as the branches they would be without that."""
    reducing = {path: slot for path, slot in reducers(model).items() if isinstance(slot, Branch)}
    return {path: Branch(**slot.parts()).eval() for path, slot in reducing.items()}


def _captured(model: nn.Module, images: Tensor, whole: Mapping[str, Branch]) -> dict[str, tuple[tuple, dict]]:
    """The inputs of every module that a forward pass calls, by path."""
    seen: dict[str, tuple[tuple, dict]] = {}
    with ExitStack() as hooks:
        for path, module in model.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(_keep(seen, path), with_kwargs=True))
        model(images)
        for path, branch in whole.items():  # such a branch may use its parts without calling them
            if path in seen and f"{path}.fn" not in seen:
                branch(*seen[path][0], **seen[path][1])
    return seen


def _ran(path: str, seen: Mapping[str, Any]) -> list[str]:
    """The module at a path if it was called, or else those within it that were."""
    ran: list[str] = []
    for other in seen:
        if (other == path or other.startswith(f"{path}.")) and not any(other.startswith(f"{p}.") for p in ran):
            ran.append(other)
    return ran


def _keep(seen: dict[str, tuple[tuple, dict]], path: str) -> Callable[..., None]:
    return lambda module, given, named: seen.__setitem__(path, (given, named))


def _render(profiles: Profiles) -> Table:
    table = Table(title=f"latency by component on {profiles.device}", title_justify="left")
    for name in ("model", "mode"):
        table.add_column(name)
    for name in ("batch", "ms", "±", *COMPONENTS, "rest"):
        table.add_column(name, justify="right")
    for row in profiles.rows:
        shares = (f"{row.share(name):.1%}" for name in (*COMPONENTS, "rest"))
        table.add_row(row.model, row.mode, str(row.batch), f"{row.whole * 1e3:.2f}", f"{row.spread:.1%}", *shares)
    return table
