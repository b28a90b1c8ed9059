"""Which nodes have kernels that know no sizes of planes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...graph.ir import Node
from ...graph.operator import Elementwise, Windowed
from ...graph.window import WindowAxis


def why_of_one_size(nodes: Sequence[Node], dtypes: Collection[str]) -> str | None:
    """Why there is no kernel of a region's nodes for planes of any size, whose values have these
    dtypes; None if there is one."""
    made = [node.output for node in nodes]
    if not all(isinstance(node.op, (Elementwise, Windowed)) for node in nodes):
        return "it joins channels"
    if len({value.type.plane for value in made}) != 1:
        return "its results have several sizes"
    values = [value for node in nodes for value in (*node.inputs, *node.outputs)]
    if (other := next((v.dtype for v in values if v.dtype not in dtypes), None)) is not None:
        return f"it has values of {other}"
    for node in nodes:
        if isinstance(node.op, Windowed):
            window = node.op.window()
            if any(value in made for value in node.inputs[: window.under]):
                return "a window reads what it computes"
            if not all(isinstance(axis, WindowAxis) for axis in window.axes):
                return "a window moves by fractions"
    return None
