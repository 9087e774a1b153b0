"""The public names of this room, which need matplotlib: imported when the first of them is asked for."""

from typing import TYPE_CHECKING

from .cam import grad_cam
from .charts import latency_breakdown, trade_off
from .class_token import attention
from .distributions import feature_distributions
from .fields import receptive_field
from .figure import Figure
from .images import named
from .page import Page, shown
from .redundancy import deep_attention, removed_tokens, token_similarity
from .tokens import kept_tokens, slimming
from .training_curves import curve, curves

if TYPE_CHECKING:  # it needs the tasks: imported when it is asked for
    from .dense import predictions

__all__ = [
    "Figure",
    "Page",
    "attention",
    "curve",
    "curves",
    "deep_attention",
    "feature_distributions",
    "grad_cam",
    "kept_tokens",
    "latency_breakdown",
    "named",
    "predictions",
    "receptive_field",
    "removed_tokens",
    "shown",
    "slimming",
    "token_similarity",
    "trade_off",
]
