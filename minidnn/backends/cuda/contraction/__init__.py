"""Contractions on CUDA: what can compute one, and which of that is fastest."""
