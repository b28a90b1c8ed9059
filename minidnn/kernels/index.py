"""What lanes share of an expression, and what is their own."""

from __future__ import annotations

from collections.abc import Container, Iterator

from .ir import Expr, constant


def differs(expr: Expr, varying: Container[Expr]) -> bool:
    """Whether an expression differs from lane to lane, as variables in ``varying`` do; what is
    computed is computed for each."""
    return any(
        each.op == "compute" or (each.op == "var" and each in varying) for each in expr.walk()
    )


def split(index: Expr, varying: Container[Expr]) -> tuple[Expr, Expr]:
    """An index as a sum of what all lanes share and what is a lane's own."""
    if not differs(index, varying):
        return index, constant(0)
    if index.op == "add":
        (a, own_a), (b, own_b) = (split(term, varying) for term in index.args)
        return a + b, own_a + own_b
    if index.op == "mul" and not differs(index.args[1], varying):
        shared, own = split(index.args[0], varying)
        return shared * index.args[1], own * index.args[1]
    return constant(0), index


def conjuncts(condition: Expr) -> Iterator[Expr]:
    """What a condition is the conjunction of."""
    if condition.op == "and":
        for each in condition.args:
            yield from conjuncts(each)
    else:
        yield condition
