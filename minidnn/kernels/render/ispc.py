"""Prints kernels as ISPC: a call computes tasks one after another, and a ``foreach`` their lanes.

Values that all lanes share are computed once, outside: loops over numbers that lanes share stay
around the loop over lanes, which has only the statements that differ from lane to lane.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from ...backends.codegen.dialect import ISPC, literal
from ...backends.codegen.kernel import KernelSource
from ...graph.types import INT8_DTYPES
from ..ir import (
    LANE,
    TASK,
    Expr,
    FoldRange,
    For,
    If,
    Kernel,
    Let,
    Param,
    Statement,
    Write,
    constant,
    expressions,
)
from .text import KEPT, Printer


class _Ispc(Printer):
    TYPES: ClassVar = {
        **{f"bits{n}": f"int{n}" for n in (8, 16, 32, 64)},
        **{"int32": "int32", "int64": "int64", "float32": "float"},
        **{"uint32": "unsigned int32", "uint64": "unsigned int64"},
        **{"uint8": "unsigned int8", "int8": "int8", "bool": "unsigned int8"},
        **{"bfloat16": "unsigned int16"},
    }
    DIALECT = ISPC
    INDEX = "uniform int"

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._varying = {LANE}
        self._in_lanes = False
        self._own: list[Let | FoldRange] = []

    def declared(self, type: str, value: Expr) -> str:
        return type if _differs(value, self._varying) else f"uniform {type}"

    def element(self, param: Param, index: Expr) -> str:
        shared, own = split(index, self._varying)
        if constant(0) in (shared, own):
            return f"{param.name}[{self.text(shared + own)}]"
        return f"({param.name} + {self.text(shared)})[{self.text(own)}]"

    def statement(self, statement: Statement) -> None:
        """Prints a statement; the address of a constant that is stored is not split.  If the
        compiler saw that a loop does nothing but store a constant to one element after another, it
        would call ``memset``, which takes longer than a short row."""
        match statement:
            case Write(param, index, Expr("const") as value):
                self.code.line(f"{param.name}[{self.text(index)}] = {self.text(value)};")
            case Let(name) | FoldRange(name) if self._differs(statement):
                self._varying.add(name)
                super().statement(statement)
            case _:
                super().statement(statement)

    def folded(self, fold: FoldRange) -> str:
        """Prints one value of a fold; lanes without one take the identity, so that a compiler sees
        no loop that each lane leaves by itself."""
        if fold.condition is None or not _differs(fold.condition, self._varying):
            return super().folded(fold)
        value = self.code.fresh()
        self.code.line(f"float {value} = {literal(fold.combiner.identity)};")
        with self.code.block(f"if ({self.text(fold.condition)})"):
            self.code.line(f"{value} = {super().folded(replace(fold, condition=None))};")
        return value

    def text(self, expr: Expr) -> str:
        """Prints an expression; a lane's number, which takes 32 bits, is compared in 32 bits with a
        number that lanes share."""
        if expr.op in ("ge", "lt") and self._in_lanes:
            shared, own = split(expr.args[0], self._varying)
            steps = own.args[1:] if own.op == "mul" and own.args[0] == LANE else ()
            steady = own == LANE or (steps and steps[0].op == "const")
            if steady and not _differs(expr.args[1], self._varying):
                edge = self.text(expr.args[1] - shared)
                name = self.code.fresh()
                bounds = np.iinfo(np.int32)
                low = f"max((uniform int64)({edge}), {bounds.min}ll)"
                self.code.line(
                    f"const uniform int {name} = (uniform int)min({low}, {bounds.max}ll);"
                )
                return f"{self.operand(own)} {'>=' if expr.op == 'ge' else '<'} {name}"
        return super().text(expr)

    def converted(self, value: Expr, dtype: str) -> str:
        text, type = self.operand(value), self.TYPES[dtype]
        if "bfloat16" in (dtype, value.dtype):
            return f"md_{'narrow' if dtype == 'bfloat16' else 'wide'}({text})"
        if dtype in INT8_DTYPES:
            bounds = np.iinfo(dtype)
            # The comparison is false of NaN, which becomes the least.
            low = f"({text} > {bounds.min} ? {text} : {bounds.min})"
            return f"({type})(int)({low} < {bounds.max} ? {low} : {bounds.max})"
        if dtype == "bool":
            return f"({type})({text} != 0 ? 1 : 0)"
        return f"({type}){'(int)' if value.dtype in INT8_DTYPES else ''}{text}"

    def block(self, body: Sequence[Statement]) -> None:
        if self._in_lanes:
            super().block(body)
            return
        known, waiting = len(self._own), list[Statement]()
        for statement in body:
            if not self._differs(statement):
                self._lanes(waiting)
                self.statement(statement)
            elif isinstance(statement, Let | FoldRange):
                self._own.append(statement)
                self._varying.add(statement.name)
            elif isinstance(statement, If) and (part := self._part(statement.condition)):
                self._lanes(waiting)
                self._lanes([*statement.body], *part)
            else:
                waiting.append(statement)
        self._lanes(waiting)
        self._varying -= {let.name for let in self._own[known:]}
        del self._own[known:]

    def _differs(self, statement: Statement) -> bool:
        """Whether lanes do different things, apart from the body of a loop or a condition."""
        if isinstance(statement, For | If):
            statement = replace(statement, body=())
        return isinstance(statement, FoldRange) or any(
            _differs(each, self._varying) for each in expressions((statement,))
        )

    def _part(self, condition: Expr) -> tuple[str, str] | None:
        """Declares the first lane and the end of the lanes for which a condition is true, if it is
        nothing but bounds of lanes; else None."""
        ends: dict[str, Expr] = {}
        for each in _conjuncts(condition):
            if each.op not in ("ge", "lt") or each.op in ends:
                return None
            shared, own = split(each.args[0], self._varying)
            if own != LANE or _differs(each.args[1], self._varying):
                return None
            ends[each.op] = each.args[1] - shared
        first, end = self.code.fresh(), self.code.fresh()
        for name, edge, least in ((first, ends.get("ge"), "0"), (end, ends.get("lt"), first)):
            most = "count" if edge is None and name == end else least
            if edge is not None:
                most = f"max((uniform int64){least}, min((uniform int64)count, {self.text(edge)}))"
            self.code.line(f"const uniform int {name} = (uniform int){most};")
        return first, end

    def _lanes(self, waiting: list[Statement], first: str = "0", end: str = "count") -> None:
        """Prints statements that differ from lane to lane as a loop, after the values that they
        need."""
        if not waiting:
            return
        needed = _variables(*waiting)
        lets: list[Let | FoldRange] = []
        for let in reversed(self._own):
            if let.name in needed:
                needed |= _variables(let)
                lets.insert(0, let)
        with self.code.block(f"foreach ({LANE.value} = {first} ... {end})"):
            self._in_lanes, known = True, set(self._varying)
            super().block([*lets, *waiting])
            self._in_lanes, self._varying = False, known
        waiting.clear()

    def print(self) -> str:
        line, sizes = self.code.line, self.kernel.sizes
        lanes = self.kernel.lanes
        assert lanes is not None, self.kernel.kind
        with self.code.block("MD_KERNEL(@)"):
            line(f"const uniform int64 * uniform n = MD_IN(int64, {len(self.kernel.params)});")
            for i, name in enumerate(sizes):
                line(f"const uniform int64 {name} = n[{i}];")
            for i, param in enumerate(self.kernel.params):
                const, way = ("", "MD_OUT") if param.is_written else ("const ", "MD_IN")
                type = self.TYPES[param.dtype]
                line(f"{const}uniform {type} * uniform {param.name} = {way}({type}, {i});")
            task = TASK.value
            with self.code.block(
                f"for (uniform int64 {task} = md_begin; {task} < md_end; {task}++)"
            ):
                line(f"const uniform int count = (uniform int)({self.text(lanes)});")
                self.block(self.kernel.body)
        return self.functions() + str(self.code)


def _variables(*statements: Statement) -> set[Expr]:
    """The variables in statements."""
    return {each for each in expressions(statements) if each.op == "var"}


def render(kernel: Kernel) -> KernelSource:
    """Returns the kernel, whose pointers are its params, then its sizes."""
    return _rendered(kernel.kind, kernel.params, kernel.lanes, kernel.body)


@lru_cache(KEPT)
def _rendered(
    kind: str, params: tuple[Param, ...], lanes: Expr | None, body: tuple[Statement, ...]
) -> KernelSource:
    """The text, which neither the number of tasks nor sizes change."""
    return KernelSource.named(kind, _Ispc(Kernel(kind, params, 0, lanes, body)).print())


def _differs(expr: Expr, varying: Container[Expr]) -> bool:
    """Whether an expression differs from lane to lane, as variables in ``varying`` do; scalar
    expressions are computed for each lane."""
    return any(
        each.op == "compute" or (each.op == "var" and each in varying) for each in expr.walk()
    )


def split(index: Expr, varying: Container[Expr]) -> tuple[Expr, Expr]:
    """Splits an index into a sum of what all lanes share and what is a lane's own."""
    if not _differs(index, varying):
        return index, constant(0)
    if index.op == "add":
        (a, own_a), (b, own_b) = (split(term, varying) for term in index.args)
        return a + b, own_a + own_b
    if index.op == "mul" and not _differs(index.args[1], varying):
        shared, own = split(index.args[0], varying)
        return shared * index.args[1], own * index.args[1]
    return constant(0), index


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    """Yields the conditions that a condition is the conjunction of."""
    if condition.op == "and":
        for each in condition.args:
            yield from _conjuncts(each)
    else:
        yield condition
