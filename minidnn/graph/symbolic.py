"""What stands for a tensor while a network is described, and functions of such things.

A function is written once, over values of a graph.  Called with a user's symbols, it is kept until
these have values (:func:`described`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ClassVar

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.expression import Expression, argument, constant, number
from minidnn.graph.operator import Operator
from minidnn.graph.operators import Formula
from minidnn.graph.types import FLOATS, INTEGERS

Body = Callable[..., Expression]

#: Larger whole numbers are not all there as literals of formulas.
_EXACT = 1 << 53


class Symbolic:
    """A tensor that has no numbers yet: a value of a graph, a user's symbol, a parameter."""

    __slots__ = ()
    #: Whether functions must wait until it stands for a value.
    deferred: ClassVar[bool] = False

    @property
    def shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def dtype(self) -> str:
        raise NotImplementedError

    def _value(self) -> Any:
        """The value of the graph that is being recorded."""
        return self

    def _record(self, op: Operator, *operands: Any) -> Any:
        """The output of an operator on values, as a node of the graph that is being recorded."""
        raise NotImplementedError

    def _constant(self, array: np.ndarray, dtype: str) -> Any:
        """A constant of that graph."""
        raise NotImplementedError

    def _defer(
        self,
        label: str,
        function: Callable[..., Any],
        operands: Sequence[Any],
        options: Mapping[str, Any],
    ) -> Any:
        """What stands for ``function(*operands, **options)``, called once there are values."""
        raise NotImplementedError


def apply(
    label: str,
    function: Callable[..., Any],
    operands: Sequence[Any],
    options: Mapping[str, Any],
    on_values: Callable[..., Any],
) -> Any:
    """What ``on_values`` gives, now, or for symbols later by calling ``function`` again.

    ``function`` must be one that pickle finds by its name; ``label`` names it in errors.
    """
    waiting = next((e for e in operands if isinstance(e, Symbolic) and e.deferred), None)
    if waiting is not None:
        return waiting._defer(label, function, operands, options)
    values = (each._value() if isinstance(each, Symbolic) else each for each in operands)
    return on_values(*values, **options)


def described(label: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function of values one of symbols, too."""

    def decorate(on_values: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(on_values)
        def function(*operands: Any, **options: Any) -> Any:
            return apply(label, function, operands, options, on_values)

        return function

    return decorate


def pointwise(
    title: str,
    body: Body,
    *operands: Any,
    dtype: str | None = None,
    op: Operator | None = None,
    fractions: bool = False,
) -> Any:
    """An element-wise formula of values, arrays and numbers that broadcast.

    It is computed in the values' one floating-point dtype.  Of whole numbers it is computed in
    whole numbers, unless there are fractions among the operands or, as ``fractions`` says, among
    the results; then in float32.  A bool is 1 or 0.  ``op`` is an operator of its own that does
    the same for two values of one dtype.
    """
    operands = tuple(_checked(title, each) for each in operands)
    owner = next(each for each in operands if isinstance(each, Symbolic))
    computed = _computed_in(operands, fractions)
    places: list[Expression] = []
    tensors: list[Any] = []
    for operand in operands:
        if isinstance(operand, (bool, int, float)):
            places.append(constant(float(operand)))
            continue
        places.append(argument(len(tensors)))
        tensors.append(_tensor(owner, operand, computed))
    alone = len(tensors) == len(operands)
    if op is not None and alone and all(each.dtype == computed for each in tensors):
        return owner._record(op, *tensors)
    formula = number(body(*places))
    return owner._record(Formula(formula, len(tensors), title=title, dtype=dtype), *tensors)


@described("Cast")
def cast(x: Any, dtype: str) -> Any:
    """A tensor in another dtype; to bool: whether it is not zero."""
    if x.dtype == dtype:
        return x
    if dtype == "bool":
        return pointwise("Cast", lambda a: 1.0 - (a <= 0) * (a >= 0), x, dtype=dtype)
    return pointwise("Cast", lambda a: a, x, dtype=dtype)


def _checked(title: str, operand: Any) -> Any:
    """A symbolic operand, an array of numbers, or a Python number."""
    if isinstance(operand, Symbolic):
        return operand
    plain = isinstance(operand, (bool, int, float, np.generic, np.ndarray))
    array = np.asarray(operand) if plain else None
    if array is None or array.dtype.kind not in "biuf":
        raise GraphError(
            f"cannot compute {title} of a symbolic value and {operand!r:.100} "
            f"({type(operand).__name__}); valid are symbolic values, numbers and NumPy arrays of "
            "numbers"
        )
    whole = array.dtype.kind in "iu" and array.size == 1 and abs(int(array.reshape(-1)[0]))
    return array.item() if array.ndim == 0 and whole < _EXACT else array


def _computed_in(operands: Sequence[Any], fractions: bool) -> str:
    symbolic = [each.dtype for each in operands if isinstance(each, Symbolic)]
    floats = [dtype for dtype in symbolic if dtype in FLOATS]
    if floats:
        return floats[0]  # of several the formula says that they do not fit
    arrays = [each.dtype for each in operands if isinstance(each, np.ndarray)]
    numbers = [each for each in operands if isinstance(each, (int, float))]
    whole = [dtype for dtype in symbolic if dtype in INTEGERS]
    whole += [("int64" if dtype.itemsize > 4 else "int32") for dtype in arrays if dtype.kind != "b"]
    if fractions or not whole or any(dtype.kind == "f" for dtype in arrays):
        return "float32"
    if any(not float(each).is_integer() for each in numbers):
        return "float32"
    return "int64" if "int64" in whole else "int32"


def _tensor(owner: Symbolic, operand: Any, computed: str) -> Any:
    """An operand as a tensor that a formula computed in that dtype takes."""
    if not isinstance(operand, Symbolic):
        dtype = "bool" if operand.dtype.kind == "b" else computed
        return owner._constant(operand, dtype)
    if operand.dtype in INTEGERS and operand.dtype != computed:
        return cast(operand, computed)
    return operand
