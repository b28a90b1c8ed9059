"""Batch tiling: rewrites a group of nodes to a graph over one image of its batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...fusion.region import Region
from ...fusion.stacks import boundary
from ...graph.ir import Constant, Graph, Node, Value
from ...memory import Annotations, BufferView
from ...runtime.plan import Plan


def one_image(plan: Plan, nodes: Sequence[Node]) -> tuple[Plan, dict[Value, Value]]:
    """The plan for the nodes alone over a batch of one image, and for each value of its graph the
    value of the whole plan that it is an image of.

    Layouts, and views of wider buffers, are those of the whole plan.
    """
    graph, annotations = plan.graph, plan.annotations
    image = _Image(graph.inputs[0].type.plane[0])
    new = [image.node(node) for node in nodes]
    inputs, outputs = boundary(graph, nodes)
    values = [*inputs, *(value for node in nodes for value in node.outputs)]
    layouts = {image.of(v): annotations.layouts[v] for v in values if v in annotations.layouts}
    placements = {
        image.of(v): BufferView(image.of(placement.buffer), placement.channel)
        for v in values
        if (placement := annotations.placements.get(v)) is not None
    }
    small = Graph(map(image.of, inputs), map(image.of, outputs), new, graph.name)
    result = replace(plan, graph=small, annotations=Annotations(layouts, placements))
    return result, {image_value: value for value, image_value in image.known.items()}


class _Image:
    """Makes nodes and values over one image from those over the batch."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        #: The values of the batch, and those of one image.
        self.known: dict[Value, Value] = {}

    def of(self, value: Value) -> Value:
        """The value for one image; constants, and what all images share, stay as they are."""
        if isinstance(value, Constant) or value.shape[0] != self.batch:
            return value
        if value not in self.known:
            type = value.type.with_shape((1, *value.shape[1:]))
            self.known[value] = Value(type, value.name)
        return self.known[value]

    def node(self, node: Node) -> Node:
        op = node.op
        if isinstance(op, Region):
            op = replace(op, body=self.body(op.body))
        new = Node(op, [self.of(value) for value in node.inputs], node.name, node.source)
        self.known.update(zip(node.outputs, new.outputs, strict=True))
        return new

    def body(self, graph: Graph) -> Graph:
        inside = _Image(self.batch)
        inputs = [inside.of(value) for value in graph.inputs]
        nodes = [inside.node(node) for node in graph.nodes]
        return Graph(inputs, map(inside.of, graph.outputs), nodes, graph.name)
