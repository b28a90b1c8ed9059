"""What PyTorch knows of a piece and of a call: where arguments come from, and who records it.

Dynamo's metadata say which arguments are weights, and which stand for numbers that modules hold.
A call may be under a trace, which records operations, or under a transform of ``torch.func`` or
forward-mode gradients, which compute each operation in another way.  These do not see what compiled
programs compute, so PyTorch has to run such calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from minidnn._torch_internals import (
    are_forward_gradients_computed,
    are_transforms_active,
    count_of_modes,
    is_tracing,
)


def weights_of(module: Any, example: Sequence[Any]) -> dict[int, str]:
    """Returns the places of arguments that are parameters or buffers, with their names."""
    names = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for place, (node, value) in enumerate(zip(placeholders, example, strict=True)):
        described = node.meta.get("tensor_dict") or {}
        static = described.get("_dynamo_static_input_type") is not None
        static = static or getattr(value, "_dynamo_static_input_type", None) is not None
        if isinstance(value, nn.Parameter) or (static and isinstance(value, torch.Tensor)):
            names[place] = _name(node)
    return names


def numbers_of(module: Any) -> list[int]:
    """Returns the places of arguments that stand for numbers which modules hold.

    Where sizes are dynamic, Dynamo makes such numbers, like the epsilon of a norm, arguments too:
    CPU tensors on which the piece calls ``item``.
    """
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    return [
        place
        for place, node in enumerate(placeholders)
        if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False)
        and "NN_MODULE" in str(_asked(getattr(node, "_dynamo_source", None), "guard_source"))
        and all(map(_takes_number, node.users))
    ]


def _takes_number(node: fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item"


def with_numbers(module: fx.GraphModule, values: Mapping[int, float]) -> fx.GraphModule:
    """Returns the piece with these arguments, by place, replaced by constant numbers."""
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    numbers = {placeholders[place]: value for place, value in values.items()}
    for node in module.graph.nodes:
        if _takes_number(node) and node.args[0] in numbers:
            copies[node] = numbers[node.args[0]]
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(module, graph)


def _asked(source: Any, what: str) -> Any:
    """Reads ``what`` of the source of an argument; it is a method in some versions of PyTorch."""
    answer = getattr(source, what, None)
    return answer() if callable(answer) else answer


def _name(node: Any) -> str:
    """The name in a state dict of the tensor that Dynamo finds at
    ``L['self']._modules['conv']._parameters['weight']``."""
    text = str(_asked(getattr(node, "_dynamo_source", None), "name") or node.name)
    keys = re.findall(r"\._(?:modules|parameters|buffers)\['([^']+)'\]", text)
    return ".".join(keys) or text


def is_recorded() -> bool:
    """Whether operations are recorded or transformed now."""
    return (
        is_tracing()
        or are_transforms_active()
        or count_of_modes() > 0
        or are_forward_gradients_computed()
    )


def how_transformed() -> str | None:
    """Under which transform a network is called now, as text; None if there is none."""
    if are_transforms_active():
        return "within a transform of torch.func (vmap, grad, jvp, ...)"
    if are_forward_gradients_computed() and not count_of_modes():
        return "where forward-mode gradients are computed"
    return None
