"""Compares a model in minidnn with its original engine, layer by layer."""

from minidnn.comparison.compare import compare
from minidnn.comparison.originals import ComparedValue, Comparison

__all__ = ["ComparedValue", "Comparison", "compare"]
