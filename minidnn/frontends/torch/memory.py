"""Alias analysis: which values of a captured program share memory.

Schemas do not declare every alias: ``einsum`` may return a view, and ``type_as`` the operand
itself.  So the storages of the fake tensors are compared, too.  Fake tensors share storages as the
real tensors do, except where functionalization has removed writes.

Functionalization itself relies on schemas alone: it would treat an ``einsum`` that only permutes,
or ``x.float()`` of a float32 tensor, as a copy, and a write to either value would not be seen in
the other.  So calls whose result is their operand, or a view of one, are found before it runs,
from the example values that Dynamo has recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from minidnn._torch_internals import OpOverload
from minidnn.frontends.torch.writes import call_name, written_operands

#: The key in ``node.meta`` that marks an operation whose result is a view of an argument, of a
#: weight or of another result.
SHARED = "minidnn_shared"

#: Dropouts return their first operand itself at inference, which fake tensors do not show.
_DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
#: Calls that may return views of operands.
_VIEWS = ("einsum", "broadcast_tensors", "meshgrid", "chain_matmul")
#: Names of calls that may return their first operand itself.
_CONVERSIONS = (
    *("to", "type", "type_as", "cpu", "cuda", "float", "double", "half", "bfloat16"),
    *("bool", "byte", "char", "short", "int", "long"),
)


class Memory:
    """The memory of a program's values, as sets of storages.

    A storage is identified by the address of the fake tensor's storage.  Storages that are known to
    be one are merged by union-find.
    """

    def __init__(self, graph: Graph) -> None:
        #: The union-find forest: the parent of each storage that is not a root.
        self._parents: dict[int, int] = {}
        for node in graph.nodes:
            viewed = node.args[0] if _is_view(node) else None
            if isinstance(viewed, Node):
                self.merge(node, viewed)

    def merge(self, one: Node, other: Node) -> None:
        """Records that two values share memory."""
        roots = sorted(self.of(one) | self.of(other))
        self._parents.update((storage, roots[0]) for storage in roots[1:])

    def of(self, node: Node) -> frozenset[int]:
        """The storages of a node's value, or of all tensors in its list."""
        return frozenset(map(self._first, _storages(node.meta.get("val"))))

    def viewed(self, node: Node) -> list[Node]:
        """The operands that a node's value shares memory with."""
        storages = self.of(node)
        return [operand for operand in node.all_input_nodes if storages & self.of(operand)]

    def _first(self, storage: int) -> int:
        while storage in self._parents:
            storage = self._parents[storage]
        return storage


def _is_view(node: Node) -> bool:
    """Whether an operation returns a view of its first operand: its schema declares it, or the
    operation is an idle dropout."""
    target: Any = node.target
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return False
    declared = any(result.alias_info is not None for result in target._schema.returns)
    return bool(node.args) and (declared or is_idle_dropout(node))


def is_idle_dropout(node: Node) -> bool:
    """Whether a node is a dropout in evaluation mode, which returns its operand."""
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return False
    name = target.overloadpacket.__name__.removesuffix("_")
    return name in _DROPOUTS and node.args[2] is False


def share_results(graph: Graph, writes: Sequence[tuple[int, Node]]) -> None:
    """Copies the views that lead to results in the memory of arguments, of weights or of one
    another, and marks the copies with :data:`SHARED`.

    The caller may write to such a result, so it has to be a true view at run time.

    writes: position and placeholder of each result that is written back: views of such a result
        become views of the placeholder's tensor.
    """
    memory = Memory(graph)
    output = next(node for node in graph.nodes if node.op == "output")
    results: Any = output.args[0]
    replacements = {results[position]: target for position, target in writes}
    returned = set(range(len(results))) - {position for position, _ in writes}
    families: dict[frozenset[int], dict[Node, None]] = {}
    for position in sorted(returned):
        if isinstance(results[position], Node):
            families.setdefault(memory.of(results[position]), {})[results[position]] = None
    external = {
        s
        for node in (*graph.nodes, *replacements)
        if _is_given(node, replacements)
        for s in memory.of(node)
    }
    for storages, family in families.items():
        if len(storages) == 1 and (storages & external or _meet(list(family))):
            for result in family:
                _share(result, memory, output, replacements)
    output.args = (
        [
            replacements.get(result, result) if position in returned else result
            for position, result in enumerate(results)
        ],
    )


def _is_given(node: Node, written: Mapping[Node, Node]) -> bool:
    return node.op in ("placeholder", "get_attr") or node in written


