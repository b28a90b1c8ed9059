"""A user's own element-wise layer, written as one Python expression."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument, constant
from minidnn.graph.trace import apply
from minidnn.layers.layer import Layer, Parameter

__all__ = ["Elementwise"]


class Elementwise(Layer):
    """An element-wise layer described by a function of scalar expressions.

    The function's first arguments are the layer's inputs.  Those named in ``parameters`` are
    the layer's own: one number per channel, kept in its state dict under that name.  The
    function runs once, when the layer is made; it may use Python arithmetic, comparisons and
    the functions of ``minidnn.scalar``.  The layer fuses like the built-in ones.

    >>> from minidnn import scalar
    >>> mish = Elementwise(lambda x: x * scalar.tanh(scalar.log1p(scalar.exp(x))))
    >>> prelu = Elementwise(lambda x, slope: scalar.where(x > 0, x, slope * x),
    ...                     slope=np.full(64, 0.25))
    """

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, **parameters: Any
    ) -> None:
        label: str = name or getattr(function, "__name__", "")
        title = label if label.isidentifier() else "Elementwise"
        taken = list(inspect.signature(function).parameters)
        unknown = [p for p in parameters if p not in taken]
        tensors = [p for p in taken if p not in parameters]
        if unknown or not tensors or taken[: len(tensors)] != tensors:
            raise GraphError(
                f"Elementwise {title}: the function takes ({', '.join(taken)}), parameters are "
                f"({', '.join(parameters)}); valid are inputs first, at least one, then exactly "
                "the parameters"
            )
        self.parameter_names = taken[len(tensors) :]
        for parameter in self.parameter_names:
            array = np.array(parameters[parameter], np.float32)
            if array.ndim != 1:
                raise GraphError(
                    f"Elementwise {title}: parameter {parameter} has shape {array.shape}; "
                    "valid is one number per channel"
                )
            setattr(self, parameter, Parameter(array.shape, _given(array)))
        body = function(*map(argument, range(len(taken))))
        if isinstance(body, (int, float)):
            body = constant(body)
        if not isinstance(body, Expression):
            raise GraphError(
                f"Elementwise {title}: the function gave {body!r:.80}; valid is an expression of "
                "its arguments"
            )
        self.op = ops.Formula(body, len(tensors), len(self.parameter_names), title)

    def forward(self, *inputs: Any) -> Any:
        return apply(self.op, *inputs, *self.constants(*self.parameter_names))

    def __repr__(self) -> str:
        return str(self.op)


def _given(array: np.ndarray) -> Callable[..., np.ndarray]:
    return lambda random, shape: array
