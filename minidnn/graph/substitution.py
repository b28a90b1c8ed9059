"""Scalar expressions in the places of others' arguments."""

from __future__ import annotations

from collections.abc import Mapping

from minidnn.graph.expression import Expression, linearize


def substituted(expression: Expression, given: Mapping[int, Expression]) -> Expression:
    """The expression with others in the places of its arguments, by their indices."""
    made: list[Expression] = []
    for line in linearize(expression):
        if line.op == "argument":
            made.append(given[int(line.value or 0)])
        else:
            made.append(Expression(line.op, tuple(made[i] for i in line.operands), line.value))
    return made[-1]
