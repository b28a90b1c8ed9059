"""Rewrites the higher-order operators that Dynamo records in a piece, before it is traced.

A call of a ``torch.autograd.Function`` defines its own gradient.  A piece is traced without
gradients, which would inline its ``forward`` alone.  So while the piece is traced, each such call
is replaced by the custom operator ``minidnn::untouched``, of which PyTorch knows nothing but the
shapes of its results.

A block under ``torch.utils.checkpoint`` is a graph of its own.  Inlined into the piece, the block's
writes, views and operations are seen as those around them are.  Each part of the piece decides
itself what it keeps for its gradients and what it recomputes.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg

from minidnn._torch_internals import (
    HigherOrderOperator,
    enter_inference_mode,
    exit_inference_mode,
    pytree,
    set_grad_enabled,
)

#: The name of the higher-order operator by which Dynamo calls a block.
_CHECKPOINT = "tag_activation_checkpoint"
#: The name of the higher-order operator by which Dynamo calls a ``torch.autograd.Function``.
_FUNCTION = "autograd_function_apply"
#: Stands for a tensor among the leaves of a call's arguments.
_TENSOR = object()

_library = torch.library.Library("minidnn", "FRAGMENT")
_library.define("untouched(Tensor[] tensors, int number) -> Tensor[]")
#: The replaced calls while a piece is traced, by the ``number`` argument of the custom operator.
_made: dict[int, OpaqueOperations] = {}
_numbers = itertools.count()


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


class OpaqueOperations:
    """A replaced call, as a function of the list of the tensors among its arguments.

    An instance is the target of a node, which is left to PyTorch.
    """

    minidnn_left = "it is a torch.autograd.Function, which says itself what its gradient is"
    __name__ = _FUNCTION

    def __init__(self, operation: Any, leaves: Sequence[Any], arranged: Any) -> None:
        """leaves: of the arguments' pytree, with _TENSOR for each tensor; arranged: the pytree's
        structure.
        """
        self._operation = operation
        self._leaves = list(leaves)
        self._arranged = arranged

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        remaining = iter(tensors)
        leaves = [next(remaining) if leaf is _TENSOR else leaf for leaf in self._leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self._arranged)
        results = self._operation(*args, **kwargs)
        return list(results) if isinstance(results, (list, tuple)) else [results]


@torch.library.register_fake("minidnn::untouched", lib=_library)
def _results(tensors: list[torch.Tensor], number: int) -> list[torch.Tensor]:
    """The custom operator's results on fake tensors."""
    with torch.no_grad():
        return [torch.empty_like(each) for each in _made[number](tensors)]


def is_opaque(node: Node) -> bool:
    """Whether a node that Dynamo has recorded calls a ``torch.autograd.Function``."""
    return isinstance(node.target, HigherOrderOperator) and str(node.target) == _FUNCTION


@contextmanager
def standing_for(piece: GraphModule) -> Iterator[GraphModule]:
    """Yields the piece with the custom operator in the place of each opaque operation; it can be
    traced until the block ends."""
    if not any(map(is_opaque, piece.graph.nodes)):
        yield piece
        return
    graph = Graph()
    copies: dict[Node, Node] = {}
    numbers: list[int] = []
    for node in piece.graph.nodes:
        if not is_opaque(node):
            copies[node] = graph.node_copy(node, copies.__getitem__)
            continue
        leaves, arranged = pytree.tree_flatten((node.args, dict(node.kwargs)))
        tensors = [leaf for leaf in leaves if _is_tensor(leaf)]
        values = [_TENSOR if _is_tensor(leaf) else _held(piece, leaf) for leaf in leaves]
        number = next(_numbers)
        _made[number] = OpaqueOperations(node.target, values, arranged)
        numbers.append(number)
        operands = [copies[tensor] for tensor in tensors]
        call = graph.call_function(torch.ops.minidnn.untouched.default, (operands, number))
        call.meta = dict(node.meta)
        is_list = any(user.target is operator.getitem for user in node.users)
        copies[node] = call if is_list else graph.call_function(operator.getitem, (call, 0))
    try:
        yield GraphModule(piece, graph)
    finally:
        for number in numbers:
            del _made[number]


def put_back(graph: Graph) -> None:
    """Replaces each custom operator in a traced graph by the operation that it stands for."""
    for node in graph.nodes:
        if node.target is torch.ops.minidnn.untouched.default:
            tensors, number = node.args
            node.target, node.args = _made[int(number)], (tensors,)


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Node) and leaf.op != "get_attr"


def _held(piece: GraphModule, leaf: Any) -> Any:
    """The value of a leaf: that of a ``get_attr`` node, such as the function's ``forward`` and
    ``backward``, is the piece's attribute."""
    return operator.attrgetter(str(leaf.target))(piece) if isinstance(leaf, Node) else leaf
