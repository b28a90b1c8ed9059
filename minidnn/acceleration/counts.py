"""The numbers of batches that normalizations count, one more each, by one call for all of them."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

from minidnn._torch_internals import add_each

#: Under which name normalizations count.
BATCHES = "num_batches_tracked"
_ADD = torch.ops.aten.add_.Tensor


def count_together(graph: fx.Graph, counts: Collection[fx.Node]) -> None:
    """One is added to all of these counts that nothing else uses, at the end of a graph: behind its
    parts, which begin so much earlier."""
    found = [
        node
        for node in graph.nodes
        if node.target is _ADD
        and not node.users
        and node.args[0] in counts
        and node.args[1:] == (1,)
        and len(node.args[0].users) == 1
    ]
    if not found:
        return
    (output,) = (node for node in graph.nodes if node.op == "output")
    with graph.inserting_before(output):
        graph.call_function(add_each, ([node.args[0] for node in found], 1))
    for node in found:
        graph.erase_node(node)
