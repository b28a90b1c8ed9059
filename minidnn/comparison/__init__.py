"""Comparing a model in minidnn with the engine that it was made for, layer by layer."""

from minidnn.comparison.compare import compare
from minidnn.comparison.originals import ComparedValue, Comparison

__all__ = ["ComparedValue", "Comparison", "compare"]
