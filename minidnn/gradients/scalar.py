"""The derivative of a scalar expression.

It is taken forwards over the linearized expression: every instruction gets a *tangent*, which is
what it changes by if the argument changes by ``seed``.  Each operation says how, over its operands
and its result, so that the derivative of a hyperbolic tangent is ``1 - y * y``.

A choice stays a choice: tangents are chosen by ``where`` and never multiplied by a mask, and
factors go into the branches (:func:`_linear`), as infinity times a mask's 0 would be NaN.
Subgradients are PyTorch's: where a value equals the *constant* that limits it, the limit wins
(ReLU's derivative at 0 is 0); where two *computed* values are equal, each gets one half; a sign
has none at 0 and NaN.
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

#: The change of a result by that of one operand: of that change, the result, and the operands.
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


#: For each operation, how its result changes by each of its operands.
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
#: Steps have no slope, and neither have comparisons, which choose.
_FLAT = frozenset(("argument", "constant", "floor", "round", *COMPARISONS))


def derivative(expression: Expression, index: int, seed: Expression) -> Expression | None:
    """``seed`` times the derivative of an expression by its argument ``index``.

    None if the expression changes by steps alone, or does not depend on the argument.

    >>> from minidnn.graph.expression import tanh
    >>> str(derivative(tanh(argument(0)), 0, argument(1)))
    'x1 * (1.0 - (tanh(x0) * tanh(x0)))'
    """
    return _Walk(expression, index, seed).tangents[-1]


class _Walk:
    """Values and tangents of the instructions of an expression."""

    def __init__(self, expression: Expression, index: int, seed: Expression) -> None:
        self.code = linearize(expression)
        self.values: list[Expression] = []
        self.tangents: list[Expression | None] = []
        for line in self.code:
            operands = tuple(self.values[i] for i in line.operands)
            self.values.append(Expression(line.op, operands, line.value))
            is_it = line.op == "argument" and line.value == index
            self.tangents.append(seed if is_it else self._tangent(line))

    def _tangent(self, line: Instruction) -> Expression | None:
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
        """Where ``c + exp(u)`` divides, with a positive ``c``, its change relative to itself is
        ``(1 - c / (c + exp(u))) * du``: the chain rule would divide infinity by itself."""
        y = self.values[-1]
        first, second = (self.tangents[i] for i in line.operands)
        divisor = y.operands[1]
        terms = []
        if first is not None:
            terms.append(_linear(first, lambda t: t / divisor))
        if second is not None:
            offset, change, _ = self._exponential(line.operands[1])
            if change is None:
                # Not by the divisor's square, which may be infinite, or zero.
                terms.append(_linear(second, lambda t: -(t * (y / divisor))))
            else:
                if offset:
                    change = _linear(change, lambda t: t * (1.0 - offset / divisor))
                terms.append(_linear(change, lambda t: -(y * t)))
        return _sum(*terms)

    def _of_log(self, place: int, offset: float = 0.0) -> Expression:
        """The tangent of the logarithm of ``offset`` plus a value.

        Of ``c + exp(u)`` with a positive ``c`` it is ``du / (1 + c * exp(-u))``, which is exact
        however far ``u`` is from 0.
        """
        total = self.values[place] + offset if offset else self.values[place]
        offset, change, inner = self._exponential(place, offset)
        if change is not None and inner is not None:
            power = exp(-inner)
            scaled = power if offset == 1.0 else offset * power
            return _linear(change, lambda t: t / (1.0 + scaled)) if offset else change
        found = self.tangents[place]
        assert found is not None
        return _linear(found, lambda t: t / total)

    def _exponential(
        self, place: int, offset: float = 0.0
    ) -> tuple[float, Expression | None, Expression | None]:
        """Of ``offset`` plus a value that is ``c + exp(u)``: the sum of ``offset`` and ``c``, the
        tangent of ``u``, and ``u``; no tangent if it is no such value or the sum is negative."""
        line, power = self.code[place], place
        if line.op == "add":
            given = [self.values[i] for i in line.operands]
            literal = next((i for i in (0, 1) if given[i].op == "constant"), None)
            if literal is not None:
                offset += float(given[literal].value or 0.0)
                power = line.operands[1 - literal]
        inner = self.code[power]
        if inner.op != "exp" or offset < 0:
            return offset, None, None
        return offset, self.tangents[inner.operands[0]], self.values[inner.operands[0]]

    def _extreme(self, line: Instruction) -> Expression:
        """Where operands are equal, a constant wins, and two others get one half each; where one is
        NaN, both get all."""
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
    for other in others:
        first = first + other
    return first


def _linear(tangent: Expression, function: Callable[[Expression], Expression]) -> Expression:
    """A linear function of a tangent: of a choice the choice between its results, of 0 it is 0."""
    known: dict[int, Expression] = {}

    def of(each: Expression) -> Expression:
        if each.op == "constant" and each.value == 0:
            return each
        if each.op != "where":
            return function(each)
        if id(each) not in known:
            condition, a, b = each.operands
            known[id(each)] = where(condition, of(a), of(b))
        return known[id(each)]

    return of(tangent)


def with_result(found: Expression, expression: Expression, result: Expression) -> Expression:
    """``found`` with ``result`` wherever it computes the same as ``expression``."""
    known: dict[Instruction, int] = {}

    def numbered(code: Sequence[Instruction]) -> list[int]:
        numbers: list[int] = []
        for line in code:
            same = Instruction(line.op, tuple(numbers[i] for i in line.operands), line.value)
            numbers.append(known.setdefault(same, len(known)))
        return numbers

    whole = numbered(linearize(expression))[-1]
    code = linearize(found)
    values: list[Expression] = []
    for line, number in zip(code, numbered(code), strict=True):
        operands = tuple(values[i] for i in line.operands)
        values.append(result if number == whole else Expression(line.op, operands, line.value))
    return values[-1]


def arguments_of(expression: Expression) -> list[int]:
    """The indices of the arguments that it reads, in order."""
    return sorted({int(i.value or 0) for i in linearize(expression) if i.op == "argument"})


def renumbered(expression: Expression, order: Sequence[int]) -> Expression:
    """The same with argument ``order[i]`` as argument ``i``."""
    return substituted(expression, {old: argument(new) for new, old in enumerate(order)})
