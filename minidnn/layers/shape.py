"""Layers that join, reshape and normalize whole values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.plain import plain
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
        super().__init__(ops.Concat(plain(dim)))


class Flatten(OperatorLayer):
    """Joins the axes from ``start_dim`` to ``end_dim``, both included, into one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__(ops.Flatten(plain(start_dim), plain(end_dim)))


class Reshape(OperatorLayer):
    """Gives each sample the shape ``shape``, in which one size may be -1.

    The batch stays as it is: ``Reshape(64, -1)`` makes (N, 64, F) of (N, C, H, W).
    """

    def __init__(self, *shape: int | Sequence[int]) -> None:
        given = plain(shape)
        sizes = given[0] if len(given) == 1 and isinstance(given[0], Sequence) else given
        if not all(type(size) is int for size in sizes):
            raise GraphError(f"Reshape: shape={sizes!r}; valid are ints, one of them may be -1")
        super().__init__(ops.Reshape(tuple(cast("Sequence[int]", sizes))))


class Softmax(OperatorLayer):
    """``exp(x - max) / sum(exp(x - max))`` along ``dim``."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__(ops.Softmax(plain(dim)))


class LogSoftmax(OperatorLayer):
    """The logarithm of :class:`Softmax`; the arguments are those of that."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__(ops.LogSoftmax(plain(dim)))
