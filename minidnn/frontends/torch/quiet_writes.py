"""Writes, where gradients are off, to what a piece has computed with gradients.

Such a write changes a tensor's numbers, and its gradient stays what it was.  A functional graph has
another value from there on, and nothing in it says whose gradient that has.  So such a piece is
PyTorch's.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from minidnn._torch_internals import set_grad_enabled
from minidnn.errors import UnsupportedError

#: Python's operators in place: ``x += y``, ``x[i] = y``.
_OPERATORS = {
    *(operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv),
    *(operator.ifloordiv, operator.imod, operator.ipow, operator.imatmul),
    *(operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift),
}


def check_quiet_writes(piece: GraphModule, enabled: bool) -> None:
    """UnsupportedError if a piece writes so; it names the operation.

    enabled: whether gradients are on where the piece begins.
    """
    taped: dict[int, Node] = {}
    for node in piece.graph.nodes:
        if node.target is set_grad_enabled:
            enabled = bool(node.args[0])
            continue
        if not enabled:
            for storage in _storages(_written(node)):
                if storage in taped:
                    raise UnsupportedError(
                        f"{node.name} writes to {taped[storage].name}, which requires a gradient, "
                        "where gradients are off"
                    )
        if node.op != "placeholder" and _requires_grad(node):
            taped.update(dict.fromkeys(_storages(node), node))


def _written(node: Node) -> Any:
    """What a node of Dynamo's writes to, as far as its name says; None for most."""
    if isinstance(out := node.kwargs.get("out"), Node):
        return out
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    if node.args and (in_place or node.target in _OPERATORS):
        return node.args[0]
    return None


def _requires_grad(node: Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.requires_grad


def _storages(node: Any) -> list[int]:
    """The memory of a node's tensor."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return []
    return [value.untyped_storage()._cdata]
