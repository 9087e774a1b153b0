"""LV-ViT, NeurIPS 2021."""
