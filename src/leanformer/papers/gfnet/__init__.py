"""GFNet, NeurIPS 2021."""
