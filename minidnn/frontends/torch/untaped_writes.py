"""Writes past PyTorch's tape to tensors that have gradients.

Such a write is one where gradients are off, or one to ``tensor.detach()`` or ``tensor.data``.  It
changes a tensor's numbers, and its gradient stays what it was.  A functional graph has another
value from there on, and nothing in it says whose gradient that has.  So a piece is PyTorch's that
writes so to what it has computed, or to what it was given together with other writes.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from minidnn._torch_internals import data_of, set_grad_enabled
from minidnn.errors import UnsupportedError

#: Python's operators in place: ``x += y``, ``x[i] = y``.
_OPERATORS = {
    *(operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv),
    *(operator.ifloordiv, operator.imod, operator.ipow, operator.imatmul),
    *(operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift),
}


def check_untaped_writes(piece: GraphModule, args: Sequence[Any], enabled: bool) -> None:
    """UnsupportedError if a piece writes so; it names the operation.

    args: what the piece is called with; enabled: whether gradients are on where it begins.
    """
    given = iter(args)
    #: What has gradients, by its memory: made by the piece, or given and no leaf.
    made: dict[int, Node] = {}
    lent: dict[int, Node] = {}
    #: What was given, and written to where gradients are off.
    quiet: set[int] = set()
    #: What was read with gradients, and what is the memory of others as ``tensor.data``.
    read: set[int] = set()
    data: set[Node] = set()
    for node in piece.graph.nodes:
        if node.target is set_grad_enabled:
            enabled = bool(node.args[0])
            continue
        written = _written(node)
        is_quiet = not enabled or not _requires_grad(written)
        for storage in _storages(written):
            if is_quiet and storage in made:
                raise UnsupportedError(
                    f"{node.name} writes to {made[storage].name}, which requires a gradient, past "
                    "PyTorch's tape"
                )
            if storage in lent and (enabled if is_quiet else storage in quiet):
                raise UnsupportedError(
                    f"{node.name} writes to {lent[storage].name}, which requires a gradient, and "
                    "not all that is written to it is on PyTorch's tape"
                )
            if is_quiet and storage in lent:
                quiet.add(storage)
            if written in data and storage in read:
                raise UnsupportedError(
                    f"{node.name} writes to {written.name}, the data of a tensor that was read "
                    "before, by which PyTorch may need it again for gradients"
                )
        operands = node.all_input_nodes
        if node.target is data_of or (operands and operands[0] in data):
            data.add(node)
        if enabled and _requires_grad(node):
            read.update(storage for each in operands for storage in _storages(each))
        if node.op == "placeholder":
            arg = next(given)
            if _requires_grad(node) and isinstance(arg, torch.Tensor) and not arg.is_leaf:
                lent.update(dict.fromkeys(_storages(node), node))
        elif _requires_grad(node):
            made.update(dict.fromkeys(_storages(node), node))


def _written(node: Node) -> Any:
    """What a node of Dynamo's writes to, as far as its name says; None for most."""
    if isinstance(out := node.kwargs.get("out"), Node):
        return out
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    if node.args and (in_place or node.target in _OPERATORS):
        return node.args[0]
    return None


def _requires_grad(node: Any) -> bool:
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.requires_grad


def _storages(node: Any) -> list[int]:
    """The memory of a node's tensor."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return []
    return [value.untyped_storage()._cdata]
