"""Scalar expressions: the math of an element-wise operator over one element.

An expression is written once, by ordinary Python arithmetic on :class:`Expression` objects.
NumPy evaluates it (:func:`evaluate`), every code generator prints it from the same
:func:`linearize`d form, and whether a multiply-add is fused stands in it (:func:`fma`), not
in a compiler's mood.

>>> x, slope = argument(0), argument(1)
>>> str(where(x > 0, x, slope * x))
'where(x0 > 0.0, x0, x1 * x0)'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minidnn.errors import GraphError


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """A node of a scalar expression.

    Expressions are equal if they compute the same by the same operations, whether or not they share
    subexpressions.

    Args:
        op: a key of :data:`SCALAR_OPS`, or "argument" or "constant".
        operands: what it works on.
        value: the index of an argument, or the number of a constant.
    """

    op: str
    operands: tuple[Expression, ...] = ()
    value: float | int | None = None

    # By straight-line code: comparing trees takes exponential time where subexpressions are
    # shared.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Expression):
            return NotImplemented
        return self is other or linearize(self) == linearize(other)

    def __hash__(self) -> int:
        return hash(linearize(self))

    def __add__(self, other: Operand) -> Expression:
        return apply("add", self, other)

    def __radd__(self, other: Operand) -> Expression:
        return apply("add", other, self)

    def __sub__(self, other: Operand) -> Expression:
        return apply("sub", self, other)

    def __rsub__(self, other: Operand) -> Expression:
        return apply("sub", other, self)

    def __mul__(self, other: Operand) -> Expression:
        return apply("mul", self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return apply("mul", other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return apply("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return apply("div", other, self)

    def __pow__(self, other: Operand) -> Expression:
        return self * self if other == 2 else apply("pow", self, other)

    def __rpow__(self, other: Operand) -> Expression:
        return apply("pow", other, self)

    def __neg__(self) -> Expression:
        return apply("neg", self)

    def __abs__(self) -> Expression:
        return apply("abs", self)

    def __lt__(self, other: Operand) -> Expression:
        return apply("lt", self, other)

    def __le__(self, other: Operand) -> Expression:
        return apply("le", self, other)

    def __gt__(self, other: Operand) -> Expression:
        return apply("gt", self, other)

    def __ge__(self, other: Operand) -> Expression:
        return apply("ge", self, other)

    def __bool__(self) -> bool:
        raise GraphError(
            f"the scalar expression {self} has no truth value while it is being described; "
            "choose between two expressions with where(condition, a, b)"
        )

    def __str__(self) -> str:
        if self.op == "argument":
            return f"x{self.value}"
        if self.op == "constant":
            return repr(self.value)
        code = linearize(self)
        if _tree_size(code) > _MOST_SHOWN:
            return f"{self.op}(... {len(code)} operations ...)"
        inner = [f"({e})" if e.op in _SYMBOLS else str(e) for e in self.operands]
        if self.op in _SYMBOLS:
            return f" {_SYMBOLS[self.op]} ".join(inner)
        return f"{self.op}({', '.join(map(str, self.operands))})"


Operand = Expression | float | int
_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_SYMBOLS |= _COMPARISONS
#: Expressions that would take more nodes than this as a tree are not written out.
_MOST_SHOWN = 500


def _fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` rounded once, for float16 and float32.

    The product is exact in float64.  The sum is rounded to odd there, so that rounding it
    again to float32 gives what one rounding would have given (Boldo and Melquiond, "Emulation
    of a FMA and correctly rounded sums", IEEE Trans. Computers 57(4), 2008).  float64 operands
    are rounded twice: the oracle does not need more.
    """
    dtype = np.result_type(a, b, c)
    if dtype == np.float64:
        return a * b + c
    product = np.multiply(a, b, dtype=np.float64)
    addend = np.asarray(c, dtype=np.float64)
    total = product + addend
    rounded = np.array(total)
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    bits = rounded.view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & ((bits & 1) == 0)
    away = (error > 0) == (total > 0)
    bits += np.where(inexact, np.where(away, 1, -1), 0)
    return rounded.astype(dtype)


