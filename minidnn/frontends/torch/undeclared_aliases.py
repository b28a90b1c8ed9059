"""Calls that give an operand, or a view of one, of which their schemas say nothing.

Functionalization tells from schemas which values lie in one memory.  ``einsum`` that only permutes,
or ``x.float()`` of a float, would be a copy to it, and a write to either would not be seen in the
other.  Dynamo has run every call on tensors without data, whose storages are shared as those of
the real ones.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

#: Calls that may give a view of an operand.
_VIEWS = ("einsum", "broadcast_tensors", "meshgrid", "chain_matmul")
#: Calls that may give their first operand itself, by their names.
_CONVERSIONS = (
    *("to", "type", "type_as", "cpu", "cuda", "float", "double", "half", "bfloat16"),
    *("bool", "byte", "char", "short", "int", "long"),
)
#: Functions that assign to their first operand.
_ASSIGNING = (
    *(operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv),
    *(operator.ifloordiv, operator.imod, operator.ipow, operator.iand, operator.ior),
    *(operator.ixor, operator.ilshift, operator.irshift, operator.imatmul),
)
#: Functions with an argument that says whether they write to their first operand.
_WITH_INPLACE = (
    *("relu", "relu6", "elu", "selu", "celu", "leaky_relu", "hardswish", "hardsigmoid", "silu"),
    *("mish", "hardtanh", "rrelu", "threshold", "dropout", "alpha_dropout", "normalize"),
)


def returned_operand(node: Node) -> Node | None:
    """The operand that a call gives, if it gives one as it is."""
    name, operand = _name(node), next(iter(node.args), None)
    if not isinstance(operand, Node):
        return None
    if name == "dropout":
        named = dict(zip(("p", "training"), node.args[1:], strict=False)) | node.kwargs
        training = named.get("training", named.get("train", True))
        return operand if training is False or named.get("p", 0.5) == 0 else None
    if name not in _CONVERSIONS:
        return None
    made, given = _tensors(node), _tensors(operand)
    return operand if made and given and _lying(made[0]) == _lying(given[0]) else None


def viewed(node: Node) -> list[Node | None]:
    """Of each tensor that a call gives, the operand of which it is a view that no schema tells; no
    operand at all where there is none."""
    if _name(node) not in _VIEWS:
        return []
    given = {_storage(t): operand for operand in node.all_input_nodes for t in _tensors(operand)}
    found = [given.get(_storage(each)) for each in _tensors(node)]
    return found if any(each is not None for each in found) else []


def as_views(made: Any, operands: Sequence[Any]) -> Any:
    """The same results as views of operands, where there is one, that PyTorch knows as views."""
    results = [
        each
        if operand is None
        else operand.as_strided(each.shape, each.stride(), each.storage_offset())
        for each, operand in zip(_all(made), operands, strict=True)
    ]
    return results[0] if isinstance(made, torch.Tensor) else results


def may_write(piece: GraphModule) -> bool:
    """Whether a piece may write to a tensor."""
    return any(map(_may_write, piece.graph.nodes))


def _may_write(node: Node) -> bool:
    name = _name(node)
    return (
        (name.endswith("_") and not name.endswith("__"))
        or node.target in _ASSIGNING
        or "out" in node.kwargs
        or node.kwargs.get("inplace") is True
        or (node.op == "call_function" and True in node.args and name in _WITH_INPLACE)
    )


def _name(node: Node) -> str:
    target: Any = node.target
    return target if isinstance(target, str) else str(getattr(target, "__name__", ""))


def _tensors(node: Node) -> list[torch.Tensor]:
    """What Dynamo has seen that a node gives."""
    found = [each for each in _all(node.meta.get("example_value")) if torch.is_tensor(each)]
    return [each for each in found if each.layout is torch.strided and not each.is_nested]


def _all(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _lying(tensor: torch.Tensor) -> Any:
    """Where and how a tensor lies in memory, and of which type it is."""
    place = _storage(tensor), str(tensor.storage_offset())
    return *place, str(tensor.shape), str(tensor.stride()), tensor.dtype, tensor.device
