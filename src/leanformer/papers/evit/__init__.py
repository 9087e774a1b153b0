"""EViT, ICLR 2022."""
