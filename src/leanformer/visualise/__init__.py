"""Pictures that explain: one function, one figure, each with a summary in words. Models come in as values."""

from .cam import grad_cam
from .charts import latency_breakdown, trade_off
from .curves import curve, curves
from .distributions import feature_distributions
from .fields import receptive_field
from .figure import Figure
from .images import named
from .page import Page, shown
from .tokens import kept_tokens, slimming

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
