"""Contractions by dot products: bfloat16 pairs summed in float32; :mod:`..vnni` builds on it."""
