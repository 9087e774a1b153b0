"""Kernels: each has a plain reference beside it, and runs as that reference where there is no GPU."""
