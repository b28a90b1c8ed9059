"""Which values of a captured program lie in the same memory.

What schemas say of it is not all: ``einsum`` may give a view, and ``type_as`` the operand itself.
So PyTorch's tensors without data are asked, too, whose storages are shared as those of the real
ones (but where PyTorch has removed writes).

Functionalization knows schemas alone: ``einsum`` that only permutes, or ``x.float()`` of a float,
would be a copy to it, and a write to either would not be seen in the other.  So calls whose result
is their operand, or a view of one, are found beforehand, as Dynamo has run them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from minidnn._torch_internals import OpOverload

#: The key of what marks a node that gives a result in the memory of something else.
SHARED = "minidnn_shared"

#: They give their first operand itself at inference, which tensors without data do not say.
_DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
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


class Memory:
    """The memory of a program's values."""

    def __init__(self, graph: Graph) -> None:
        self._joined: dict[int, int] = {}
        for node in graph.nodes:
            viewed = node.args[0] if _is_view(node) else None
            if isinstance(viewed, Node):
                self.join(node, viewed)

    def join(self, one: Node, other: Node) -> None:
        """Has two values lie in one memory."""
        found = sorted(self.of(one) | self.of(other))
        self._joined.update((storage, found[0]) for storage in found[1:])

    def of(self, node: Node) -> frozenset[int]:
        """The memory of a node's value, or of each in its list."""
        return frozenset(map(self._first, _storages(node.meta.get("val"))))

    def viewed(self, node: Node) -> list[Node]:
        """The operands whose memory a node's value lies in."""
        own = self.of(node)
        return [operand for operand in node.all_input_nodes if own & self.of(operand)]

    def _first(self, storage: int) -> int:
        while storage in self._joined:
            storage = self._joined[storage]
        return storage


def _is_view(node: Node) -> bool:
    """Whether it gives its operand's memory as far as its schema says, or as is known."""
    target: Any = node.target
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return False
    said = any(result.alias_info is not None for result in target._schema.returns)
    return bool(node.args) and (said or is_idle_dropout(node))


def is_idle_dropout(node: Node) -> bool:
    """Whether it is a dropout operation that does nothing."""
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return False
    name = target.overloadpacket.__name__.removesuffix("_")
    return name in _DROPOUTS and node.args[2] is False


def share_results(graph: Graph, writes: Sequence[tuple[int, Node]]) -> None:
    """Lets results that lie in the memory of arguments, of weights or of one another be made in
    that memory, by operations of their own: the caller may write to it.

    writes: results, by place, that are written back to placeholders: what lies in their memory
        lies in those.
    """
    memory = Memory(graph)
    output = next(node for node in graph.nodes if node.op == "output")
    results: Any = output.args[0]
    made = {results[place]: target for place, target in writes}
    own = set(range(len(results))) - {place for place, _ in writes}
    families: dict[frozenset[int], dict[Node, None]] = {}
    for place in sorted(own):
        if isinstance(results[place], Node):
            families.setdefault(memory.of(results[place]), {})[results[place]] = None
    taken = {s for node in (*graph.nodes, *made) if _is_given(node, made) for s in memory.of(node)}
    for storages, family in families.items():
        if len(storages) == 1 and (storages & taken or _meet(list(family))):
            for result in family:
                _share(result, memory, output, made)
    output.args = (
        [
            made.get(result, result) if place in own else result
            for place, result in enumerate(results)
        ],
    )


def _is_given(node: Node, written: Mapping[Node, Node]) -> bool:
    return node.op in ("placeholder", "get_attr") or node in written


def _share(node: Node, memory: Memory, before: Node, made: dict[Node, Node]) -> Node:
    """A copy of the views that lead to a node; the node itself where it is no view."""
    if node not in made:
        made[node] = node
        viewed = memory.viewed(node) if node.op == "call_function" else []
        if viewed:
            found = {each: _share(each, memory, before, made) for each in viewed}
            with before.graph.inserting_before(before):
                made[node] = before.graph.node_copy(node, lambda each: found.get(each, each))
            made[node].meta[SHARED] = True
    return made[node]


def _meet(family: Sequence[Node]) -> bool:
    """Whether values in one memory have elements in common."""
    values = [node.meta["val"] for node in family]
    if len(values) < 2:
        return False
    if len({value.dtype for value in values}) > 1:
        return True
    ends = [_end(value) for value in values]
    taken = torch.zeros(max(ends), dtype=torch.bool, device="cpu")
    for value in values:
        own = taken.as_strided(value.shape, value.stride(), value.storage_offset())
        if own.any():
            return True
        own.fill_(True)
    return False


def _end(value: torch.Tensor) -> int:
    """Behind the last element of a tensor, in its storage."""
    if not value.numel():
        return 0
    steps = zip(value.shape, value.stride(), strict=True)
    return 1 + value.storage_offset() + sum((size - 1) * stride for size, stride in steps)


def _storages(value: Any) -> set[int]:
    if isinstance(value, (list, tuple)):
        return set().union(*map(_storages, value))
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return set()
    return {value.untyped_storage()._cdata}


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
