"""The intermediate representation of kernels: parallel points, statements over them, and
expressions.

A kernel runs its body once for each point, in any order.  A point is a task :data:`TASK` and one of
the task's lanes :data:`LANE`; where a kernel has no lanes, each task is one point.  Statements name
values, reduce ranges of them, store elements, loop and branch; nothing but stores has an effect.

Sizes are symbols where kernels of other sizes shall be the same text, and constants elsewhere.
Arithmetic folds what is known when an expression is made, so a lowering writes ``row * size + at``
whether ``size`` is a symbol, a constant, or one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from .._cached_property import cached_property
from ..graph.expression import Instruction
from ..graph.window import Combiner

#: For each operation its text in languages like C, and a function for numbers and arrays.
#: Operands of divisions are not negative: languages differ in the quotients of others.
OPERATIONS: Mapping[str, tuple[str, Callable[..., Any]]] = MappingProxyType(
    {
        "add": ("{} + {}", operator.add),
        "sub": ("{} - {}", operator.sub),
        "mul": ("{} * {}", operator.mul),
        "div": ("{} / {}", operator.floordiv),
        "mod": ("{} % {}", operator.mod),
        "xor": ("{} ^ {}", operator.xor),
        "shr": ("{} >> {}", operator.rshift),
        "and": ("{} && {}", operator.and_),
        "eq": ("{} == {}", operator.eq),
        "lt": ("{} < {}", operator.lt),
        "ge": ("{} >= {}", operator.ge),
        "select": ("{} ? {} : {}", np.where),
    }
)
_TRUTHS = {"and", "eq", "lt", "ge"}
#: Operations that give their first operand if the second is this number.
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1}


@dataclass(frozen=True)
class Param:
    """An array in memory, which a kernel gets a pointer to.

    Attributes:
        dtype: of its elements; ``bits8`` to ``bits128`` are elements that are moved as they are.
    """

    name: str
    dtype: str
    is_written: bool = False

    def __getitem__(self, index: Expr) -> Expr:
        return Expr("load", self.dtype, (index,), self)


def _binary(op: str) -> Callable[[Expr, Expr | float], Expr]:
    return lambda self, other: operation(op, self, other)


@dataclass(frozen=True)
class Expr:
    """A value: a constant, a symbol, an element of a param, or an operation on others.

    Attributes:
        op: ``const``, ``var`` (of a statement), ``size`` (of this launch), ``load``, ``cast``, or
            ``compute`` (a scalar expression), or one of :data:`OPERATIONS`.
        value: a constant's number, a variable's or size's name, a param, or code.
        number: the size in this launch; expressions that differ only in it are equal, and one text.
    """

    op: str
    dtype: str
    args: tuple[Expr, ...] = ()
    value: Any = None
    number: int = field(default=0, compare=False)

    __add__ = _binary("add")
    __sub__ = _binary("sub")
    __mul__ = _binary("mul")
    __floordiv__ = _binary("div")
    __mod__ = _binary("mod")
    __xor__ = _binary("xor")
    __rshift__ = _binary("shr")
    __and__ = _binary("and")
    __lt__ = _binary("lt")
    __ge__ = _binary("ge")
    equals = _binary("eq")

    def cast(self, dtype: str) -> Expr:
        """This value in another dtype.  A constant is folded where it is an integer that both
        dtypes have, as sizes and numbers of streams are."""
        if self.dtype == dtype:
            return self
        if self.op == "const" and {self.dtype, dtype} <= {"int64", "uint32"}:
            return constant(self.value, dtype)
        return Expr("cast", dtype, (self,))

    def walk(self) -> list[Expr]:
        """This expression and all its subexpressions."""
        found = [self]
        for each in found:
            found += each.args
        return found


def constant(value: float, dtype: str = "int64") -> Expr:
    """Returns a constant, but no -0.0: that equals 0.0, and kernels that are equal are one text."""
    if value == 0 and math.copysign(1, value) < 0:
        raise ValueError("a constant is -0.0, which equals 0.0")
    return Expr("const", dtype, (), value)


def variable(name: str, dtype: str = "int64") -> Expr:
    return Expr("var", dtype, (), name)


def operation(op: str, *operands: Expr | float) -> Expr:
    """Returns an operation, or its folded result.  Numbers among operands take the others'
    dtype."""
    dtype = [x.dtype for x in operands if isinstance(x, Expr)][-1]
    args = tuple([x if isinstance(x, Expr) else constant(x, dtype) for x in operands])
    assert all([x.dtype in (dtype, "bool") for x in args]), f"{op} of {[x.dtype for x in args]}"
    known = [x.value if x.op == "const" else None for x in args]
    made = "bool" if op in _TRUTHS else dtype
    if dtype == "int64" and None not in known:
        return constant(int(OPERATIONS[op][1](*known)), made)
    if op == "select" and known[0] is not None:
        return args[1] if known[0] else args[2]
    if dtype.startswith("float"):  # 1.0 * x has other bits than x, if that is a signalling NaN
        return Expr(op, made, args)
    if op in _NEUTRAL and known[1] == _NEUTRAL[op]:
        return args[0]
    if op in ("add", "mul") and known[0] == _NEUTRAL[op]:
        return args[1]
    if (op == "mul" and 0 in known) or (op == "mod" and known[1] == 1):
        return constant(0, dtype)
    return Expr(op, made, args)


def select(condition: Expr, chosen: Expr | float, other: Expr | float) -> Expr:
    return operation("select", condition, chosen, other)


def compute(code: Sequence[Instruction], operands: Sequence[Expr], dtype: str) -> Expr:
    """Returns the value of a scalar expression, in float32 or int64; a :class:`Let` names it."""
    return Expr("compute", dtype, tuple(operands), tuple(code))


@dataclass(frozen=True)
class Let:
    """Names a value, which reads no param that the kernel writes: so it is the same wherever in its
    block it is computed."""

    name: Expr
    value: Expr


@dataclass(frozen=True)
class Write:
    """Stores an element of a param."""

    param: Param
    index: Expr
    value: Expr


@dataclass(frozen=True)
class For:
    """Runs its body for each number from ``begin`` up to ``end``, in this order."""

    name: Expr
    begin: Expr
    end: Expr
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class If:
    """Runs its body where the condition holds."""

    condition: Expr
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class FoldRange:
    """Names the reduction of a range of values, one for each :attr:`index` from 0 up to ``count``,
    in the order of ``graph.window.combine_taps``.

    Attributes:
        condition: where it is false there is no value; None: it is true everywhere.
        body: statements that the value needs.
    """

    name: Expr
    combiner: Combiner
    count: Expr
    condition: Expr | None
    body: tuple[Statement, ...]
    value: Expr

    @property
    def index(self) -> Expr:
        return index_of(self.name)


def index_of(name: Expr) -> Expr:
    """The index of the :class:`FoldRange` that has this name."""
    return variable(f"{name.value}_k")


Statement = Let | Write | For | If | FoldRange

TASK = variable("t")
LANE = variable("lane")


def expressions(body: tuple[Statement, ...]) -> list[Expr]:
    """Returns all expressions in statements, with their subexpressions."""
    found: list[Expr] = []
    for each in body:
        match each:
            case Let(_, value):
                found += value.walk()
            case Write(_, index, value):
                found += index.walk() + value.walk()
            case For(_, begin, end, inner):
                found += begin.walk() + end.walk() + expressions(inner)
            case If(condition, inner):
                found += condition.walk() + expressions(inner)
            case FoldRange(_, _, count, where, inner, value):
                found += count.walk() + (where.walk() if where else [])
                found += expressions(inner) + value.walk()
    return found


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel for one engine.

    Attributes:
        params: in the order of its pointers: operands, tables, the output.
        lanes: how many lanes task :data:`TASK` has, or None.
        work: the approximate number of elements that a task touches.
        tables: arrays of integers that go with the sizes of this launch.
    """

    kind: str
    params: tuple[Param, ...]
    tasks: int
    lanes: Expr | None
    body: tuple[Statement, ...]
    work: int = 1
    tables: tuple[np.ndarray, ...] = field(default=())

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes that are arguments, by name, in the order of their first use."""
        found = (self.lanes.walk() if self.lanes else []) + expressions(self.body)
        return {each.value: each.number for each in found if each.op == "size"}
