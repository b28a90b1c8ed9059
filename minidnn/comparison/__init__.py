"""Comparing a model in minidnn with the engine that it was made for, layer by layer."""

from minidnn.comparison.compare import compare
from minidnn.comparison.report import Comparison, Layer

__all__ = ["Comparison", "Layer", "compare"]
