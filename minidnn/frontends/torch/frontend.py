"""PyTorch modules for ``md.compile``: taken whole, or not at all."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from minidnn.errors import GraphError
from minidnn.frontends.torch.library import require_torch
from minidnn.frontends.torch.modes import check_mode
from minidnn.graph.ir import Graph


class TorchFrontEnd:
    """Modules of PyTorch."""

    name = "torch"
    takes = "PyTorch modules"

    def accepts(self, network: object) -> bool:
        torch = sys.modules.get("torch")  # who has a module has imported PyTorch
        return torch is not None and isinstance(network, torch.nn.Module)

    def to_graph(self, network: Any, shape: Any) -> Graph:
        """The graph of what the module computes for float32 inputs of these shapes; the weights
        are read when the graph is compiled."""
        require_torch()
        from minidnn.frontends.torch.capture import graph_of_module

        check_mode(network)
        return graph_of_module(network, *_arguments(shape))


def _arguments(shape: Any) -> tuple[list[Sequence[int]], dict[str, Sequence[int]]]:
    """The shapes of the arguments by position, and of those by name."""
    if isinstance(shape, Mapping):
        return [], dict(shape)
    if isinstance(shape, Sequence) and shape:
        if all(type(size) is int for size in shape):
            return [shape], {}
        if all(isinstance(each, Sequence) for each in shape):
            return list(shape), {}
    raise GraphError(
        f"shape={shape!r:.100}; valid is the input's shape with the batch, such as "
        "(1, 3, 224, 224), or a sequence or a dict of shapes"
    )
