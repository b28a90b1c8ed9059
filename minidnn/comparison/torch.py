"""PyTorch as the original engine of its modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minidnn.comparison.original import Original
from minidnn.errors import GraphError, UnsupportedError
from minidnn.frontends.torch.library import require_torch
from minidnn.graph.ir import Graph


def original(
    model: Any, inputs: Any, shape: Any, constants: Mapping[str, Any] | None, seed: int
) -> Original:
    """The module with the results of all operations that it was captured as."""
    require_torch()
    import torch

    from minidnn.frontends.torch.capture import capture
    from minidnn.frontends.torch.convert import as_numpy, convert, judge_operations, label_of

    if shape is not None or constants or inputs is None:
        raise GraphError(
            "a PyTorch module is compared on the tensors that it is called with: inputs is an "
            "array or a sequence of them, without shape and constants"
        )
    given = [inputs] if isinstance(inputs, (np.ndarray, torch.Tensor)) else list(inputs)
    tensors = [torch.as_tensor(array) for array in given]
    captured = capture(model, tensors)
    left: dict[Any, str] = {}
    operations = captured.operations
    judge_operations(operations, captured.constants, captured.tensor, lambda graph: None, left)
    if left or captured.opaque:
        reasons = [f"{label_of(node)}: {reason}" for node, reason in left.items()]
        reasons += [f"{path}: {reason}" for path, reason in captured.reasons.items()]
        raise UnsupportedError(
            "these operations of the module are not known, so that it cannot be compared as a "
            "whole:\n  " + "\n  ".join(reasons)
        )
    single = [node for node in operations if isinstance(node.meta.get("val"), torch.Tensor)]
    part = convert(operations, captured.constants, captured.tensor, "compared", single)
    found: dict[Any, Any] = {}
    leaves = {
        node: captured.tensor(node) if node in captured.held else tensors[captured.given[node]]
        for node in captured.module.graph.nodes
        if node.op == "placeholder"
    }

    class Recorder(torch.fx.Interpreter):
        def run_node(self, node: Any) -> Any:
            found[node] = super().run_node(node)
            return found[node]

    with torch.no_grad():
        Recorder(captured.module).run(*leaves.values())
    names = {node: f"{label_of(node)}:{node.name}" for node in single}
    layers = [
        (names[node], str(node.target).removeprefix("aten."), value)
        for node, value in zip(part.outputs, part.graph.outputs, strict=True)
        if value.producer is not None
    ]
    results = {names[node]: as_numpy(found[node]) for node in single}
    ends = [node for node in single if any(user.op == "output" for user in node.users)]
    values = dict(zip(part.outputs, part.graph.outputs, strict=True))
    graph = Graph(
        part.graph.inputs, [values[node] for node in ends], part.graph.nodes, part.graph.name
    )
    arrays = [as_numpy(leaves[node]) for node in part.inputs]
    outputs = [names[node] for node in ends]
    return Original(f"PyTorch {torch.__version__}", graph, layers, outputs, arrays, results)
