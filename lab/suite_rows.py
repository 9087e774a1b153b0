"""The rows of the suites of models: which backbone, which methods on it, which batch, and what the paper prints."""

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import timm
from torch import nn

import leanformer as lf
from leanformer.core import Method

from .tiny import tiny_form


@dataclass(frozen=True)
class Entry:
    """A row but for its batch: a backbone, the methods on it, and the published speed-up."""

    label: str
    backbone: str
    methods: tuple[Method, ...] = ()
    paper: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Of the backbone, as its image size where that is not its own."""
    peer: str = ""
    """The library in lab.peers that makes this row's model, at the MACs of the backbone with the methods."""

    def timms(self) -> nn.Module:
        """timm's own model where timm has it, and ours where it has not: batch norms of the stem folded in both."""
        if timm.is_model(self.backbone) and "dims" not in self.arguments:  # timm's MetaFormers have theirs
            return timm.create_model(self.backbone, **self.arguments)
        return self.own()

    def own(self) -> nn.Module:
        """The backbone as this library has it, fused."""
        return _fused(lf.create(self.backbone, **self.arguments))

    def lean(self) -> nn.Module:
        """The backbone with the methods on it, fused."""
        return _fused(lf.apply(lf.create(self.backbone, **self.arguments), *self.methods))

    def tiny(self) -> "Entry":
        """The same row with a tiny backbone."""
        backbone, arguments = tiny_form(self.backbone)
        methods = tuple(m.replace(at=(1, 2, 3)) if getattr(m, "at", None) else m for m in self.methods)
        return dataclasses.replace(self, backbone=backbone, arguments=arguments, methods=methods)