def _divide(a: Any, b: Any) -> Any:
    """``a / b``; of whole numbers the quotient rounded towards zero, and 0 for divisor 0."""
    dtype = np.result_type(a, b)
    if dtype.kind != "i":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    inexact = (quotient * b != a) & (b != 0)
    return np.asarray(quotient + (inexact & ((a < 0) != (b < 0))), dtype)


def _power(a: Any, b: Any) -> Any:
    """``a ** b``; of whole numbers rounded towards zero, and 0 for 0 to a negative power."""
    dtype = np.result_type(a, b)
    if dtype.kind != "i":
        return np.power(a, b)
    a, b = np.broadcast_arrays(a, b)
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(b >= 0, np.power(a, np.maximum(b, 0)), inverse).astype(dtype)


_erf = np.frompyfunc(math.erf, 1, 1)


def _numpy_erf(x: Any) -> Any:
    return np.asarray(_erf(x), np.asarray(x).dtype)


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """What the system knows about one scalar operation.

    Args:
        arity: how many operands it takes.
        evaluate: it as a function of NumPy's arrays.
        operations: how many additions one evaluation takes as long as.
    """

    arity: int
    evaluate: Callable[..., Any]
    #: Operations it counts as in the cost model (a transcendental is a short polynomial).
    operations: int = 1


SCALAR_OPS: dict[str, ScalarOp] = {
    "add": ScalarOp(2, np.add),
    "sub": ScalarOp(2, np.subtract),
    "mul": ScalarOp(2, np.multiply),
    "div": ScalarOp(2, _divide, 4),
    "fma": ScalarOp(3, _fma, 1),
    "neg": ScalarOp(1, np.negative),
    "abs": ScalarOp(1, np.abs),
    # NaN in either operand gives NaN, as in IEEE 754-2019 maximum/minimum.
    "maximum": ScalarOp(2, np.maximum),
    "minimum": ScalarOp(2, np.minimum),
    "floor": ScalarOp(1, np.floor),
    # Halves to even.
    "round": ScalarOp(1, np.rint),
    "sqrt": ScalarOp(1, np.sqrt, 4),
    "exp": ScalarOp(1, np.exp, 10),
    "expm1": ScalarOp(1, np.expm1, 12),
    "log": ScalarOp(1, np.log, 12),
    "log1p": ScalarOp(1, np.log1p, 14),
    "tanh": ScalarOp(1, np.tanh, 14),
    "erf": ScalarOp(1, _numpy_erf, 16),
    "pow": ScalarOp(2, _power, 24),
    "sin": ScalarOp(1, np.sin, 50),
    "cos": ScalarOp(1, np.cos, 50),
    "atan": ScalarOp(1, np.arctan, 24),
    "lt": ScalarOp(2, np.less),
    "le": ScalarOp(2, np.less_equal),
    "gt": ScalarOp(2, np.greater),
    "ge": ScalarOp(2, np.greater_equal),
    "where": ScalarOp(3, np.where),
}


#: Operations that whole numbers have, too.
INTEGER_OPS = frozenset(
    ("add", "sub", "mul", "div", "pow", "neg", "abs", "maximum", "minimum", *_COMPARISONS, "where")
)


def argument(index: int) -> Expression:
    """The ``index``-th operand of the operator."""
    return Expression("argument", value=index)


def constant(value: float) -> Expression:
    """The expression of a number.

    Args:
        value: the number; float32 kernels round it once.
    """
    return Expression("constant", value=float(value))


def apply(op: str, *operands: Operand) -> Expression:
    """The expression ``op(*operands)``; numbers become constants, and comparisons become 1 or
    0 where a number is needed."""
    arity = SCALAR_OPS[op].arity
    if len(operands) != arity:
        raise GraphError(f"scalar operation {op!r} takes {arity} operands, got {len(operands)}")
    lifted = [_lift(op, operand) for operand in operands]
    if op != "where":
        return Expression(op, tuple(map(number, lifted)))
    condition, *choices = lifted
    if condition.op not in _COMPARISONS:
        raise GraphError(
            f"the condition of where is {condition}; valid is a comparison by <, <=, > or >="
        )
    return Expression(op, (condition, *map(number, choices)))


