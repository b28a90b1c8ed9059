"""Normalization by the statistics of groups of an image's channels, of operators that there are."""

from __future__ import annotations

from math import prod

from minidnn.graph.ir import Value
from minidnn.graph.operators import LayerNorm, View
from minidnn.graph.trace import apply


def normalize_groups(x: Value, groups: int, eps: float) -> Value:
    """``(x - mean) / sqrt(var + eps)`` of (N, C, ...), over each of the groups of channels, which
    must divide C, of each image."""
    batch, channels, *plane = x.shape
    rows = apply(View((batch, groups, channels // groups * prod(plane))), x)
    return apply(View(x.shape), apply(LayerNorm(1, eps), rows))
