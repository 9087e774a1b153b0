"""Kernels, each beside its plain-torch reference; used only where they win.

Those written in Triton stand in modules of their own, so that everything else works where Triton is not installed.
"""