def _lift(op: str, operand: Operand) -> Expression:
    if isinstance(operand, Expression):
        return operand
    if isinstance(operand, (int, float, np.integer, np.floating)) and not isinstance(operand, bool):
        return constant(float(operand))
    hint = "; == and != compare descriptions, not numbers" if isinstance(operand, bool) else ""
    raise GraphError(
        f"operand {operand!r} of scalar operation {op!r} is a {type(operand).__name__}; "
        f"valid are numbers and scalar expressions{hint}"
    )


def number(expression: Expression) -> Expression:
    """The expression itself, or 1 and 0 for a comparison that holds or not."""
    if expression.op not in _COMPARISONS:
        return expression
    return Expression("where", (expression, constant(1.0), constant(0.0)))


def maximum(a: Operand, b: Operand) -> Expression:
    """The larger one of ``a`` and ``b``; NaN if one of them is."""
    return apply("maximum", a, b)


def minimum(a: Operand, b: Operand) -> Expression:
    """The smaller one of ``a`` and ``b``; NaN if one of them is."""
    return apply("minimum", a, b)


def clip(x: Operand, low: float, high: float) -> Expression:
    """``x`` within ``low`` and ``high``."""
    return minimum(maximum(x, low), high)


def fma(a: Operand, b: Operand, c: Operand) -> Expression:
    """``a * b + c``, rounded once."""
    return apply("fma", a, b, c)


def where(condition: Expression, a: Operand, b: Operand) -> Expression:
    """``a`` where ``condition`` (a comparison) holds, else ``b``."""
    return apply("where", condition, a, b)


def floor(x: Operand) -> Expression:
    """The largest whole number that is at most ``x``."""
    return apply("floor", x)


def rint(x: Operand) -> Expression:
    """The whole number nearest to ``x``, of two the even one."""
    return apply("round", x)


def sqrt(x: Operand) -> Expression:
    """The square root of ``x``."""
    return apply("sqrt", x)


def exp(x: Operand) -> Expression:
    """``e`` to the power of ``x``."""
    return apply("exp", x)


def expm1(x: Operand) -> Expression:
    """``exp(x) - 1``, exact near 0."""
    return apply("expm1", x)


def log(x: Operand) -> Expression:
    """The natural logarithm of ``x``."""
    return apply("log", x)


def log1p(x: Operand) -> Expression:
    """``log(1 + x)``, exact near 0."""
    return apply("log1p", x)


def tanh(x: Operand) -> Expression:
    """The hyperbolic tangent of ``x``."""
    return apply("tanh", x)


def erf(x: Operand) -> Expression:
    """The error function of ``x``."""
    return apply("erf", x)


def sin(x: Operand) -> Expression:
    """The sine of ``x``, in radians."""
    return apply("sin", x)


def cos(x: Operand) -> Expression:
    """The cosine of ``x``, in radians."""
    return apply("cos", x)


def atan(x: Operand) -> Expression:
    """The arc tangent of ``x``, in radians."""
    return apply("atan", x)


