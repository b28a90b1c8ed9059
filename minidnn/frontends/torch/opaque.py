"""Operations of a piece that stay as they are where the piece is made functional.

A ``torch.autograd.Function`` says itself what its gradient is.  Making a graph of a piece without
gradients would put its forward half alone into the graph.  So while the graph is made an operation
of a library stands in its place, of which PyTorch knows nothing but the shapes of its results.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from minidnn._torch_internals import HigherOrderOperator, pytree

#: The name of what Dynamo makes of a call of a ``torch.autograd.Function``.
_FUNCTION = "autograd_function_apply"
_TENSOR = object()

_library = torch.library.Library("minidnn", "FRAGMENT")
_library.define("untouched(Tensor[] tensors, int number) -> Tensor[]")
#: The operations that stand for others while a graph is made.
_made: dict[int, OpaqueOperations] = {}
_numbers = itertools.count()


class OpaqueOperations:
    """A call of an operation, of a list of the tensors among its arguments."""

    minidnn_left = "it is a torch.autograd.Function, which says itself what its gradient is"
    __name__ = _FUNCTION

    def __init__(self, operation: Any, leaves: Sequence[Any], arranged: Any) -> None:
        """leaves: of the arguments, with _TENSOR for each tensor."""
        self._operation = operation
        self._leaves = list(leaves)
        self._arranged = arranged

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = iter(tensors)
        leaves = [next(given) if leaf is _TENSOR else leaf for leaf in self._leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self._arranged)
        results = self._operation(*args, **kwargs)
        return list(results) if isinstance(results, (list, tuple)) else [results]


@torch.library.register_fake("minidnn::untouched", lib=_library)
def _results(tensors: list[torch.Tensor], number: int) -> list[torch.Tensor]:
    with torch.no_grad():
        return [torch.empty_like(each) for each in _made[number](tensors)]


def is_opaque(node: Node) -> bool:
    """Whether Dynamo's node is an operation that has to stay as it is."""
    return isinstance(node.target, HigherOrderOperator) and str(node.target) == _FUNCTION


@contextmanager
def standing_for(piece: GraphModule) -> Iterator[GraphModule]:
    """A piece in which operations of the library stand for such operations."""
    if not any(map(is_opaque, piece.graph.nodes)):
        yield piece
        return
    graph = Graph()
    found: dict[Node, Node] = {}
    own: list[int] = []
    for node in piece.graph.nodes:
        if not is_opaque(node):
            found[node] = graph.node_copy(node, found.__getitem__)
            continue
        leaves, arranged = pytree.tree_flatten((node.args, dict(node.kwargs)))
        tensors = [leaf for leaf in leaves if _is_tensor(leaf)]
        held = [_TENSOR if _is_tensor(leaf) else _held(piece, leaf) for leaf in leaves]
        number = next(_numbers)
        _made[number] = OpaqueOperations(node.target, held, arranged)
        own.append(number)
        operands = [found[each] for each in tensors]
        made = graph.call_function(torch.ops.minidnn.untouched.default, (operands, number))
        made.meta = dict(node.meta)
        is_list = any(user.target is operator.getitem for user in node.users)
        found[node] = made if is_list else graph.call_function(operator.getitem, (made, 0))
    try:
        yield GraphModule(piece, graph)
    finally:
        for number in own:
            del _made[number]


def put_back(graph: Graph) -> None:
    """Puts the operations themselves in the places of those that stood for them."""
    for node in graph.nodes:
        if node.target is torch.ops.minidnn.untouched.default:
            tensors, number = node.args
            node.target, node.args = _made[int(number)], (tensors,)


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Node) and leaf.op != "get_attr"


def _held(piece: GraphModule, leaf: Any) -> Any:
    """What a piece has under a name, as the two halves of a function."""
    return getattr(piece, str(leaf.target)) if isinstance(leaf, Node) else leaf
