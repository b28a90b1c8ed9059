"""Symbolic tensors, which stand for data while a network is described, and functions of them.

A function is written once, over values of a graph.  Called with a user's symbols, the call is
deferred until these have values (:func:`described`).
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

#: Formulas hold constants in float64, which represents every integer below that.
_EXACT = 1 << 53


class Symbolic:
    """A tensor without data: a value of a graph, a user's symbol, or a parameter."""

    __slots__ = ()
    #: Whether a function of it is deferred until it has a value.
    deferred: ClassVar[bool] = False

    @property
    def shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def dtype(self) -> str:
        raise NotImplementedError

    def _value(self) -> Any:
        """The value that stands for this tensor in the graph that is being recorded."""
        return self

    def _record(self, op: Operator, *operands: Any) -> Any:
        """Adds a node to the graph that is being recorded, and returns its output."""
        raise NotImplementedError

    def _constant(self, array: np.ndarray, dtype: str) -> Any:
        """A constant of that graph, with the elements of ``array`` in ``dtype``."""
        raise NotImplementedError

    def _defer(
        self,
        label: str,
        function: Callable[..., Any],
        operands: Sequence[Any],
        options: Mapping[str, Any],
    ) -> Any:
        """The symbol that stands for ``function(*operands, **options)``, a deferred call."""
        raise NotImplementedError


def apply(
    label: str,
    function: Callable[..., Any],
    operands: Sequence[Any],
    options: Mapping[str, Any],
    on_values: Callable[..., Any],
) -> Any:
    """Calls ``on_values`` now, or, if an operand is deferred, ``function`` once it has a value.

    Pickle must find ``function`` by its name; ``label`` names it in errors.
    """
    deferred = next((e for e in operands if isinstance(e, Symbolic) and e.deferred), None)
    if deferred is not None:
        return deferred._defer(label, function, operands, options)
    values = (each._value() if isinstance(each, Symbolic) else each for each in operands)
    return on_values(*values, **options)


def described(label: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that makes a function of values accept symbols, too, by deferring its calls."""

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
    """Records an element-wise formula of values, arrays and numbers that broadcast.

    It is computed in the values' one floating-point dtype.  If all values are integers, it is
    computed in integers, or in float32 if an operand is a fraction or, as ``fractions`` says,
    results are.  A bool is 1 or 0.  ``op`` is a built-in operator that is recorded in place of the
    formula if all operands are tensors of one dtype.
    """
    operands = tuple(_checked(title, each) for each in operands)
    owner = next(each for each in operands if isinstance(each, Symbolic))
    computed = _computed_in(operands, fractions)
    arguments: list[Expression] = []
    tensors: list[Any] = []
    for operand in operands:
        if isinstance(operand, (bool, int, float)):
            arguments.append(constant(float(operand)))
            continue
        arguments.append(argument(len(tensors)))
        tensors.append(_tensor(owner, operand, computed))
    all_tensors = len(tensors) == len(operands)
    if op is not None and all_tensors and all(each.dtype == computed for each in tensors):
        return owner._record(op, *tensors)
    formula = number(body(*arguments))
    return owner._record(Formula(formula, len(tensors), title=title, dtype=dtype), *tensors)


@described("Cast")
def cast(x: Any, dtype: str) -> Any:
    """A tensor cast to another dtype; to bool: whether an element is not zero."""
    if x.dtype == dtype:
        return x
    if dtype == "bool":
        return pointwise("Cast", lambda a: 1.0 - (a <= 0) * (a >= 0), x, dtype=dtype)
    return pointwise("Cast", lambda a: a, x, dtype=dtype)


def _checked(title: str, operand: Any) -> Any:
    """The operand as a symbolic tensor, an array or a Python number; GraphError for others."""
    if isinstance(operand, Symbolic):
        return operand
    is_number = isinstance(operand, (bool, int, float, np.generic, np.ndarray))
    array = np.asarray(operand) if is_number else None
    if array is None or array.dtype.kind not in "biuf":
        raise GraphError(
            f"cannot compute {title} of a symbolic value and {operand!r:.100} "
            f"({type(operand).__name__}); valid are symbolic values, numbers and NumPy arrays of "
            "numbers"
        )
    magnitude = array.dtype.kind in "iu" and array.size == 1 and abs(int(array.reshape(-1)[0]))
    return array.item() if array.ndim == 0 and magnitude < _EXACT else array


def _computed_in(operands: Sequence[Any], fractions: bool) -> str:
    """The dtype that :func:`pointwise` computes in: a float dtype, int32 or int64."""
    symbolic = [each.dtype for each in operands if isinstance(each, Symbolic)]
    floats = [dtype for dtype in symbolic if dtype in FLOATS]
    if floats:
        return floats[0]  # if there are several, the formula raises an error
    arrays = [each.dtype for each in operands if isinstance(each, np.ndarray)]
    numbers = [each for each in operands if isinstance(each, (int, float))]
    integers = [dtype for dtype in symbolic if dtype in INTEGERS]
    integers += [
        ("int64" if dtype.itemsize > 4 else "int32") for dtype in arrays if dtype.kind != "b"
    ]
    if fractions or not integers or any(dtype.kind == "f" for dtype in arrays):
        return "float32"
    if any(not float(each).is_integer() for each in numbers):
        return "float32"
    return "int64" if "int64" in integers else "int32"


def _tensor(owner: Symbolic, operand: Any, computed: str) -> Any:
    """An operand as a tensor for a formula that is computed in the dtype ``computed``."""
    if not isinstance(operand, Symbolic):
        dtype = "bool" if operand.dtype.kind == "b" else computed
        return owner._constant(operand, dtype)
    if operand.dtype in INTEGERS and operand.dtype != computed:
        return cast(operand, computed)
    return operand
