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
    """``a + b``, broadcasting as NumPy does.

    >>> class Residual(Layer):
    ...     def __init__(self, body):
    ...         self.body, self.add = body, Add()
    ...     def forward(self, x):
    ...         return self.add(x, self.body(x))
    """

    def __init__(self) -> None:
        super().__init__(ops.Add())


class Mul(OperatorLayer):
    """``a * b``, broadcasting as NumPy does.

    >>> class Gated(Layer):
    ...     def __init__(self, body, gate):
    ...         self.body, self.gate, self.mul = body, gate, Mul()
    ...     def forward(self, x):
    ...         return self.mul(self.body(x), self.gate(x))
    """

    def __init__(self) -> None:
        super().__init__(ops.Mul())


class Concat(OperatorLayer):
    """Joins its inputs along ``dim``: ``Concat()(a, b, c)``.

    >>> x = Input((3, 32, 32))
    >>> net = Model(x, Concat()(Conv2d(3, 8, 1)(x), Conv2d(3, 8, 3, padding=1)(x)))
    """

    def __init__(self, dim: int = 1) -> None:
        super().__init__(ops.Concat(plain(dim)))


class Flatten(OperatorLayer):
    """Joins the axes from ``start_dim`` to ``end_dim``, both included, into one.

    >>> net = Sequential(Conv2d(3, 8, 3), Flatten(), Linear(8 * 30 * 30, 10))
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__(ops.Flatten(plain(start_dim), plain(end_dim)))


class Reshape(OperatorLayer):
    """Gives each sample another shape. The batch stays as it is.

    Args:
        shape: the sizes, one by one or as a sequence; one of them may be -1, which is what is left.

    Raises:
        GraphError: a size is no whole number, or more than one is -1.

    >>> net = Sequential(Conv2d(3, 64, 3), Reshape(64, -1))
    """

    def __init__(self, *shape: int | Sequence[int]) -> None:
        given = plain(shape)
        sizes = given[0] if len(given) == 1 and isinstance(given[0], Sequence) else given
        if not all(type(size) is int for size in sizes):
            raise GraphError(f"Reshape: shape={sizes!r}; valid are ints, one of them may be -1")
        super().__init__(ops.Reshape(tuple(cast("Sequence[int]", sizes))))


class Softmax(OperatorLayer):
    """``exp(x - max) / sum(exp(x - max))`` along ``dim``.

    >>> net = Sequential(Linear(8, 10), Softmax(1))
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__(ops.Softmax(plain(dim)))


class LogSoftmax(OperatorLayer):
    """The logarithm of :class:`Softmax`; the arguments are those of :class:`Softmax`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__(ops.LogSoftmax(plain(dim)))
