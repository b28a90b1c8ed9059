"""Symbolic forward-mode differentiation of a scalar expression.

The walk goes forwards over the linearized expression: every instruction gets a *tangent*, the
amount by which it changes if the argument changes by ``seed``.  Each operation defines its tangent
over its operands and its result, so that the derivative of a hyperbolic tangent is ``1 - y * y``.

A choice stays a choice: tangents are chosen by ``where`` and never multiplied by a mask, and
factors go into the branches (:func:`_linear`), as infinity times a mask's 0 would be NaN.
Subgradients are PyTorch's: where a value equals the *constant* that limits it, the limit wins
(ReLU's derivative at 0 is 0); where two *computed* values are equal, each gets one half; a sign
has derivative 0, at 0 and NaN, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from minidnn.graph.expression import (
    Expression,
    Instruction,
    apply,
    argument,
    constant,
    cos,
    equal,
    exp,
    linearize,
    log,
    sin,
    where,
)
from minidnn.graph.scalar_functions import substituted
from minidnn.graph.scalar_ops import COMPARISONS

#: The tangent of a result due to one operand, as a function of that operand's tangent, the result,
#: and all operands.
Term = Callable[..., Expression]

_ROOT_OF_PI = math.sqrt(math.pi)


def _power_by_base(t: Expression, y: Expression, a: Expression, b: Expression) -> Expression:
    slope = t * (b * apply("pow", a, b - 1.0))
    return slope if b.op == "constant" and b.value != 0 else _unless_zero(b, slope)


def _power_by_exponent(t: Expression, y: Expression, a: Expression, b: Expression) -> Expression:
    slope = t * (y * log(a))
    return where(b >= 0.0, _unless_zero(a, slope), slope)


def _unless_zero(x: Expression, otherwise: Expression) -> Expression:
    return where(x < 0.0, otherwise, where(x > 0.0, otherwise, x))


#: For each operation, the term of its tangent for each of its operands.
TERMS: dict[str, tuple[Term, ...]] = {
    "add": (lambda t, y, a, b: t, lambda t, y, a, b: t),
    "sub": (lambda t, y, a, b: t, lambda t, y, a, b: -t),
    "mul": (lambda t, y, a, b: t * b, lambda t, y, a, b: t * a),
    "fma": (
        lambda t, y, a, b, c: t * b,
        lambda t, y, a, b, c: t * a,
        lambda t, y, a, b, c: t,
    ),
    "neg": (lambda t, y, a: -t,),
    "abs": (lambda t, y, a: where(a > 0.0, t, where(a < 0.0, -t, 0.0)),),
    "sqrt": (lambda t, y, a: 0.5 * t / y,),
    "exp": (lambda t, y, a: t * y,),
    "expm1": (lambda t, y, a: t * (y + 1.0),),
    "tanh": (lambda t, y, a: t * (1.0 - y * y),),
    "erf": (lambda t, y, a: t * (2.0 / _ROOT_OF_PI * exp(-(a * a))),),
    "pow": (_power_by_base, _power_by_exponent),
    "sin": (lambda t, y, a: t * cos(a),),
    "cos": (lambda t, y, a: -(t * sin(a)),),
    "atan": (lambda t, y, a: t / (1.0 + a * a),),
}
#: Operations with derivative 0: step functions, and comparisons, which only choose.
_FLAT = frozenset(("argument", "constant", "floor", "round", *COMPARISONS))


def derivative(expression: Expression, index: int, seed: Expression) -> Expression | None:
    """``seed`` times the derivative of an expression by its argument ``index``.

    None if the derivative is 0 everywhere: the expression is a step function of the argument, or
    does not depend on it.

    >>> from minidnn.graph.expression import tanh
    >>> str(derivative(tanh(argument(0)), 0, argument(1)))
    'x1 * (1.0 - (tanh(x0) * tanh(x0)))'
    """
    return _Walk(expression, index, seed).tangents[-1]


class _Walk:
    """The value and the tangent of each instruction of an expression, as expressions."""

    def __init__(self, expression: Expression, index: int, seed: Expression) -> None:
        self.code = linearize(expression)
        self.values: list[Expression] = []
        self.tangents: list[Expression | None] = []
        for line in self.code:
            operands = tuple(self.values[i] for i in line.operands)
            self.values.append(Expression(line.op, operands, line.value))
            is_argument = line.op == "argument" and line.value == index
            self.tangents.append(seed if is_argument else self._tangent(line))

    def _tangent(self, line: Instruction) -> Expression | None:
        """The tangent of an instruction whose value was just appended; None if it is 0."""
        changes = [self.tangents[i] for i in line.operands]
        if line.op in _FLAT or all(change is None for change in changes):
            return None
        y = self.values[-1]
        match line.op:
            case "where":
                a, b = (constant(0.0) if t is None else t for t in changes[1:])
                return where(y.operands[0], a, b)
            case "maximum" | "minimum":
                return self._extreme(line)
            case "log":
                return self._of_log(line.operands[0])
            case "log1p":
                return self._of_log(line.operands[0], 1.0)
            case "div":
                return self._of_quotient(line)
        return _sum(
            *(
                _linear(change, partial(_changed, term, y))
                for change, term in zip(changes, TERMS[line.op], strict=True)
                if change is not None
            )
        )

    def _of_quotient(self, line: Instruction) -> Expression:
        """The tangent of a quotient.

        If the divisor is ``c + exp(u)`` with a positive ``c``, its relative change is
        ``(1 - c / (c + exp(u))) * du``: the chain rule would divide infinity by itself.
        """
        y = self.values[-1]
        first, second = (self.tangents[i] for i in line.operands)
        divisor = y.operands[1]
        terms = []
        if first is not None:
            terms.append(_linear(first, lambda t: t / divisor))
        if second is not None:
            offset, change, _ = self._exponential(line.operands[1])
            if change is None:
                # Not divided by the divisor's square, which may overflow or underflow.
                terms.append(_linear(second, lambda t: -(t * (y / divisor))))
            else:
                if offset:
                    change = _linear(change, lambda t: t * (1.0 - offset / divisor))
                terms.append(_linear(change, lambda t: -(y * t)))
        return _sum(*terms)

    def _of_log(self, index: int, offset: float = 0.0) -> Expression:
        """The tangent of the logarithm of ``offset`` plus the value of instruction ``index``.

        Where that sum is ``c + exp(u)`` with a positive ``c``, the tangent is
        ``du / (1 + c * exp(-u))``, which is exact however far ``u`` is from 0.
        """
        total = self.values[index] + offset if offset else self.values[index]
        offset, change, inner = self._exponential(index, offset)
        if change is not None and inner is not None:
            power = exp(-inner)
            scaled = power if offset == 1.0 else offset * power
            return _linear(change, lambda t: t / (1.0 + scaled)) if offset else change
        tangent = self.tangents[index]
        assert tangent is not None
        return _linear(tangent, lambda t: t / total)

    def _exponential(
        self, index: int, offset: float = 0.0
    ) -> tuple[float, Expression | None, Expression | None]:
        """Matches the value of instruction ``index`` as ``c + exp(u)``.

        Returns ``offset + c``, the tangent of ``u``, and ``u``; no tangent if the value has another
        form or ``offset + c`` is negative.
        """
        line, power = self.code[index], index
        if line.op == "add":
            operands = [self.values[i] for i in line.operands]
            literal = next((i for i in (0, 1) if operands[i].op == "constant"), None)
            if literal is not None:
                offset += float(operands[literal].value or 0.0)
                power = line.operands[1 - literal]
        inner = self.code[power]
        if inner.op != "exp" or offset < 0:
            return offset, None, None
        return offset, self.tangents[inner.operands[0]], self.values[inner.operands[0]]

    def _extreme(self, line: Instruction) -> Expression:
        """The tangent of a maximum or minimum.

        Where the operands are equal, a constant wins, and two computed operands get one half each;
        where one is NaN, both get all.
        """
        zero = constant(0.0)
        y = self.values[-1]
        a, b = y.operands
        ta, tb = (zero if t is None else t for t in (self.tangents[i] for i in line.operands))
        above = line.op == "maximum"
        if a.op == "constant":
            a, b, ta, tb = b, a, tb, ta
        if b.op == "constant":  # by the result, which may be kept for others anyway
            return where(y <= b if above else y >= b, zero, ta)
        first, second = (a > b, a < b) if above else (a < b, a > b)
        both = ta if tb is zero else tb if ta is zero else ta + tb
        return where(first, ta, where(second, tb, where(equal(a, b), 0.5 * both, both)))


def _changed(term: Term, result: Expression, tangent: Expression) -> Expression:
    return term(tangent, result, *result.operands)


def _sum(first: Expression, *others: Expression) -> Expression:
    return sum(others, start=first)


def _linear(tangent: Expression, function: Callable[[Expression], Expression]) -> Expression:
    """A linear function of a tangent, pushed into the branches of a ``where``; of 0 it is 0."""
    known: dict[int, Expression] = {}

    def mapped(each: Expression) -> Expression:
        if each.op == "constant" and each.value == 0:
            return each
        if each.op != "where":
            return function(each)
        if id(each) not in known:
            condition, a, b = each.operands
            known[id(each)] = where(condition, mapped(a), mapped(b))
        return known[id(each)]

    return mapped(tangent)


def with_result(found: Expression, expression: Expression, result: Expression) -> Expression:
    """``found`` with ``result`` in place of each subexpression that equals ``expression``."""
    known: dict[Instruction, int] = {}

    def numbered(code: Sequence[Instruction]) -> list[int]:
        numbers: list[int] = []
        for line in code:
            same = Instruction(line.op, tuple(numbers[i] for i in line.operands), line.value)
            numbers.append(known.setdefault(same, len(known)))
        return numbers

    target = numbered(linearize(expression))[-1]
    code = linearize(found)
    values: list[Expression] = []
    for line, number in zip(code, numbered(code), strict=True):
        operands = tuple(values[i] for i in line.operands)
        values.append(result if number == target else Expression(line.op, operands, line.value))
    return values[-1]


def arguments_of(expression: Expression) -> list[int]:
    """The indices of the arguments that the expression reads, in order."""
    return sorted({int(i.value or 0) for i in linearize(expression) if i.op == "argument"})


def renumbered(expression: Expression, order: Sequence[int]) -> Expression:
    """The expression with argument ``order[i]`` renamed to argument ``i``."""
    return substituted(expression, {old: argument(new) for new, old in enumerate(order)})
