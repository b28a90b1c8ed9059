"""Layers that join, reshape and normalize whole values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.layers.activations import OperatorLayer

__all__ = ["Add", "Concat", "Flatten", "LogSoftmax", "Mul", "Reshape", "Softmax"]


class Add(OperatorLayer):
    """``a + b``, broadcasting as NumPy does."""

    def __init__(self) -> None:
        super().__init__(ops.Add())


class Mul(OperatorLayer):
    """``a * b``, broadcasting as NumPy does."""

    def __init__(self) -> None:
        super().__init__(ops.Mul())


class Concat(OperatorLayer):
    """Joins its inputs along ``dim``: ``Concat()(a, b, c)``."""

    def __init__(self, dim: int = 1) -> None:
        super().__init__(ops.Concat(dim))


class Flatten(OperatorLayer):
    """Joins the axes from ``start_dim`` to ``end_dim``, both included, into one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__(ops.Flatten(start_dim, end_dim))


class Reshape(OperatorLayer):
    """Gives each sample the shape ``shape``, in which one size may be -1.

    The batch stays as it is: ``Reshape(64, -1)`` makes (N, 64, F) of (N, C, H, W).
    """

    def __init__(self, *shape: int | Sequence[int]) -> None:
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        if not all(type(size) is int for size in sizes):
            raise GraphError(f"Reshape: shape={sizes!r}; valid are ints, one of them may be -1")
        super().__init__(ops.Reshape(tuple(cast("Sequence[int]", sizes))))


class Softmax(OperatorLayer):
    """``exp(x - max) / sum(exp(x - max))`` along ``dim``."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__(ops.Softmax(dim))


class LogSoftmax(OperatorLayer):
    """The logarithm of :class:`Softmax`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__(ops.LogSoftmax(dim))
