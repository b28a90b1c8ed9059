"""Activations that are formulas over one element, with PyTorch's arguments."""

from __future__ import annotations

from math import isfinite
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph import scalar_functions as formulas
from minidnn.graph.expression import Expression, argument
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply
from minidnn.graph.types import plain
from minidnn.layers.activations import OperatorLayer
from minidnn.layers.arguments import check_rank, misfit
from minidnn.layers.layer import Layer

__all__ = [
    "CELU",
    "GLU",
    "SELU",
    "Hardshrink",
    "Hardtanh",
    "LogSigmoid",
    "Mish",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanhshrink",
    "Threshold",
]


class _FormulaLayer(OperatorLayer):
    """A layer without parameters that applies one formula to each element."""

    def __init__(self, body: Expression) -> None:
        super().__init__(ops.Formula(body, title=type(self).__name__))

    __repr__ = Layer.__repr__

    def _number(self, name: str, value: Any, above: float = float("-inf")) -> float:
        """An argument as a float; GraphError unless it is a finite number above ``above``."""
        given = plain(value)
        if type(given) not in (int, float) or not isfinite(given) or not given > above:
            more = "" if above == float("-inf") else f" above {above:g}"
            raise GraphError(
                f"{type(self).__name__}: {name}={value!r:.80}; valid is a number{more}"
            )
        return float(given)


class CELU(_FormulaLayer):
    """``x`` where ``x > 0``, else ``alpha * (exp(x / alpha) - 1)``

    Args:
        alpha: minus the limit far below 0, above 0.
        inplace: ignored, as memory is planned for the whole graph.

    Raises:
        GraphError: ``alpha`` is not valid.

    Source: Barron, arXiv:1704.07483.

    >>> net = Sequential(Conv2d(3, 8, 3), CELU(0.5))
    """

    _shown = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        self.alpha = self._number("alpha", alpha, 0)
        super().__init__(formulas.celu(argument(0), self.alpha))


class SELU(_FormulaLayer):
    """``scale * x`` where ``x > 0``, else ``scale * alpha * (exp(x) - 1)``, by the paper's numbers.

    Args:
        inplace: ignored, as memory is planned for the whole graph.

    Source: Klambauer et al., arXiv:1706.02515.

    >>> net = Sequential(Conv2d(3, 8, 3), SELU())
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(formulas.selu(argument(0)))


class Softplus(_FormulaLayer):
    """``log(1 + exp(beta * x)) / beta``, and ``x`` where ``beta * x > threshold``

    Args:
        beta: how sharp the bend is, above 0.
        threshold: from where on it is a line.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Conv2d(3, 8, 3), Softplus())
    """

    _shown = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta = self._number("beta", beta, 0)
        self.threshold = self._number("threshold", threshold)
        super().__init__(formulas.scaled_softplus(argument(0), self.beta, self.threshold))


class Mish(_FormulaLayer):
    """``x * tanh(log(1 + exp(x)))``

    Args:
        inplace: ignored, as memory is planned for the whole graph.

    Source: Misra, arXiv:1908.08681.

    >>> net = Sequential(Conv2d(3, 8, 3), Mish())
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(formulas.mish(argument(0)))


class Hardtanh(_FormulaLayer):
    """``min(max(x, min_val), max_val)``

    Args:
        min_val, max_val: the limits.
        inplace: ignored, as memory is planned for the whole graph.

    Raises:
        GraphError: the limits are not valid.

    >>> net = Sequential(Conv2d(3, 8, 3), Hardtanh())
    """

    _shown = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        self.min_val = self._number("min_val", min_val)
        self.max_val = self._number("max_val", max_val, self.min_val)
        super().__init__(scalar.clip(argument(0), self.min_val, self.max_val))


class LogSigmoid(_FormulaLayer):
    """``-log(1 + exp(-x))``

    >>> net = Sequential(Linear(8, 16), LogSigmoid())
    """

    def __init__(self) -> None:
        super().__init__(formulas.log_sigmoid(argument(0)))


class Softsign(_FormulaLayer):
    """``x / (1 + |x|)``

    >>> net = Sequential(Conv2d(3, 8, 3), Softsign())
    """

    def __init__(self) -> None:
        super().__init__(argument(0) / (1.0 + abs(argument(0))))


