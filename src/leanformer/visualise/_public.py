"""The public names of this room, which need matplotlib: imported when the first of them is asked for."""

from .cam import grad_cam
from .charts import latency_breakdown, trade_off
from .distributions import feature_distributions
from .fields import receptive_field
from .figure import Figure
from .images import named
from .page import Page, shown
from .tokens import kept_tokens, slimming
from .training_curves import curve, curves

__all__ = [
    "Figure",
    "Page",
    "curve",
    "curves",
    "feature_distributions",
    "grad_cam",
    "kept_tokens",
    "latency_breakdown",
    "named",
    "receptive_field",
    "shown",
    "slimming",
    "trade_off",
]
