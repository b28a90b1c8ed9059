"""Kernels that are described once and printed for each engine: the level between plans and source
text."""
