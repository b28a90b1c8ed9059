"""Gradients of gradients: PyTorch computes a part again, and differentiates what it does.

A part's gradient is a program, which PyTorch cannot differentiate.  Where it is asked to
(``create_graph=True``), the operations that the part was made of run in PyTorch, on what the part
was given, and PyTorch's own gradient takes the place of the program's.
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

#: Operands that do not count for a result in training.
_STATISTICS = ("running_mean", "running_var")

#: Whether autocast is on, for which kind of device and to which dtype.
Autocast = tuple[str, torch.dtype, bool]


def autocast_of(tensor: torch.Tensor) -> Autocast:
    """How autocast is set for a tensor's device."""
    kind = memory_of(tensor).partition(":")[0]
    return kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)


def in_pytorch(
    captured: Captured,
    nodes: Iterable[fx.Node],
    inputs: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
) -> Callable[..., Any]:
    """A function of a part's inputs that has PyTorch compute its outputs, a tuple."""
    graph = fx.Graph()
    found = {node: graph.placeholder(node.name) for node in inputs}
    modules: dict[str, Any] = {}

    def value(node: fx.Node) -> fx.Node:
        if node not in found:
            if node.op == "get_attr":
                target = str(node.target)
                modules[target] = operator.attrgetter(target)(captured.module)
            found[node] = graph.node_copy(node, value)
        return found[node]

    for node in nodes:
        value(node)
    graph.output(tuple(map(value, outputs)))
    return fx.GraphModule(modules, graph).forward


def counts(node: fx.Node) -> bool:
    """Whether anything that is computed of an input depends on it."""
    return not all(
        "batch_norm" in key_of(user)
        and arguments_of(user).get("training")
        and all(arguments_of(user)[name] is node for name in _names_of(user, node))
        for user in node.users
        if user.op != "output"
    )


def _names_of(user: fx.Node, node: fx.Node) -> list[str]:
    """The names of arguments that are this one; of others than statistics none counts."""
    names = [name for name, given in arguments_of(user).items() if given is node]
    return names if set(names) <= set(_STATISTICS) else [*_STATISTICS, "input"]


def gradients_again(
    compute: Callable[..., Any],
    autocast: Autocast,
    tensors: Sequence[torch.Tensor],
    trained: Sequence[int],
    gradients: Sequence[torch.Tensor | None],
) -> Sequence[torch.Tensor | None]:
    """The gradients by those tensors that are trained, on PyTorch's tape.

    gradients: by each of the results that may have one; None where there is none.
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
