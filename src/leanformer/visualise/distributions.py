"""How the values of features are spread in two models, stage by stage (Figure 5 of Wang et al., CVPR 2023).

A model of one stage is cut into quarters of its depth.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from .figure import COLOURS, LINES, Figure, charts
from .images import Picture, as_batch, named
from .places import Features, watching

QUARTERS = 4
BINS = 121
TAIL = 0.002
"""Share of the values on either side that the axis leaves out."""


def feature_distributions(
    model_a: nn.Module,
    model_b: nn.Module,
    images: Picture | Sequence[Picture],
    names: tuple[str, str] | None = None,
) -> Figure:
    """The distribution of feature values behind each stage of two models on the same images.

    The text gives mean and deviation of both and how much the distributions overlap, 100% being the same.

    >>> import leanformer as lf
    >>> model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=2)
    >>> feature_distributions(model, model, torch.rand(1, 3, 32, 32)).summary.splitlines()[1][:28]
    'stage 1 of 4: overlap 100%, '
    """
    names = names or (named(model_a), named(model_b))
    stages_a, stages_b = (stage_values(model, as_batch(model, images)) for model in (model_a, model_b))
    if len(stages_a) != len(stages_b):
        raise ValueError(f"{names[0]} has {len(stages_a)} stages and {names[1]} {len(stages_b)}; they cannot be paired")
    count = len(stages_a)
    plot, axes = charts(count, max(3.2, 2.6 * count), 2.9)
    lines = [f"Distributions of feature values of {names[0]} and {names[1]}, stage by stage."]
    for stage, (axis, a, b) in enumerate(zip(axes, stages_a, stages_b), 1):
        both = np.concatenate([a, b])
        low, high = np.quantile(both, [TAIL, 1 - TAIL])
        edges = np.linspace(low, high, BINS)
        heights = [np.histogram(values, edges, density=True)[0] for values in (a, b)]
        for height, name, colour, line in zip(heights, names, COLOURS, LINES):
            axis.stairs(height, edges, color=colour, linestyle=line, label=name, linewidth=1.6)
        axis.set(title=f"stage {stage}", xlabel="feature value", yticks=[])
        same = np.minimum(*heights).sum() / max(np.maximum(heights[0].sum(), heights[1].sum()), 1e-12)
        told = ", ".join(f"{n} {v.mean():+.2f} ± {v.std():.2f}" for n, v in zip(names, (a, b)))
        lines.append(f"stage {stage} of {count}: overlap {same:.0%}, {told}")
    axes[0].set_ylabel("density")
    plot.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    return Figure(plot, "\n".join(lines))


@torch.no_grad()
def stage_values(model: nn.Module, batch: Tensor) -> list[np.ndarray]:
    """All feature values behind each stage, or behind each quarter of a model that has one stage."""
    with watching(model.eval()) as watch:
        model(batch)
    return [_values(features) for features in last_of_stages(watch.features)]


def last_of_stages(features: list[Features]) -> list[Features]:
    """The last block of every stage; of a single stage, that of every quarter."""
    stages = {each.block.stage: each for each in features}
    if len(stages) > 1:
        return list(stages.values())
    quarters = min(QUARTERS, len(features))
    return [features[(i + 1) * len(features) // quarters - 1] for i in range(quarters)]


def _values(features: Features) -> np.ndarray:
    assert features.output is not None
    y = features.output.float()
    return (y[:, features.prefix :] if features.block.layout == "NLC" else y).flatten().cpu().numpy()
