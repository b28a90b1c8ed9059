"""Element-wise layers: activations, and a user's own, written as one Python expression.

Activations have PyTorch's arguments; formulas are in graph/operators/activations.py.  ``inplace``
is accepted for compatibility and means nothing here: memory is planned for the whole graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument, constant, where
from minidnn.graph.operator import Operator
from minidnn.graph.trace import apply
from minidnn.layers.arguments import check_count
from minidnn.layers.layer import Layer
from minidnn.layers.parameter import Parameter, filled

__all__ = [
    "ELU",
    "GELU",
    "Elementwise",
    "Hardsigmoid",
    "Hardswish",
    "Identity",
    "LeakyReLU",
    "PReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Tanh",
]


class OperatorLayer(Layer):
    """A layer without parameters that adds one operator."""

    def __init__(self, op: Operator) -> None:
        self.op = op

    def forward(self, *inputs: Any) -> Any:
        return apply(self.op, *inputs)

    def __repr__(self) -> str:
        return str(self.op)


class Identity(OperatorLayer):
    """Gives its input.  Takes and ignores any arguments.

    >>> net = Sequential(Conv2d(3, 8, 3), Identity())
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(ops.Identity())


class ReLU(OperatorLayer):
    """``max(x, 0)``

    Args:
        inplace: ignored, as memory is planned for the whole graph.

    >>> net = Sequential(Conv2d(3, 8, 3), ReLU())
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(ops.ReLU())


class ReLU6(OperatorLayer):
    """``min(max(x, 0), 6)``

    Args:
        inplace: ignored, as memory is planned for the whole graph.

    >>> net = Sequential(Conv2d(3, 8, 3), ReLU6())
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(ops.ReLU6())


class LeakyReLU(OperatorLayer):
    """``x`` where ``x > 0``, else ``negative_slope * x``

    Args:
        negative_slope: the slope below 0.
        inplace: ignored, as memory is planned for the whole graph.

    >>> net = Sequential(Conv2d(3, 8, 3), LeakyReLU(0.1))
    """

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(ops.LeakyReLU(negative_slope))


class PReLU(Layer):
    """``x`` where ``x > 0``, else ``weight * x``.

    The parameter is ``weight`` (num_parameters,).

    Args:
        num_parameters: 1, or the number of channels, each of which then has a slope of its own.
        init: what ``weight`` is at first.

    Raises:
        GraphError: ``num_parameters`` is no count.

    Source: He et al., arXiv:1502.01852.

    >>> net = Sequential(Conv2d(3, 8, 3), PReLU(8))
    """

    _shown = ("num_parameters",)

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        self.num_parameters = check_count("PReLU", "num_parameters", num_parameters)
        if isinstance(init, bool) or not isinstance(init, (int, float)):
            raise GraphError(f"PReLU: init={init!r:.80}; valid is a number")
        self.weight = Parameter((num_parameters,), filled(init))

    def forward(self, x: Any) -> Any:
        is_shared = self.num_parameters == 1
        tensors, vectors = (2, 0) if is_shared else (1, 1)
        value, slope = argument(0), argument(1)
        body = where(value > 0.0, value, slope * value)
        return apply(ops.Formula(body, tensors, vectors, "PReLU"), x, *self.constants("weight"))


class ELU(OperatorLayer):
    """``x`` where ``x > 0``, else ``alpha * (exp(x) - 1)``

    Args:
        alpha: minus the limit far below 0.
        inplace: ignored, as memory is planned for the whole graph.

    Source: Clevert, Unterthiner and Hochreiter, arXiv:1511.07289.

    >>> net = Sequential(Conv2d(3, 8, 3), ELU(alpha=0.5))
    """

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(ops.ELU(alpha))


class Sigmoid(OperatorLayer):
    """``1 / (1 + exp(-x))``

    >>> net = Sequential(Conv2d(3, 8, 3), Sigmoid())
    """

    def __init__(self) -> None:
        super().__init__(ops.Sigmoid())


class Tanh(OperatorLayer):
    """``tanh(x)``

    >>> net = Sequential(Conv2d(3, 8, 3), Tanh())
    """

    def __init__(self) -> None:
        super().__init__(ops.Tanh())


class GELU(OperatorLayer):
    """``x * Phi(x)``, where ``Phi`` is the distribution of normal numbers.

    Args:
        approximate: "none", or "tanh" for the approximation by that function.

    Raises:
        GraphError: ``approximate`` is neither.

    Source: Hendrycks and Gimpel, arXiv:1606.08415.

    >>> net = Sequential(Linear(8, 16), GELU())
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__(ops.GELU(approximate))


class SiLU(OperatorLayer):
    """``x * sigmoid(x)``

    Args:
        inplace: ignored, as memory is planned for the whole graph.

    >>> net = Sequential(Conv2d(3, 8, 3), SiLU())
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(ops.SiLU())


class Hardswish(OperatorLayer):
    """``x * min(max(x + 3, 0), 6) / 6``

    Args:
        inplace: ignored, as memory is planned for the whole graph.

    >>> net = Sequential(Conv2d(3, 8, 3), Hardswish())
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(ops.Hardswish())


class Hardsigmoid(OperatorLayer):
    """``min(max(x + 3, 0), 6) / 6``

    Args:
        inplace: ignored, as memory is planned for the whole graph.

    >>> net = Sequential(Conv2d(3, 8, 3), Hardsigmoid())
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(ops.Hardsigmoid())


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
        used = [p for p, kind in signature.items() if kind.default is kind.empty or p in parameters]
        unknown = [p for p in parameters if p not in signature]
        tensors = [p for p in used if p not in parameters]
        if unknown or not tensors or list(signature)[: len(tensors)] != tensors:
            raise GraphError(
                f"Elementwise {title}: the function takes ({', '.join(signature)}), parameters "
                f"are ({', '.join(parameters)}); valid are inputs first, at least one, then the "
                "parameters"
            )
        self.parameter_names = used[len(tensors) :]
        for parameter in self.parameter_names:
            setattr(self, parameter, self._parameter(title, parameter, parameters[parameter]))
        symbols = {p: argument(i) for i, p in enumerate(used)}
        try:
            body = function(
                *(symbols[p] for p in tensors), **{p: symbols[p] for p in self.parameter_names}
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
        """The parameter of a name, from an array; GraphError if name or array is not valid."""
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
