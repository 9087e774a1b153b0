"""MetaFormer, CVPR 2022, and MetaFormer Baselines, TPAMI 2024."""
