"""Recipes: published settings of every model in the five papers, and presets for fine-tuning."""

from ..train.recipe import Recipe, plain
from .finetune import finetune

__all__ = ["Recipe", "finetune", "plain"]
