"""Activation layers, with PyTorch's arguments; formulas are in graph/operators/activations.py.

``inplace`` is accepted for compatibility and means nothing here: memory is planned for the
whole graph.
"""

from __future__ import annotations

from typing import Any

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, where
from minidnn.graph.operator import Operator
from minidnn.graph.trace import apply
from minidnn.layers.arguments import check_count
from minidnn.layers.layer import Layer
from minidnn.layers.parameter import Parameter, filled

__all__ = [
    "ELU",
    "GELU",
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
    """A layer without parameters: one operator."""

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

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        self.num_parameters = check_count("PReLU", "num_parameters", num_parameters)
        if isinstance(init, bool) or not isinstance(init, (int, float)):
            raise GraphError(f"PReLU: init={init!r:.80}; valid is a number")
        self.weight = Parameter((num_parameters,), filled(init))

    def forward(self, x: Any) -> Any:
        one = self.num_parameters == 1
        tensors, vectors = (2, 0) if one else (1, 1)
        value, slope = argument(0), argument(1)
        body = where(value > 0.0, value, slope * value)
        return apply(ops.Formula(body, tensors, vectors, "PReLU"), x, *self.constants("weight"))

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


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
