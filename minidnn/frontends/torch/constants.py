"""The constants of a captured program: values that are the same in every run.

They are weights, values that are computed from constants alone, and tensors that are created
without operands (``arange``, ``zeros``, ``linspace``) or from a shape (``zeros_like``).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, Node

from minidnn._torch_internals import OpOverload
from minidnn.frontends.torch.aten.call import arguments_of, key_of

#: Operations that read an operand's shape and dtype alone, and the number that they fill a tensor
#: with; None stands for the argument ``fill_value`` or ``value``.  ``empty_like`` gives zeros.
_FILLED: dict[str, float | None] = {
    "fill.Scalar": None,
    **dict.fromkeys(("zeros_like.default", "new_zeros.default"), 0),
    **dict.fromkeys(("ones_like.default", "new_ones.default"), 1),
    **dict.fromkeys(("full_like.default", "new_full.default"), None),
    **dict.fromkeys(("empty_like.default", "new_empty.default", "new_empty_strided.default"), 0),
}


def constants(graph: Graph, held: Iterable[Node]) -> dict[Node, None]:
    """The constant nodes of a graph, in its order: ``held`` ones, and operations that always give
    the same result and have no operands but constants."""
    known = dict.fromkeys(held)
    for node in graph.nodes:
        if node.op == "get_attr" and isinstance(node.meta.get("val"), torch.Tensor):
            known[node] = None  # such as that of ``torch.tensor(2)``
        if node.op != "call_function":
            continue
        operands = node.all_input_nodes
        if node.target is operator.getitem:
            is_constant = node.args[0] in known
        elif operands:
            is_constant = _always_the_same(node) and all(operand in known for operand in operands)
        else:
            is_constant = _always_the_same(node) and _is_made(node)
        if is_constant:
            known[node] = None
    return known


def _always_the_same(node: Node) -> bool:
    """Whether an operation is a pure function: it writes nothing and draws no random numbers."""
    target: Any = node.target
    return (
        isinstance(target, OpOverload)
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
        and target.namespace != "minidnn"
    )


def _is_made(node: Node) -> bool:
    """Whether an operation without operands is one of PyTorch's that creates a tensor.  A custom
    operator may depend on a state, such as the number of its calls."""
    target: Any = node.target
    return target.namespace in ("aten", "prims") and isinstance(node.meta.get("val"), torch.Tensor)


def made_of_nothing(graph: Graph) -> None:
    """Removes the operands of operations that read a shape alone, and makes dtypes explicit.

    A tensor that is created without a dtype gets that which was PyTorch's default when the program
    was captured.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        if key_of(node) in _FILLED:
            _fill(graph, node)
        elif not node.all_input_nodes and _always_the_same(node) and _is_made(node):
            arguments = arguments_of(node)
            if "dtype" in arguments and arguments["dtype"] is None:
                node.kwargs = {**node.kwargs, "dtype": node.meta["val"].dtype}


def _fill(graph: Graph, node: Node) -> None:
    """Replaces an operation by ``full``, followed by a permutation where the axes of the original
    are not in the order of their strides."""
    value: Any = node.meta.get("val")
    number = _FILLED[key_of(node)]
    arguments = arguments_of(node)
    number = arguments.get("fill_value", arguments.get("value")) if number is None else number
    order = _order(value)
    if order is None or not isinstance(number, (bool, int, float, complex)):
        return
    shape = [value.shape[axis] for axis in order]
    options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
    with graph.inserting_before(node):
        filled = graph.call_function(torch.ops.aten.full.default, (shape, number), options)
        filled.meta = {**node.meta, "val": value.permute(order)}
        if order != list(range(value.dim())):
            inverse = sorted(range(value.dim()), key=order.__getitem__)
            filled = graph.call_function(torch.ops.aten.permute.default, (filled, inverse))
            filled.meta = dict(node.meta)
    node.replace_all_uses_with(filled)
    graph.erase_node(node)


def _order(value: Any) -> list[int] | None:
    """The axes by decreasing stride; None unless the value is a dense tensor of known shape whose
    elements fill its memory without gaps or overlaps."""
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
