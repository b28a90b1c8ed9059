"""Gradients of gradients: PyTorch runs a part's operations again, and differentiates these.

The gradient of a part is a compiled program, which PyTorch cannot differentiate.  Where it is asked
to (``create_graph=True``), the operations that the part was converted from run in PyTorch, on the
part's inputs, and PyTorch's own gradient replaces the program's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from minidnn.acceleration.engine import memory_of
from minidnn.frontends.torch.aten.call import arguments_of, key_of
from minidnn.frontends.torch.captured import Captured

#: Operands of a batch normalization on which its result in training does not depend.
_STATISTICS = ("running_mean", "running_var")

#: The state of autocast: kind of device, dtype, whether it is on.
Autocast = tuple[str, torch.dtype, bool]


def autocast_of(tensor: torch.Tensor) -> Autocast:
    """Returns the state of autocast for a tensor's device."""
    kind = memory_of(tensor).partition(":")[0]
    return kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)


def in_pytorch(
    captured: Captured,
    nodes: Iterable[fx.Node],
    inputs: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
) -> Callable[..., Any]:
    """Returns a function that computes a part's outputs (a tuple) from its inputs in PyTorch."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    modules: dict[str, Any] = {}

    def value(node: fx.Node) -> fx.Node:
        if node not in copies:
            if node.op == "get_attr":
                target = str(node.target)
                modules[target] = operator.attrgetter(target)(captured.module)
            copies[node] = graph.node_copy(node, value)
        return copies[node]

    for node in nodes:
        value(node)
    graph.output(tuple(map(value, outputs)))
    return fx.GraphModule(modules, graph).forward


def affects_outputs(node: fx.Node) -> bool:
    """Whether a part's results depend on an input; in training not on running statistics."""
    return not all(
        "batch_norm" in key_of(user)
        and arguments_of(user).get("training")
        and all(arguments_of(user)[name] is node for name in _names_of(user, node))
        for user in node.users
        if user.op != "output"
    )


def _names_of(user: fx.Node, node: fx.Node) -> list[str]:
    """The names of a user's arguments that are this node, if all are running statistics; else all
    statistics and the input, which are not all this node."""
    names = [name for name, given in arguments_of(user).items() if given is node]
    return names if set(names) <= set(_STATISTICS) else [*_STATISTICS, "input"]


def gradients_again(
    compute: Callable[..., Any],
    autocast: Autocast,
    tensors: Sequence[torch.Tensor],
    trained: Sequence[int],
    gradients: Sequence[torch.Tensor | None],
) -> Sequence[torch.Tensor | None]:
    """Returns the gradients by the tensors at the places ``trained``, on PyTorch's tape.

    gradients: the gradient by each result that may have one; None where there is none.
    """
    kind, dtype, is_on = autocast
    with torch.enable_grad(), torch.autocast(kind, dtype, is_on):
        results = compute(*tensors)
    pairs = [
        (result, gradient)
        for result, gradient in zip(results, gradients, strict=False)
        if gradient is not None and result.requires_grad
    ]
    if not pairs:
        return [None] * len(trained)
    by = [tensors[place] for place in trained]
    ends, seeds = (list(each) for each in zip(*pairs, strict=True))
    return torch.autograd.grad(ends, by, seeds, create_graph=True, allow_unused=True)
