"""Tells which operands a call that Dynamo has recorded writes to in place.

Dynamo records calls as the user's code makes them, before they are operations of ATen.  Of these,
only operators of a library declare in a schema what they write to.  The others are judged by
PyTorch's conventions: the name ends with an underscore, an argument is named ``out``, or one named
``inplace`` is true.

A write past PyTorch's tape happens without gradient mode, or goes to ``tensor.detach()`` or
``tensor.data``.  It changes a tensor's elements but not its place in the autograd graph.  In a
functional graph the tensor is another value from there on, and nothing tells which gradient that
value has.  So a piece is left to PyTorch if it writes past the tape to a tensor that it has
computed, or if it writes to an argument both past the tape and on it.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from minidnn._torch_internals import (
    OpOverload,
    OpOverloadPacket,
    data_of,
    pytree,
    set_grad_enabled,
)
from minidnn.errors import UnsupportedError

#: Python's in-place operators, ``x += y`` and ``x[i] = y``; as methods, their names have two
#: underscores on both sides.
_OPERATORS = {
    *(operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv),
    *(operator.ifloordiv, operator.imod, operator.ipow, operator.imatmul),
    *(operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift),
}
_METHODS = {f"__{each.__name__}__" for each in _OPERATORS}
#: Functions that write to what a layer keeps from call to call: statistics, or a table.
_NORMALIZATIONS = ("batch_norm", "instance_norm")
_TABLES = ("embedding", "embedding_bag")


def written_operands(node: Node) -> list[Node]:
    """The operands that a call writes to in place; empty for a node that is no call."""
    if node.op not in ("call_function", "call_method"):
        return []
    return [each for each in pytree.tree_leaves(list(_written(node))) if isinstance(each, Node)]


def is_always_untaped(node: Node) -> bool:
    """Whether a call writes past PyTorch's tape even in gradient mode: to norms of a table's rows,
    or to statistics."""
    return call_name(node) in (*_NORMALIZATIONS, *_TABLES)


def call_name(node: Node) -> str:
    """The name of the function or method that a node calls."""
    target: Any = node.target
    return target if isinstance(target, str) else str(getattr(target, "__name__", ""))


def _written(node: Node) -> Iterator[Any]:
    """The arguments that a call writes to: tensors, or lists of tensors."""
    name, target = call_name(node), node.target
    arguments = dict(zip(_parameters(target), node.args, strict=False)) | node.kwargs
    yield arguments.get("out")
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        yield from map(arguments.get, _declared(target))
    in_place = name.endswith("_") and not name.endswith("__")
    if in_place or name in _METHODS or target in _OPERATORS or arguments.get("inplace"):
        first = [arguments[key] for key in ("input", "self") if key in arguments]
        yield node.args[0] if node.args else first
    by_default = name == "instance_norm"
    is_training = arguments.get("training", arguments.get("use_input_stats", by_default))
    if name in _NORMALIZATIONS and is_training:
        yield from map(arguments.get, ("running_mean", "running_var"))
    if name in _TABLES and arguments.get("max_norm") is not None:
        yield arguments.get("weight")


def _parameters(target: Any) -> tuple[str, ...]:
    """The names of a function's positional parameters; empty where they are not known."""
    if isinstance(target, str):
        return ()
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return tuple(argument.name for argument in _schemas(target)[0].arguments)
    try:
        return tuple(inspect.signature(target).parameters)
    except (TypeError, ValueError):  # a builtin function of PyTorch
        packet = getattr(torch.ops.aten, getattr(target, "__name__", ""), None)
        return () if packet is None else _parameters(packet)


def _declared(target: Any) -> tuple[str, ...]:
    """The names of the parameters that an operator's schema declares as written to."""
    return tuple(
        argument.name
        for schema in _schemas(target)
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _schemas(target: Any) -> list[Any]:
    """The schemas of an operator: of an overload its own, of a packet those of all overloads."""
    if isinstance(target, OpOverload):
        return [target._schema]
    return [getattr(target, overload)._schema for overload in target.overloads()]


def check_untaped_writes(piece: GraphModule, args: Sequence[Any], enabled: bool) -> None:
    """Raises UnsupportedError, which names the operation, if a piece writes past the tape in a way
    that a functional graph cannot express.

    args: the arguments of the piece; enabled: whether gradient mode is on where it begins.
    """
    remaining = iter(args)
    # Tensors that require gradients, by storage: those that the piece computes, and non-leaf
    # arguments.
    made: dict[int, Node] = {}
    owners: dict[int, Node] = {}
    # Storages of arguments that were written to past the tape.
    quiet: set[int] = set()
    # Storages that were read on the tape, and nodes that come from a ``tensor.data``.
    read: set[int] = set()
    data: set[Node] = set()
    for node in piece.graph.nodes:
        if node.target is set_grad_enabled:
            enabled = bool(node.args[0])
            continue
        operands = written_operands(node)
        for written, storage in [(each, one) for each in operands for one in _storages(each)]:
            is_quiet = not enabled or not _requires_grad(written) or is_always_untaped(node)
            if is_quiet and storage in made:
                raise UnsupportedError(
                    f"{node.name} writes to {made[storage].name}, which requires a gradient, past "
                    "PyTorch's tape"
                )
            if storage in owners and (enabled if is_quiet else storage in quiet):
                raise UnsupportedError(
                    f"{node.name} writes to {owners[storage].name}, which requires a gradient, and "
                    "not all that is written to it is on PyTorch's tape"
                )
            if is_quiet and storage in owners:
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
            read.update(storage for operand in operands for storage in _storages(operand))
        if node.op == "placeholder":
            arg = next(remaining)
            if _requires_grad(node) and isinstance(arg, torch.Tensor) and not arg.is_leaf:
                owners.update(dict.fromkeys(_storages(node), node))
        elif _requires_grad(node):
            made.update(dict.fromkeys(_storages(node), node))


def _requires_grad(node: Node) -> bool:
    """Whether a node's tensor, or one in its list, requires a gradient."""
    return any(each.requires_grad for each in _tensors(node))


def _storages(node: Node) -> list[int]:
    """The storages of a node's dense tensors."""
    tensors = [each for each in _tensors(node) if each.layout is torch.strided]
    return [each.untyped_storage()._cdata for each in tensors]


def _tensors(node: Node) -> list[torch.Tensor]:
    """The tensors among the example values that Dynamo has recorded for a node."""
    value = node.meta.get("example_value")
    values = value if isinstance(value, (list, tuple)) else (value,)
    return [each for each in values if isinstance(each, torch.Tensor)]
