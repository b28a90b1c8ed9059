"""Scalar expressions: the formula of an element-wise operator for one element.

An expression is written once, by ordinary Python arithmetic on :class:`Expression` objects.
NumPy evaluates it (:func:`evaluate`), and every code generator prints it from the same
:func:`linearize`d form.  A multiply-add is fused where the expression says so (:func:`fma`), not
where a compiler decides it.

>>> x, slope = argument(0), argument(1)
>>> str(where(x > 0, x, slope * x))
'where(x0 > 0.0, x0, x1 * x0)'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.scalar_ops import COMPARISONS, SCALAR_OPS

#: The public names of :data:`minidnn.scalar`, for users' own formulas.
__all__ = [
    "Expression",
    "argument",
    "atan",
    "clip",
    "constant",
    "cos",
    "equal",
    "erf",
    "evaluate",
    "exp",
    "expm1",
    "floor",
    "fma",
    "log",
    "log1p",
    "maximum",
    "minimum",
    "rint",
    "sigmoid",
    "sin",
    "sqrt",
    "tanh",
    "where",
]


class _Linearized:
    """A slot that caches the result of :func:`linearize`; it is no field, so that neither cache
    keys nor pickles contain it."""

    __slots__ = ("_code",)


@dataclass(frozen=True, slots=True, eq=False)
class Expression(_Linearized):
    """A node of a scalar expression.

    Expressions are equal if they compute the same by the same operations, whether or not they share
    subexpressions.

    Args:
        op: a key of :data:`.scalar_ops.SCALAR_OPS`, or "argument" or "constant".
        operands: what it works on.
        value: the index of an argument, or the number of a constant.

    >>> x = scalar.argument(0)
    >>> str(scalar.where(x > 0, x, 0.1 * x))
    """

    op: str
    operands: tuple[Expression, ...] = ()
    value: float | int | None = None

    # By straight-line code: comparing trees with shared subexpressions takes exponential time.
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
_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/", **COMPARISONS}
#: Expressions that have more nodes than this as a tree are not written out.
_MOST_SHOWN = 500


def argument(index: int) -> Expression:
    """The ``index``-th operand of the operator.

    >>> scalar.where(scalar.argument(0) > 0, scalar.argument(0), 0.0)
    """
    return Expression("argument", value=index)


def constant(value: float) -> Expression:
    """The expression of a number.

    Args:
        value: the number; float32 kernels round it once.

    >>> scalar.constant(0.5) * scalar.argument(0)
    """
    return Expression("constant", value=float(value))


def apply(op: str, *operands: Operand) -> Expression:
    """The expression ``op(*operands)``; numbers become constants, and comparisons become 1 or 0
    where a number is needed."""
    arity = SCALAR_OPS[op].arity
    if len(operands) != arity:
        raise GraphError(f"scalar operation {op!r} takes {arity} operands, got {len(operands)}")
    lifted = [_lift(op, operand) for operand in operands]
    if op != "where":
        return Expression(op, tuple(map(number, lifted)))
    condition, *choices = lifted
    if condition.op not in COMPARISONS:
        raise GraphError(f"the condition of where is {condition}; valid are <, <=, >, >=, equal")
    return Expression(op, (condition, *map(number, choices)))


def _lift(op: str, operand: Operand) -> Expression:
    if isinstance(operand, Expression):
        return operand
    if isinstance(operand, (int, float, np.integer, np.floating)) and not isinstance(operand, bool):
        return constant(float(operand))
    hint = "; == compares descriptions, equal(a, b) numbers" if isinstance(operand, bool) else ""
    raise GraphError(
        f"operand {operand!r} of scalar operation {op!r} is a {type(operand).__name__}; "
        f"valid are numbers and scalar expressions{hint}"
    )


def number(expression: Expression) -> Expression:
    """The expression itself, or 1 and 0 for a comparison that holds or not."""
    if expression.op not in COMPARISONS:
        return expression
    return Expression("where", (expression, constant(1.0), constant(0.0)))


def maximum(a: Operand, b: Operand) -> Expression:
    """The larger one of ``a`` and ``b``; NaN if one of them is.

    >>> layer = Elementwise(lambda a, b: scalar.maximum(a, b))
    """
    return apply("maximum", a, b)


def minimum(a: Operand, b: Operand) -> Expression:
    """The smaller one of ``a`` and ``b``; NaN if one of them is.

    >>> layer = Elementwise(lambda a, b: scalar.minimum(a, b))
    """
    return apply("minimum", a, b)


def clip(x: Operand, low: float, high: float) -> Expression:
    """``x`` within ``low`` and ``high``.

    >>> layer = Elementwise(lambda x: scalar.clip(x, -1.0, 1.0))
    """
    return minimum(maximum(x, low), high)


def fma(a: Operand, b: Operand, c: Operand) -> Expression:
    """``a * b + c``, rounded once.

    >>> layer = Elementwise(lambda a, b: scalar.fma(a, b, 1.0))
    """
    return apply("fma", a, b, c)


def equal(a: Operand, b: Operand) -> Expression:
    """Whether ``a`` is the number ``b``: a comparison, as ``a < b`` is one.

    >>> layer = Elementwise(lambda a, b: scalar.where(scalar.equal(a, 0.0), b, a))
    """
    return apply("eq", a, b)


def where(condition: Expression, a: Operand, b: Operand) -> Expression:
    """``a`` where ``condition`` (a comparison) holds, else ``b``.

    >>> layer = Elementwise(lambda x: scalar.where(x > 0, x, 0.1 * x))
    """
    return apply("where", condition, a, b)


def floor(x: Operand) -> Expression:
    """The largest integer that is at most ``x``.

    >>> layer = Elementwise(lambda x: x - scalar.floor(x))
    """
    return apply("floor", x)


def rint(x: Operand) -> Expression:
    """The integer nearest to ``x``, of two the even one.

    >>> layer = Elementwise(lambda x: scalar.rint(8 * x) / 8)
    """
    return apply("round", x)


def sqrt(x: Operand) -> Expression:
    """The square root of ``x``.

    >>> layer = Elementwise(lambda x: scalar.sqrt(abs(x)))
    """
    return apply("sqrt", x)


def exp(x: Operand) -> Expression:
    """``e`` to the power of ``x``.

    >>> layer = Elementwise(lambda x: scalar.exp(-x * x))
    """
    return apply("exp", x)


def expm1(x: Operand) -> Expression:
    """``exp(x) - 1``, exact near 0.

    >>> layer = Elementwise(lambda x: scalar.expm1(-x * x))
    """
    return apply("expm1", x)


def log(x: Operand) -> Expression:
    """The natural logarithm of ``x``.

    >>> layer = Elementwise(lambda x: scalar.log(1.0 + x * x))
    """
    return apply("log", x)


def log1p(x: Operand) -> Expression:
    """``log(1 + x)``, exact near 0.

    >>> layer = Elementwise(lambda x: scalar.log1p(abs(x)))
    """
    return apply("log1p", x)


def tanh(x: Operand) -> Expression:
    """The hyperbolic tangent of ``x``.

    >>> layer = Elementwise(lambda x: x * scalar.tanh(x))
    """
    return apply("tanh", x)


def erf(x: Operand) -> Expression:
    """The error function of ``x``.

    >>> layer = Elementwise(lambda x: 0.5 * (1.0 + scalar.erf(x)))
    """
    return apply("erf", x)


def sin(x: Operand) -> Expression:
    """The sine of ``x``, in radians.

    >>> layer = Elementwise(lambda x: x + scalar.sin(x) ** 2)
    """
    return apply("sin", x)


def cos(x: Operand) -> Expression:
    """The cosine of ``x``, in radians.

    >>> layer = Elementwise(lambda x: scalar.cos(x))
    """
    return apply("cos", x)


def atan(x: Operand) -> Expression:
    """The arc tangent of ``x``, in radians.

    >>> layer = Elementwise(lambda x: scalar.atan(x))
    """
    return apply("atan", x)


def sigmoid(x: Operand) -> Expression:
    """``1 / (1 + exp(-x))``

    >>> layer = Elementwise(lambda x: x * scalar.sigmoid(1.702 * x))
    """
    return 1.0 / (1.0 + exp(-x))


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of linearized code: ``op`` of earlier lines ``operands``, or an argument's index or
    a constant in ``value``."""

    op: str
    operands: tuple[int, ...]
    value: float | int | None = field(default=None, compare=False)
    #: Compared in place of ``value``, as -0.0 must differ from 0.0, and NaN must equal itself.
    _text: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_text", repr(self.value))


