"""Writes out what Dynamo records in a piece as blocks: checkpoints and inference mode.

Dynamo records a block under ``torch.utils.checkpoint`` as a graph of its own, and its call as a
higher-order operator.  Inlined into the piece, the block's writes, views and operations are seen as
those around them are.  Each part of the piece decides itself what it keeps for its gradients and
what it recomputes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from torch.fx import Graph, GraphModule, Node, map_arg

from minidnn._torch_internals import (
    HigherOrderOperator,
    enter_inference_mode,
    exit_inference_mode,
    set_grad_enabled,
)

#: The name of the higher-order operator by which Dynamo calls a block.
_CHECKPOINT = "tag_activation_checkpoint"


def inlined(piece: GraphModule) -> GraphModule:
    """Returns the piece with its blocks inlined; the piece itself if it has none."""
    if not any(map(_is_checkpoint, piece.graph.nodes)):
        return piece
    graph = Graph()
    results, output = _copied(piece, piece, "", graph, None)
    graph.output(results).meta = dict(output.meta)
    return GraphModule(piece, graph)


def without_inference_mode(piece: GraphModule, enabled: bool) -> GraphModule:
    """Returns the piece with gradient mode switched where it switches inference mode, which implies
    it; the piece itself if it does not.  A capture that fails would leave inference mode on.

    enabled: whether gradient mode is on where the piece begins.
    """
    if not any(node.target is enter_inference_mode for node in piece.graph.nodes):
        return piece
    graph = Graph()
    copies: dict[Node, Node] = {}
    around: dict[Node, bool] = {}
    for node in piece.graph.nodes:
        if node.target is enter_inference_mode:
            around[node], enabled = enabled, not node.args[0]
        elif node.target is exit_inference_mode:
            enabled = around[node.args[0]]
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            enabled = bool(node.args[0]) if node.target is set_grad_enabled else enabled
            continue
        graph.call_function(set_grad_enabled, (enabled,))
    return GraphModule(piece, graph)


def nodes_of(piece: GraphModule) -> Iterator[Node]:
    """The nodes of a piece and of all graphs in it, such as those of blocks."""
    for module in piece.modules():
        if isinstance(module, GraphModule):
            yield from module.graph.nodes


def _copied(
    root: GraphModule, module: GraphModule, path: str, graph: Graph, operands: Any
) -> tuple[Any, Node]:
    """Copies the nodes of a graph module to the end of a graph.

    root: the piece; path: that of the module in it, with a dot at its end; operands: what stands
    for the module's placeholders, which are copied themselves where it is None.

    Returns what stands for the module's results, and the node that returns them.
    """
    copies: dict[Node, Any] = {}
    remaining = None if operands is None else iter(operands)
    for node in module.graph.nodes:
        if node.op == "output":
            return map_arg(node.args[0], copies.__getitem__), node
        if node.op == "placeholder" and remaining is not None:
            copies[node] = next(remaining)
        elif _is_checkpoint(node):
            block, *given = node.args
            name = path + str(block.target)
            body: Any = operator.attrgetter(name)(root)
            given = map_arg(given, copies.__getitem__)
            copies[node], _ = _copied(root, body, f"{name}.", graph, given)
        elif node.target is operator.getitem and isinstance(copies.get(node.args[0]), tuple):
            copies[node] = copies[node.args[0]][node.args[1]]  # one of a block's results
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node.op == "get_attr":
                copies[node].target = path + str(node.target)
    raise AssertionError("a graph without an output")


def _is_checkpoint(node: Node) -> bool:
    return isinstance(node.target, HigherOrderOperator) and str(node.target) == _CHECKPOINT
