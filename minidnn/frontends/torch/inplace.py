"""Writes in place, as operations that give new tensors.

``relu_(x)`` becomes ``relu(x)`` whose result stands for ``x`` from there on.  That is the same
where nothing else sees the memory of ``x`` later: no view made before, no input of the program.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Graph, Node

from minidnn._torch_internals import OpOverload
from minidnn.frontends.torch.memory import Memory, is_idle_dropout

#: The key, in the ``meta`` of a node, of what says that it writes to what the module holds.
WRITES = "minidnn_writes"


#: Operations in place whose form that gives a new tensor has another name.
_FORMS = {torch.ops.aten.bernoulli_.float: torch.ops.aten.bernoulli.p}


def without_writes(graph: Graph, kept: Collection[Node] = ()) -> str | None:
    """Replaces all writes in place; or says why one cannot be, the graph then being half done.

    kept: inputs whose memory is written to as the program says.
    """
    position = {node: i for i, node in enumerate(graph.nodes)}
    memory = Memory(graph)
    family: dict[int, list[Node]] = {}
    allowed = {storage for node in kept for storage in memory.of(node)}
    for node in list(graph.nodes):
        written = _written(node)
        if isinstance(written, str):
            return written
        if isinstance(written, Node) and not memory.of(written).isdisjoint(allowed):
            node.meta[WRITES] = True
        elif written is not None:
            shared = _shared(written, node, memory, family, position)
            if shared is not None:
                return shared
            new = _functional(node)
            if new is None:
                return f"{node.target} has no form that gives a new tensor"
            node.target = new
            written.replace_all_uses_with(
                node,
                delete_user_cb=lambda user, here=position[node]: position[user] > here,
            )
        for storage in memory.of(node):
            family.setdefault(storage, []).append(node)
    return None


def writing_to(graph: Graph, names: Collection[str]) -> list[Node]:
    """The operations that write to the memory of inputs of these names."""
    memory = Memory(graph)
    inputs = [
        node
        for node in graph.nodes
        if node.op == "placeholder" and node.name in names and not _is_copied(node)
    ]
    own = {storage for node in inputs for storage in memory.of(node)}
    written = ((node, _written(node)) for node in graph.nodes) if own else ()
    return [node for node, to in written if isinstance(to, Node) and own & memory.of(to)]


def _is_copied(node: Node) -> bool:
    """Whether a tensor is read by ``torch.tensor`` alone, each call of which makes a new one."""
    return bool(node.users) and all(
        user.target is torch.ops.aten.lift_fresh_copy.default for user in node.users
    )


def without_dropout(graph: Graph) -> None:
    """Puts the operands of dropout operations, which do nothing at inference, in their place."""
    for node in list(graph.nodes):
        if node.op == "call_function" and is_idle_dropout(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _written(node: Node) -> Node | str | None:
    """The operand that a node writes to, None for most nodes, or why it cannot be told."""
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return None
    schema = target._schema
    if not schema.is_mutable:
        return None
    writes = [
        (i, argument.name)
        for i, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if len(writes) != 1 or writes[0][0] >= len(node.args):
        return f"{target} writes to {', '.join(name for _, name in writes)}"
    operand = node.args[writes[0][0]]
    return operand if isinstance(operand, Node) else f"{target} writes to {operand}"


def _shared(
    written: Node,
    node: Node,
    memory: Memory,
    family: dict[int, list[Node]],
    position: dict[Node, int],
) -> str | None:
    """Who else would see what ``node`` writes to ``written``, or None."""
    for storage in memory.of(written):
        origin, *_ = family[storage]
        if origin.op != "call_function":
            return f"{node.target} writes to {origin.name}, which the program was given"
        for other in family[storage]:
            if other is not written and any(
                position[user] > position[node] for user in other.users
            ):
                return (
                    f"{node.target} writes to {written.name}, which {other.name} shares memory with"
                )
    return None


def _functional(node: Node) -> Any:
    """The operation that computes the same without writing, or None."""
    target: Any = node.target
    if target in _FORMS:
        return _FORMS[target]
    namespace, name = target.overloadpacket._qualified_op_name.split("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    if not name.endswith("_") or packet is None:
        return None
    overload = getattr(packet, target._overloadname, None)
    if overload is None:
        return None
    # Names of first operands differ here and there; they are given by position.
    before, after = ([str(a.type) for a in f._schema.arguments] for f in (target, overload))
    return overload if before == after else None