def linearize(expression: Expression) -> tuple[Instruction, ...]:
    """The expression as straight-line code without common subexpressions.

    Operands are indices of earlier instructions; the last instruction is the result.
    """
    code: tuple[Instruction, ...] | None = getattr(expression, "_code", None)
    if code is None:
        code = _linearized(expression)
        object.__setattr__(expression, "_code", code)
    return code


def _linearized(expression: Expression) -> tuple[Instruction, ...]:
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
    """The number of nodes of the expression as a tree: shared ones count each time."""
    sizes: list[int] = []
    for instruction in code:
        sizes.append(1 + sum(sizes[i] for i in instruction.operands))
    return sizes[-1]


def operations(expression: Expression) -> int:
    """The cost of one evaluation of ``expression``, in scalar operations."""
    ops = (SCALAR_OPS.get(instruction.op) for instruction in linearize(expression))
    return sum(op.operations for op in ops if op is not None)


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

    Returns:
        An array of the operands' common shape, of ``dtype``.

    >>> scalar.evaluate(scalar.exp(-scalar.argument(0)), [np.arange(4.0)])
    """
    return run(linearize(expression), operands, dtype)


def run(
    code: Sequence[Instruction], operands: Sequence[np.ndarray], dtype: np.dtype | None = None
) -> np.ndarray:
    """Evaluates linearized ``code`` over ``operands`` in ``dtype``, as :func:`evaluate` does."""
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
    ``["constant", value]`` or ``[op, ...]`` with the indices of its operands in the list."""
    return [
        [line.op, *line.operands] if line.value is None else [line.op, line.value]
        for line in linearize(expression)
    ]


def from_json(data: Any) -> Expression:
    """The inverse of :func:`to_json` for its ``data``; raises GraphError for anything else."""
    if not isinstance(data, list) or not data:
        raise GraphError(f"not a scalar expression: {data!r:.100}")
    expressions: list[Expression] = []
    for line in data:
        match line:
            case ["argument", int(index)] if index >= 0 and not isinstance(index, bool):
                expressions.append(argument(index))
            case ["constant", float(value)]:
                expressions.append(constant(value))
            case [str(op), *places] if op in SCALAR_OPS and all(
                type(place) is int and 0 <= place < len(expressions) for place in places
            ):
                expressions.append(apply(op, *(expressions[place] for place in places)))
            case _:
                raise GraphError(
                    f"not a scalar expression: line {len(expressions)} is {line!r:.100}; valid are "
                    "['argument', index], ['constant', float] and [operation, earlier lines ...]"
                )
    return expressions[-1]
