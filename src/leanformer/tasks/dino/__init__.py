"""DINO: pre-training without labels. `fit` trains a backbone, `Config` holds what is DINO's own, `recipe` the rest."""

from .config import Config, recipe
from .objective import DINO
from .training import fit

__all__ = ["DINO", "Config", "fit", "recipe"]
