"""RIFormer, CVPR 2023."""
