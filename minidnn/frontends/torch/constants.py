"""What of a captured program is always the same: weights, what is computed of them alone, and what
is computed of nothing (``arange``, ``zeros``, ``linspace``) or of a shape (``zeros_like``).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, Node

from minidnn._torch_internals import OpOverload
from minidnn.frontends.torch.aten.call import arguments_of, key_of

#: Operations that read an operand's shape and dtype alone, and the number that they give; None is
#: the argument ``fill_value`` or ``value``.  Memory that is not set has zeros here.
_FILLED: dict[str, float | None] = {
    "fill.Scalar": None,
    **dict.fromkeys(("zeros_like.default", "new_zeros.default"), 0),
    **dict.fromkeys(("ones_like.default", "new_ones.default"), 1),
    **dict.fromkeys(("full_like.default", "new_full.default"), None),
    **dict.fromkeys(("empty_like.default", "new_empty.default", "new_empty_strided.default"), 0),
}


def constants(graph: Graph, held: Iterable[Node]) -> dict[Node, None]:
    """What is held, and what is computed of it alone or of nothing, always to the same result."""
    found = dict.fromkeys(held)
    for node in graph.nodes:
        if node.op == "get_attr" and isinstance(node.meta.get("val"), torch.Tensor):
            found[node] = None  # as of ``torch.tensor(2)``
        if node.op != "call_function":
            continue
        operands = node.all_input_nodes
        if node.target is operator.getitem:
            is_constant = node.args[0] in found
        elif operands:
            is_constant = _always_the_same(node) and all(each in found for each in operands)
        else:
            is_constant = _always_the_same(node) and _is_made(node)
        if is_constant:
            found[node] = None
    return found


def _always_the_same(node: Node) -> bool:
    """Whether an operation of PyTorch's gives the same for the same operands."""
    target: Any = node.target
    return (
        isinstance(target, OpOverload)
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
        and target.namespace != "minidnn"
    )


def _is_made(node: Node) -> bool:
    """Whether an operation without operands is one of PyTorch's that makes a tensor: a user's own
    may count its calls."""
    target: Any = node.target
    return target.namespace in ("aten", "prims") and isinstance(node.meta.get("val"), torch.Tensor)


def made_of_nothing(graph: Graph) -> None:
    """Lets what reads an operand's shape alone be made without the operand, and tensors that are
    made of nothing have the dtype that was PyTorch's default when the program was captured."""
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        if key_of(node) in _FILLED:
            _fill(graph, node)
        elif not node.all_input_nodes and _always_the_same(node) and _is_made(node):
            given = arguments_of(node)
            if "dtype" in given and given["dtype"] is None:
                node.kwargs = {**node.kwargs, "dtype": node.meta["val"].dtype}


def _fill(graph: Graph, node: Node) -> None:
    """Replaces a tensor that is filled with one number by one that is made so, and lies so."""
    value: Any = node.meta.get("val")
    number = _FILLED[key_of(node)]
    given = arguments_of(node)
    number = given.get("fill_value", given.get("value")) if number is None else number
    order = _order(value)
    if order is None or not isinstance(number, (bool, int, float, complex)):
        return
    shape = [value.shape[axis] for axis in order]
    options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
    with graph.inserting_before(node):
        made = graph.call_function(torch.ops.aten.full.default, (shape, number), options)
        made.meta = {**node.meta, "val": value.permute(order)}
        if order != list(range(value.dim())):
            inverse = sorted(range(value.dim()), key=order.__getitem__)
            made = graph.call_function(torch.ops.aten.permute.default, (made, inverse))
            made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _order(value: Any) -> list[int] | None:
    """The axes as they lie in memory, the longest way first; None unless it is a plain tensor of
    known shape, each element of which has memory of its own."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    if value.is_quantized or not all(isinstance(size, int) for size in value.shape):
        return None
    order = sorted(range(value.dim()), key=lambda axis: (-value.stride(axis), axis))
    step = 1
    for axis in reversed(order):
        if value.shape[axis] != 1 and value.stride(axis) != step:
            return None
        step *= value.shape[axis]
    return order
