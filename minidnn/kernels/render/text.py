"""Prints kernels in languages like C: what CUDA and ISPC have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ...backends.codegen.code import Code
from ...backends.codegen.dialect import Dialect, literal
from ...backends.codegen.functions import INTEGER_FUNCTIONS
from ...backends.codegen.taps import TapLoop
from ..ir import (
    OPERATIONS,
    Expr,
    FoldRange,
    For,
    If,
    Kernel,
    Let,
    Param,
    Statement,
    Write,
    expressions,
)

#: Texts that are cached: kernels of other sizes are mostly the same text again.
KEPT = 1024
_SUFFIX = {"uint32": "u", "uint64": "ull"}


class Printer(ABC):
    """Prints statements and expressions; a language adds names of types and accesses to memory."""

    TYPES: ClassVar[Mapping[str, str]]
    DIALECT: ClassVar[Dialect]
    #: The type of a fold's index.
    INDEX: ClassVar[str]

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.code = Code()

    @abstractmethod
    def element(self, param: Param, index: Expr) -> str:
        """Returns an element of a param."""

    def declared(self, type: str, value: Expr) -> str:
        """A type of this language, as variables that hold a value are declared."""
        return type

    @abstractmethod
    def converted(self, value: Expr, dtype: str) -> str:
        """Returns a value converted to another dtype."""

    def functions(self) -> str:
        """The functions that integer expressions need."""
        exprs = expressions(self.kernel.body)
        has_integers = any(each.op == "compute" and each.dtype == "int64" for each in exprs)
        return self.DIALECT.fill(INTEGER_FUNCTIONS) if has_integers else ""

    def block(self, body: Sequence[Statement]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        match statement:
            case Let(name, value):
                type = self.declared(self.TYPES[name.dtype], value)
                self.code.line(f"const {type} {name.value} = {self.text(value)};")
            case Write(param, index, value):
                self.code.line(f"{self.element(param, index)} = {self.text(value)};")
            case For(name, begin, end, inner):
                counter = f"{self.declared(self.TYPES[name.dtype], begin)} {name.value}"
                ends = f"{name.value} < {self.operand(end)}; {name.value}++"
                with self.code.block(f"for ({counter} = {self.text(begin)}; {ends})"):
                    self.block(inner)
            case If(condition, inner):
                with self.code.block(f"if ({self.text(condition)})"):
                    self.block(inner)
            case FoldRange():
                self.fold(statement)

    def fold(self, fold: FoldRange) -> None:
        """Prints a fold over a known number of values."""

        def value(index: str) -> str:
            assert index == fold.index.value
            return self.folded(fold)

        def assign(name: str, text: str) -> None:
            self.code.line(f"{name} = {text};")

        def declare(name: str, text: str) -> None:
            assign(f"float {name}", text)

        loop = TapLoop(self.code, self.INDEX, declare, assign, str, self.DIALECT, fold.combiner)
        loop.print(fold.name.value, fold.count.value, value)

    def folded(self, fold: FoldRange) -> str:
        """Prints one value of a fold, or continues with the next where there is none."""
        if fold.condition is not None:
            self.code.line(f"if (!({self.text(fold.condition)})) continue;")
        self.block(fold.body)
        return self.operand(fold.value)

    def text(self, expr: Expr) -> str:
        """Returns an expression, after printing the statements that it needs."""
        match expr.op:
            case "const" if expr.dtype == "float32":
                return literal(expr.value)
            case "const" if expr.dtype.startswith("bits"):
                return f"({self.TYPES[expr.dtype]}){expr.value}ull"
            case "const":
                wide = expr.dtype == "int64" and not -(1 << 31) <= expr.value < 1 << 31
                return f"{expr.value}{'ll' if wide else _SUFFIX.get(expr.dtype, '')}"
            case "var" | "size":
                return str(expr.value)
            case "load":
                return self.element(expr.value, expr.args[0])
            case "cast":
                return self.converted(expr.args[0], expr.dtype)
            case "compute":
                given, whole = map(self.text, expr.args), expr.dtype == "int64"
                lines, name = self.DIALECT.print_code(expr.value, [*given], self.code.fresh, whole)
                self.code.lines(lines)
                return name
            case op:
                return OPERATIONS[op][0].format(*map(self.operand, expr.args))

    def operand(self, expr: Expr) -> str:
        """Returns an expression as it stands within others."""
        text = self.text(expr)
        return f"({text})" if expr.op in OPERATIONS or text.startswith("-") else text
