"""Detects writes past PyTorch's tape to tensors that require gradients.

Such a write happens without gradient mode, or goes to ``tensor.detach()`` or ``tensor.data``.  It
changes a tensor's elements but not its place in the autograd graph.  In a functional graph the
tensor is another value from there on, and nothing tells which gradient that value has.  So a piece
is left to PyTorch if it writes past the tape to a tensor that it has computed, or if it writes to
an argument both past the tape and on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from minidnn._torch_internals import data_of, set_grad_enabled
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.writes import is_always_untaped, written_operands


def check_untaped_writes(piece: GraphModule, args: Sequence[Any], enabled: bool) -> None:
    """Raises UnsupportedError, which names the operation, if a piece writes past the tape in a way
    that a functional graph cannot express.

    args: the arguments of the piece; enabled: whether gradient mode is on where it begins.
    """
    remaining = iter(args)
    # Tensors that require gradients, by storage: those that the piece computes, and non-leaf
    # arguments.
    made: dict[int, Node] = {}
    lent: dict[int, Node] = {}
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
            read.update(storage for operand in operands for storage in _storages(operand))
        if node.op == "placeholder":
            arg = next(remaining)
            if _requires_grad(node) and isinstance(arg, torch.Tensor) and not arg.is_leaf:
                lent.update(dict.fromkeys(_storages(node), node))
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