class Tanhshrink(_FormulaLayer):
    """``x - tanh(x)``

    >>> net = Sequential(Conv2d(3, 8, 3), Tanhshrink())
    """

    def __init__(self) -> None:
        super().__init__(argument(0) - scalar.tanh(argument(0)))


class Softshrink(_FormulaLayer):
    """``x - lambd`` above ``lambd``, ``x + lambd`` below ``-lambd``, else 0.

    Args:
        lambd: half the width of what becomes 0, at least 0.

    Raises:
        GraphError: ``lambd`` is not valid.

    >>> net = Sequential(Conv2d(3, 8, 3), Softshrink(0.1))
    """

    _shown = ("lambd",)

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = self._number("lambd", lambd)
        if self.lambd < 0:
            raise GraphError(f"Softshrink: lambd={lambd!r:.80}; valid is a number of at least 0")
        super().__init__(formulas.softshrink(argument(0), self.lambd))


class Hardshrink(_FormulaLayer):
    """``x`` above ``lambd`` and below ``-lambd``, else 0.

    Args:
        lambd: half the width of what becomes 0.

    Raises:
        GraphError: ``lambd`` is no number.

    >>> net = Sequential(Conv2d(3, 8, 3), Hardshrink(0.1))
    """

    _shown = ("lambd",)

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = self._number("lambd", lambd)
        super().__init__(formulas.hardshrink(argument(0), self.lambd))


class Threshold(_FormulaLayer):
    """``x`` where ``x > threshold``, else ``value``

    Args:
        threshold: what elements must be above to stay.
        value: what the others become.
        inplace: ignored, as memory is planned for the whole graph.

    Raises:
        GraphError: an argument is no number.

    >>> net = Sequential(Conv2d(3, 8, 3), Threshold(0.1, 0.0))
    """

    _shown = ("threshold", "value")

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        self.threshold = self._number("threshold", threshold)
        self.value = self._number("value", value)
        super().__init__(formulas.threshold(argument(0), self.threshold, self.value))


class GLU(Layer):
    """``a * sigmoid(b)``, where ``a`` and ``b`` are the halves of the input along an axis.

    Args:
        dim: the axis.

    Raises:
        GraphError: ``dim`` is no int.

    Source: Dauphin et al., arXiv:1612.08083.

    >>> net = Sequential(Conv2d(3, 16, 3), GLU(1))
    """

    _shown = ("dim",)

    def __init__(self, dim: int = -1) -> None:
        self.dim = _whole("GLU", "dim", dim)

    def forward(self, x: Any) -> Any:
        if not isinstance(x, Value) or not -x.type.rank <= self.dim < x.type.rank:
            shown = f"shape {x.shape}" if isinstance(x, Value) else f"{x!r:.80}"
            raise misfit("GLU", f"input has {shown}; valid is one with an axis {self.dim}")
        axis = self.dim % x.type.rank
        size, rest = divmod(x.shape[axis], 2)
        if rest:
            raise misfit("GLU", f"input has shape {x.shape}; valid is an even size of axis {axis}")
        every = (slice(None),) * axis
        halves = x[(*every, slice(0, size))], x[(*every, slice(size, None))]
        gated = ops.Formula(formulas.glu(argument(0), argument(1)), tensors=2, title="GLU")
        return apply(gated, *halves)


class Softmin(Layer):
    """``Softmax`` of ``-x`` along ``dim``.

    Args:
        dim: the axis.

    Raises:
        GraphError: ``dim`` is no int.

    >>> net = Sequential(Linear(8, 10), Softmin(1))
    """

    _shown = ("dim",)

    def __init__(self, dim: int = -1) -> None:
        self.dim = _whole("Softmin", "dim", dim)

    def forward(self, x: Any) -> Any:
        return apply(ops.Softmax(self.dim), apply(ops.Formula(-argument(0), title="Neg"), x))


class Softmax2d(Layer):
    """``Softmax`` over the channels of (N, C, H, W) or (C, H, W).

    >>> net = Sequential(Conv2d(3, 8, 3), Softmax2d())
    """

    def __init__(self) -> None:
        pass

    def forward(self, x: Any) -> Any:
        check_rank("Softmax2d", x, 3, 4)
        return apply(ops.Softmax(-3), x)


def _whole(owner: str, name: str, value: Any) -> int:
    """An argument that is an int; else GraphError."""
    given = plain(value)
    if type(given) is not int:
        raise GraphError(f"{owner}: {name}={value!r:.80}; valid is an int")
    return given
