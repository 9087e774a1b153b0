"""Pieces of kernels that two owners share."""