def _share(node: Node, memory: Memory, before: Node, copies: dict[Node, Node]) -> Node:
    """Returns a copy of the chain of views that leads to a node, inserted before ``before``; the
    node itself where it is no view.

    copies: the copies by original node; extended here.
    """
    if node not in copies:
        copies[node] = node
        viewed = memory.viewed(node) if node.op == "call_function" else []
        if viewed:
            views = {each: _share(each, memory, before, copies) for each in viewed}
            with before.graph.inserting_before(before):
                copies[node] = before.graph.node_copy(node, lambda each: views.get(each, each))
            copies[node].meta[SHARED] = True
    return copies[node]


def _meet(family: Sequence[Node]) -> bool:
    """Whether values in one storage overlap."""
    values = [node.meta["val"] for node in family]
    if len(values) < 2:
        return False
    if len({value.dtype for value in values}) > 1:
        return True
    ends = [_end(value) for value in values]
    occupied = torch.zeros(max(ends), dtype=torch.bool, device="cpu")
    for value in values:
        view = occupied.as_strided(value.shape, value.stride(), value.storage_offset())
        if view.any():
            return True
        view.fill_(True)
    return False


def _end(value: torch.Tensor) -> int:
    """The offset in its storage after a tensor's last element, in elements."""
    if not value.numel():
        return 0
    extents = zip(value.shape, value.stride(), strict=True)
    return 1 + value.storage_offset() + sum((size - 1) * stride for size, stride in extents)


def _storages(value: Any) -> set[int]:
    if isinstance(value, (list, tuple)):
        return set().union(*map(_storages, value))
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return set()
    return {value.untyped_storage()._cdata}


def returned_operand(node: Node) -> Node | None:
    """The operand that a call returns unchanged; None if it returns a new tensor."""
    name, operand = call_name(node), next(iter(node.args), None)
    if not isinstance(operand, Node):
        return None
    if name == "dropout":
        named = dict(zip(("p", "training"), node.args[1:], strict=False)) | node.kwargs
        training = named.get("training", named.get("train", True))
        return operand if training is False or named.get("p", 0.5) == 0 else None
    if name not in _CONVERSIONS:
        return None
    outputs, inputs = _tensors(node), _tensors(operand)
    return operand if outputs and inputs and _view(outputs[0]) == _view(inputs[0]) else None


def written_views(piece: GraphModule) -> dict[Node, list[Node | None]]:
    """The calls that return undeclared views, where the piece may write to the views' memory later.

    For each tensor that a call returns, its operand that the tensor is a view of, or None.
    """
    # The storages of tensors that are an operand itself, where the example value is another tensor.
    origins: dict[int, int] = {}
    for node in piece.graph.nodes:
        if (operand := returned_operand(node)) is not None:
            for made, given in zip(_tensors(node), _tensors(operand), strict=True):
                origins[_storage(made)] = origins.get(_storage(given), _storage(given))
    views: dict[Node, list[Node | None]] = {}
    written: set[int] = set()
    for node in reversed(piece.graph.nodes):
        storages = {origins.get(each, each) for each in map(_storage, _tensors(node))}
        if not written.isdisjoint(storages) and (bases := _bases(node)):
            views[node] = bases
        for operand in written_operands(node):
            written.update(origins.get(each, each) for each in map(_storage, _tensors(operand)))
    return views


def _bases(node: Node) -> list[Node | None]:
    """For each tensor that a call returns, the operand that it is an undeclared view of, or None;
    an empty list where there is no such view."""
    if call_name(node) not in _VIEWS:
        return []
    owners = {_storage(t): operand for operand in node.all_input_nodes for t in _tensors(operand)}
    bases = [owners.get(_storage(each)) for each in _tensors(node)]
    return bases if any(each is not None for each in bases) else []


def as_views(made: Any, operands: Sequence[Any]) -> Any:
    """Returns the results of a call, each as a declared view (``as_strided``) of its operand where
    that is not None."""
    results = [
        each
        if operand is None
        else operand.as_strided(each.shape, each.stride(), each.storage_offset())
        for each, operand in zip(_all(made), operands, strict=True)
    ]
    return results[0] if isinstance(made, torch.Tensor) else results


def _tensors(node: Node) -> list[torch.Tensor]:
    """The dense tensors among the example values that Dynamo has recorded for a node."""
    tensors = [each for each in _all(node.meta.get("example_value")) if torch.is_tensor(each)]
    return [each for each in tensors if each.layout is torch.strided and not each.is_nested]


def _all(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _view(tensor: torch.Tensor) -> Any:
    """The storage, offset, shape, strides, dtype and device of a tensor: those of two tensors are
    equal if they are the same view."""
    address = _storage(tensor), str(tensor.storage_offset())
    return *address, str(tensor.shape), str(tensor.stride()), tensor.dtype, tensor.device
