"""The table of gradient rules, one for each operator class.

A rule is an operator's vector-Jacobian product: from the gradients of a node's outputs it makes
those of its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minidnn.errors import UnsupportedError
from minidnn.graph.ir import Node, Value


@dataclass(frozen=True)
class Backward:
    """The argument of a rule: a node, and the gradients of its outputs.

    Operators that the rule applies, and arithmetic on values, are recorded as nodes of the gradient
    graph.
    """

    node: Node
    #: One gradient for each output; None for an output that the loss does not depend on.
    gradients: tuple[Value | None, ...]
    #: For each operand, whether its gradient is asked for.
    wanted: tuple[bool, ...]

    @property
    def op(self) -> Any:
        return self.node.op

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self.node.inputs

    @property
    def output(self) -> Value:
        return self.node.output

    @property
    def gradient(self) -> Value:
        """The gradient of the output of a node that has one."""
        (gradient,) = self.gradients
        assert gradient is not None
        return gradient


#: Returns the gradients of a node's operands, with None for one that is zero or not wanted.
Rule = Callable[[Backward], Sequence[Value | None]]

RULES: dict[type[Any], Rule] = {}
#: Operators that can have no rule, and the reason that an error gives.
REASONS: dict[type[Any], str] = {}


def rule(*kinds: type[Any]) -> Callable[[Rule], Rule]:
    """A decorator that enters a function as the rule of operators and their subclasses."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return enter


def rule_of(node: Node) -> Rule:
    """The rule of a node's operator; UnsupportedError if it has none."""
    reason = (
        "there is no rule for it; minidnn.gradients.table.rule enters one, and of an optimized "
        "graph the gradient must be taken before it is optimized"
    )
    for kind in type(node.op).__mro__:
        if kind in RULES:
            return RULES[kind]
        if kind in REASONS:
            reason = REASONS[kind]
            break
    raise UnsupportedError(f"node {node.name!r} ({node.op}) has no gradient: {reason}")
