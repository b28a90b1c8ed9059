"""The region of a contraction, divided into prologue, contraction and epilogue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minidnn.fusion.operations import Operation, operation_of
from minidnn.fusion.region import FusedContraction
from minidnn.graph.ir import Node, Value
from minidnn.graph.operator import Contraction, Elementwise


@dataclass(frozen=True, eq=False)
class Parts:
    """What a contraction's kernel computes.

    The prologue turns ``source`` into the contraction's operand 0, element by element; the epilogue
    turns the contraction's result into ``result``, whose mean and variance over all axes but that
    of channels may be results, too.  Prologue and epilogue are operations in order, over their
    chain, vectors with one element per channel, and (the epilogue) further tensors.
    """

    node: Node
    prologue: tuple[Operation, ...] = ()
    epilogue: tuple[Operation, ...] = ()
    #: Mean and variance of the result, if they are computed with it.
    statistics: tuple[Value, ...] = ()

    @property
    def source(self) -> Value:
        """The tensor that is read: the first operand of the prologue, or of the contraction."""
        return self.prologue[0].operands[0] if self.prologue else self.node.inputs[0]

    @property
    def result(self) -> Value:
        return self.epilogue[-1].output if self.epilogue else self.node.output

    @property
    def others(self) -> tuple[Value, ...]:
        """The tensors that the epilogue reads beside the contraction's result."""
        computed = {self.node.output, *(operation.output for operation in self.epilogue)}
        read = (v for operation in self.epilogue for v in operation.operands)
        return tuple(dict.fromkeys(v for v in read if v not in computed))

    @property
    def vectors(self) -> tuple[Value, ...]:
        """The vectors over channels that prologue and epilogue read, in order."""
        operations: Iterable[Operation] = (*self.prologue, *self.epilogue)
        return tuple(dict.fromkeys(v.value for o in operations for v in o.vectors))


def parts_of(node: Node) -> Parts:
    """Returns the parts of a fused contraction, or of a contraction by itself."""
    if isinstance(node.op, Contraction):
        return Parts(node)
    assert isinstance(node.op, FusedContraction)
    region = node.op
    prologue, epilogue = (
        tuple(operation_of(inner, 0) for inner in nodes)
        for nodes in (region.prologue, region.epilogue)
    )
    return Parts(region.core, prologue, epilogue, tuple(n.output for n in region.reductions))


def why_not_point_by_point(contraction: Node, node: Node) -> str | None:
    """Why a node is not computed element by element in float32 on the integer sums of a
    contraction; None if it is."""
    if not isinstance(node.op, Elementwise):
        return f"{node.op.name} is a {node.op.kind} operator"
    if node.output.shape != contraction.output.shape:
        return "it changes the shape"
    if node.op.computed_in([value.dtype for value in node.inputs]) != "float32":
        return "it does not compute in float32"
    return None
