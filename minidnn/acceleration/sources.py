"""What PyTorch says of a piece: which arguments are weights and numbers, and who records it.

Dynamo knows which arguments are weights, and which stand for numbers that modules hold.  Someone
else than the caller may want the operations of a network, not only its results: a trace records
them, a transform of ``torch.func`` or a dual number of forward-mode gradients has each computed in
another way.  What minidnn computes from one memory to another says nothing to them.
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
    """The places of arguments that are parameters or buffers, and their names."""
    found = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for place, (node, value) in enumerate(zip(placeholders, example, strict=True)):
        described = node.meta.get("tensor_dict") or {}
        static = described.get("_dynamo_static_input_type") is not None
        static = static or getattr(value, "_dynamo_static_input_type", None) is not None
        if isinstance(value, nn.Parameter) or (static and isinstance(value, torch.Tensor)):
            found[place] = _name(node)
    return found


def numbers_of(module: Any) -> list[int]:
    """The places of arguments that stand for numbers which modules hold.

    Where sizes are to be dynamic, PyTorch makes such numbers, like the epsilon of a norm, arguments
    too: tensors on the CPU that the piece takes the number of.
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
    """The piece with these numbers, by the places of their arguments, as constants."""
    graph = fx.Graph()
    found: dict[fx.Node, Any] = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    numbers = {placeholders[place]: value for place, value in values.items()}
    for node in module.graph.nodes:
        if _takes_number(node) and node.args[0] in numbers:
            found[node] = numbers[node.args[0]]
        else:
            found[node] = graph.node_copy(node, found.__getitem__)
    return fx.GraphModule(module, graph)


def _asked(source: Any, what: str) -> Any:
    """What PyTorch says of where an argument comes from: attributes, methods once."""
    said = getattr(source, what, None)
    return said() if callable(said) else said


def _name(node: Any) -> str:
    """The name in a state dict of what PyTorch finds at
    ``L['self']._modules['conv']._parameters['weight']``."""
    text = str(_asked(getattr(node, "_dynamo_source", None), "name") or node.name)
    keys = re.findall(r"\._(?:modules|parameters|buffers)\['([^']+)'\]", text)
    return ".".join(keys) or text


def is_recorded() -> bool:
    """Whether operations are now recorded, or computed in another way."""
    return (
        is_tracing()
        or are_transforms_active()
        or count_of_modes() > 0
        or are_forward_gradients_computed()
    )


def how_transformed() -> str | None:
    """How a network is called whose operations are computed in another way, as text."""
    if are_transforms_active():
        return "within a transform of torch.func (vmap, grad, jvp, ...)"
    if are_forward_gradients_computed() and not count_of_modes():
        return "where forward-mode gradients are computed"
    return None