def _fused(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # batch norms without statistics: speed does not depend on them
        return lf.fuse(model, verify=False)


DEIT = {name: f"deit_{name}_patch16_224" for name in ("tiny", "small", "base")} | {"large": "vit_large_patch16_224"}
DINOV2 = "vit_small_patch14_reg4_dinov2"
EVIT7, EVIT5, REPA = lf.EViT(keep_rate=0.7), lf.EViT(keep_rate=0.5), lf.RePa(idle_ratio=0.75)
TOME7 = lf.ToMe(keep_rate=0.7, at=(3, 6, 9))
"""Token merging where EViT reduces, to the same numbers of tokens but for EViT's fused one."""
RIFORMER = lf.RIFormer()


def sit(teacher: str) -> Method:
    """The published SiT of a teacher; its weights do not matter for its speed."""
    return lf.SiT.preset(teacher, start="random")


GPU = (
    Entry("EViT 0.7 on DeiT-S", DEIT["small"], (EVIT7,), "1.50"),
    Entry("EViT 0.5 on DeiT-S", DEIT["small"], (EVIT5,), "1.85"),
    Entry("ToMe 0.7 on DeiT-S", DEIT["small"], (TOME7,)),
    Entry("RePa 0.75 on DeiT-S", DEIT["small"], (REPA,), "1.54"),
    Entry("RePa 0.75 + EViT 0.7 on DeiT-S", DEIT["small"], (REPA, EVIT7)),
    Entry("EViT 0.7 on DeiT-B", DEIT["base"], (EVIT7,), "1.59"),
    Entry("EViT 0.5 on DeiT-B", DEIT["base"], (EVIT5,), "1.92"),
    Entry("RePa 0.75 on DeiT-B", DEIT["base"], (REPA,), "1.68"),
    Entry("RePa 0.75 + EViT 0.7 on DeiT-B", DEIT["base"], (REPA, EVIT7)),
    Entry("RePa 0.75 + EViT 0.5 on DeiT-B", DEIT["base"], (REPA, EVIT5)),
    Entry("RePa 0.75 on ViT-L", DEIT["large"], (REPA,), "1.67"),
    Entry("RePa 0.75 + EViT 0.7 on ViT-L", DEIT["large"], (REPA, EVIT7)),
    Entry("RIFormer-S12 over PoolFormer", "poolformer_s12", (RIFORMER,), "1.18"),
    Entry("RePa 0.75 on PoolFormer-S12", "poolformer_s12", (REPA,)),
    Entry("RIFormer + RePa 0.75 on PoolFormer-S12", "poolformer_s12", (RIFORMER, REPA)),
    Entry("RIFormer-M36 over PoolFormer", "poolformer_m36", (RIFORMER,), "1.17"),
    Entry("EViT 0.7 on DINOv2-S with registers", DINOV2, (EVIT7,)),
    Entry("EViT 0.5 on DINOv2-S with registers", DINOV2, (EVIT5,)),
    Entry("RePa 0.75 on Swin-T", "swin_tiny_patch4_window7_224", (REPA,)),
    Entry("RePa 0.75 on Mixer-B16", "mixer_b16_224", (REPA,)),
    Entry("CAFormer-S18 as it is", "caformer_s18"),
    Entry("SiT-XS over LV-ViT-S", "lvvit_plus_xsmall", (sit("lvvit_plus_xsmall"),), "3.6"),
    Entry("SiT-S over LV-ViT-S", "lvvit_plus_small", (sit("lvvit_plus_small"),), "1.4"),
)
"""The models with published speed-ups, and what the methods do to other families."""

CPU = (
    Entry("EViT 0.7 on DeiT-S", DEIT["small"], (EVIT7,)),
    Entry("EViT 0.5 on DeiT-S", DEIT["small"], (EVIT5,)),
    Entry("ToMe 0.7 on DeiT-S", DEIT["small"], (TOME7,)),
    Entry("RePa 0.75 on DeiT-S", DEIT["small"], (REPA,)),
    Entry("RePa 0.75 + EViT 0.7 on DeiT-S", DEIT["small"], (REPA, EVIT7)),
    Entry("RIFormer-S12 over PoolFormer", "poolformer_s12", (RIFORMER,)),
    Entry("RePa 0.75 on PoolFormer-S12", "poolformer_s12", (REPA,)),
    Entry("RIFormer + RePa 0.75 on PoolFormer-S12", "poolformer_s12", (RIFORMER, REPA)),
)

PEERS = tuple(
    entry
    for model, backbone in (("DeiT-S", DEIT["small"]), ("DeiT-B", DEIT["base"]))
    for name, method in (("EViT 0.7", EVIT7), ("RePa 0.75", REPA))
    for entry in (
        Entry(f"{name} on {model}", backbone, (method,)),
        *(
            Entry(f"{peer} at the MACs of {name} on {model}", backbone, (method,), peer=peer)
            for peer in ("torch-pruning", "tome", "pruna")
        ),
    )
)
"""Two methods, and what other libraries make of the same backbone at the same MACs."""


def growth() -> Iterator[tuple[Entry, int]]:
    """RePa + EViT 0.7 over batch size, resolution and model size."""
    both = (REPA, EVIT7)
    for batch in (1, 16, 1024):
        yield Entry("RePa + EViT 0.7 on DeiT-S", DEIT["small"], both), batch
    for size in (384, 512):
        yield Entry(f"RePa + EViT 0.7 on DeiT-S at {size} px", DEIT["small"], both, arguments={"img_size": size}), 128
    for name in ("tiny", "small", "large"):
        yield Entry(f"RePa + EViT 0.7 on {DEIT[name]}", DEIT[name], both), 256


def at_batches(entries: Sequence[Entry], *default: int) -> Callable[[Sequence[int]], list[tuple[Entry, int]]]:
    """Rows of a suite whose batches can be chosen: batch sizes, or none for its own → the entries at each."""
    return lambda batches: [(entry, batch) for batch in batches or default for entry in entries]


SUITES: dict[str, Callable[[Sequence[int]], list[tuple[Entry, int]]]] = {
    "gpu": at_batches(GPU, 256, 1),
    "cpu": at_batches(CPU, 8),
    "peers": at_batches(PEERS, 256, 1),
    "growth": lambda batches: [row for row in growth() if not batches or row[1] in batches],
}
"""Suite → its rows at the batch sizes that are asked for."""
