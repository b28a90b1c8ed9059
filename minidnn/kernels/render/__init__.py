"""Prints kernels as source text, for each engine."""
