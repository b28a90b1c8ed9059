"""A user's own element-wise layer, written as one Python expression."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument, constant
from minidnn.graph.trace import apply
from minidnn.layers.layer import Layer
from minidnn.layers.parameter import Parameter

__all__ = ["Elementwise"]


class Elementwise(Layer):
    """An element-wise layer described by a function of scalar expressions.

    The function's first arguments are the layer's inputs.  Those named in ``parameters`` are
    the layer's own: one number per channel, kept in its state dict under that name.  Others
    that have a default keep it.  The function runs once, when the layer is made; it may use
    Python arithmetic, comparisons and the functions of ``minidnn.scalar``.  The layer fuses
    like the built-in ones.

    Args:
        function: of scalar expressions, which gives one.
        name: what reports call it; by default the function's name.
        parameters: arrays (C,) of the layer's own, by the function's names of them.

    Raises:
        GraphError: the function takes other arguments, decides by ``if``, or gives no
            expression; or a parameter is no array of one axis.

    >>> from minidnn import scalar
    >>> mish = Elementwise(lambda x: x * scalar.tanh(scalar.log1p(scalar.exp(x))))
    >>> prelu = Elementwise(lambda x, slope: scalar.where(x > 0, x, slope * x),
    ...                     slope=np.full(64, 0.25))
    """

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, **parameters: Any
    ) -> None:
        if name is not None and not name.isidentifier():
            raise GraphError(f"Elementwise: name={name!r}; valid is a Python identifier")
        label = name or str(getattr(function, "__name__", ""))
        title = label if label.isidentifier() else "Elementwise"
        if not callable(function):
            raise GraphError(
                f"Elementwise: function={function!r:.80} is a {type(function).__name__}; valid is "
                "a function of scalar expressions, such as lambda x: x * 2"
            )
        signature = inspect.signature(function).parameters
        taken = [
            p for p, kind in signature.items() if kind.default is kind.empty or p in parameters
        ]
        unknown = [p for p in parameters if p not in signature]
        tensors = [p for p in taken if p not in parameters]
        if unknown or not tensors or list(signature)[: len(tensors)] != tensors:
            raise GraphError(
                f"Elementwise {title}: the function takes ({', '.join(signature)}), parameters "
                f"are ({', '.join(parameters)}); valid are inputs first, at least one, then the "
                "parameters"
            )
        self.parameter_names = taken[len(tensors) :]
        for parameter in self.parameter_names:
            setattr(self, parameter, self._parameter(title, parameter, parameters[parameter]))
        places = {p: argument(i) for i, p in enumerate(taken)}
        try:
            body = function(
                *(places[p] for p in tensors), **{p: places[p] for p in self.parameter_names}
            )
        except TypeError as error:
            raise GraphError(
                f"Elementwise {title}: the function failed on scalar expressions: {error}; "
                "valid are Python arithmetic, comparisons and the functions of minidnn.scalar"
            ) from error
        if isinstance(body, (int, float)) and not isinstance(body, bool):
            body = constant(body)
        if not isinstance(body, Expression):
            raise GraphError(
                f"Elementwise {title}: the function gave {body!r:.80}; valid is an expression of "
                "its arguments"
            )
        self.op = ops.Formula(scalar.number(body), len(tensors), len(self.parameter_names), title)

    def _parameter(self, title: str, name: str, given: Any) -> Parameter:
        if hasattr(Layer, name) or name in ("op", "parameter_names"):
            raise GraphError(
                f"Elementwise {title}: parameter {name!r} would hide an attribute of the layer; "
                "give it another name"
            )
        try:
            array = np.array(given, np.float32)
        except (TypeError, ValueError) as error:
            raise GraphError(
                f"Elementwise {title}: parameter {name}={given!r:.80} is no array of numbers: "
                f"{error}"
            ) from None
        if array.ndim != 1:
            raise GraphError(
                f"Elementwise {title}: parameter {name} has shape {array.shape}; "
                "valid is one number per channel"
            )
        return Parameter(array.shape, partial(_given, array))

    def forward(self, *inputs: Any) -> Any:
        return apply(self.op, *inputs, *self.constants(*self.parameter_names))

    def __repr__(self) -> str:
        return str(self.op)


def _given(array: np.ndarray, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return array.copy()  # whoever changes the parameter does not change how it is drawn