def sigmoid(x: Operand) -> Expression:
    """``1 / (1 + exp(-x))``"""
    return 1.0 / (1.0 + exp(-x))


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of linearized code: ``op`` of ``operands``, or the ``value`` of a constant."""

    op: str
    operands: tuple[int, ...]
    value: float | int | None = field(default=None, compare=False)
    #: Stands for ``value`` in comparisons, which must tell -0.0 from 0.0 and take NaN as equal.
    _text: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_text", repr(self.value))


def linearize(expression: Expression) -> tuple[Instruction, ...]:
    """The expression as straight-line code without common subexpressions.

    Operands are indices of earlier instructions; the last instruction is the result.
    """
    code: dict[Instruction, int] = {}
    known: dict[int, int] = {}
    stack = [expression]
    while stack:
        node = stack[-1]
        missing = [operand for operand in node.operands if id(operand) not in known]
        if missing:
            stack.extend(reversed(missing))
            continue
        stack.pop()
        operands = tuple(known[id(operand)] for operand in node.operands)
        instruction = Instruction(node.op, operands, node.value)
        known[id(node)] = code.setdefault(instruction, len(code))
    return tuple(code)


def _tree_size(code: Sequence[Instruction]) -> int:
    """Nodes of the expression that the code came from, shared ones counted each time."""
    sizes: list[int] = []
    for instruction in code:
        sizes.append(1 + sum(sizes[i] for i in instruction.operands))
    return sizes[-1]


def operations(expression: Expression) -> int:
    """How many scalar operations one evaluation of ``expression`` takes."""
    return sum(
        SCALAR_OPS[instruction.op].operations
        for instruction in linearize(expression)
        if instruction.op in SCALAR_OPS
    )


def arguments(expression: Expression) -> int:
    """The number of operands that the expression takes: 1 + its largest argument index."""
    used = [int(i.value or 0) for i in linearize(expression) if i.op == "argument"]
    return max(used, default=-1) + 1


def evaluate(
    expression: Expression, operands: Sequence[np.ndarray], dtype: np.dtype | None = None
) -> np.ndarray:
    """An expression over NumPy arrays. float16 is evaluated in float32 and rounded once at the end.

    Args:
        expression: what is evaluated.
        operands: arrays that broadcast.
        dtype: in which it is evaluated; None is that of the operands.
    """
    return run(linearize(expression), operands, dtype)


def run(
    code: Sequence[Instruction], operands: Sequence[np.ndarray], dtype: np.dtype | None = None
) -> np.ndarray:
    """Linearized ``code`` over ``operands`` in ``dtype``, as :func:`evaluate` says."""
    dtype = np.result_type(*operands) if dtype is None else dtype
    compute = np.dtype(np.float32) if dtype == np.float16 else dtype
    arrays = [np.asarray(operand, dtype=compute) for operand in operands]
    results: list[Any] = []
    with np.errstate(all="ignore"):
        for instruction in code:
            if instruction.op == "argument":
                result: Any = arrays[int(instruction.value or 0)]
            elif instruction.op == "constant":
                result = compute.type(instruction.value)
            else:
                inputs = (results[i] for i in instruction.operands)
                result = SCALAR_OPS[instruction.op].evaluate(*inputs)
            results.append(result)
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        return np.broadcast_to(np.asarray(results[-1], dtype=dtype), shape)


def to_json(expression: Expression) -> list[Any]:
    """The expression as a list of instructions, for saved graphs: ``["argument", index]``,
    ``["constant", value]`` or ``[op, ...]`` with the places of its operands in the list."""
    return [
        [line.op, *line.operands] if line.value is None else [line.op, line.value]
        for line in linearize(expression)
    ]


def from_json(data: Any) -> Expression:
    """The inverse of :func:`to_json` for its ``data``; raises GraphError for anything else."""
    if not isinstance(data, list) or not data:
        raise GraphError(f"not a scalar expression: {data!r:.100}")
    found: list[Expression] = []
    for line in data:
        match line:
            case ["argument", int(index)] if index >= 0 and not isinstance(index, bool):
                found.append(argument(index))
            case ["constant", float(value)]:
                found.append(constant(value))
            case [str(op), *places] if op in SCALAR_OPS and all(
                type(place) is int and 0 <= place < len(found) for place in places
            ):
                found.append(apply(op, *(found[place] for place in places)))
            case _:
                raise GraphError(
                    f"not a scalar expression: line {len(found)} is {line!r:.100}; valid are "
                    "['argument', index], ['constant', float] and [operation, earlier lines ...]"
                )
    return found[-1]
