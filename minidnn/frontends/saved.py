"""The front end for files that ``save_graph`` wrote."""

from __future__ import annotations

import os
import stat
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.checker import check_own_shape
from minidnn.graph.ir import Graph
from minidnn.sizes.sized_graph import SizedGraph


class SavedFrontEnd:
    """Saved graphs, which have their weights, and their sizes or ranges of sizes."""

    name = "saved"
    takes = "files that save_graph wrote"

    def accepts(self, network: object) -> bool:
        """Whether it is a graph for ranges of sizes, a path that ends in .safetensors, or a file
        that begins like one."""
        if isinstance(network, SizedGraph):
            return True
        if not isinstance(network, (str, os.PathLike)):
            return False
        path = os.fsdecode(network)
        return path.lower().endswith(".safetensors") or _begins_like_one(path)

    def open(self, network: Any) -> SizedGraph:
        graph = _read(network)
        if isinstance(graph, SizedGraph):
            return graph
        raise GraphError(
            f"graph {graph.name!r} in {os.fsdecode(network)!r} has its own sizes, so that none can "
            "be named; valid is the network that was saved, or a file for named sizes: "
            "save_graph(network, path, shape) with a minidnn.Dim in shape"
        )

    def looks_at_sizes(self, network: Any) -> bool:
        """What follows from sizes stands in the file."""
        return False

    def own_sizes(self, network: Any) -> tuple[Any, Any]:
        from minidnn.storage import has_sizes

        if not isinstance(network, SizedGraph) and not has_sizes(network):
            return network, None
        graph = self.open(network)
        return graph, graph.named_shapes

    def to_graph(self, network: Any, shape: Any) -> Graph:
        graph = _read(network)
        if isinstance(graph, SizedGraph):
            if shape is None:
                raise GraphError(
                    f"shape=None for {graph!r}; valid are shapes of its inputs within the ranges"
                )
            return graph.of_shapes(shape)
        if shape is not None:
            check_own_shape(graph, shape)
        return graph


def _read(network: Any) -> Graph | SizedGraph:
    from minidnn.storage import load_graph

    return network if isinstance(network, SizedGraph) else load_graph(network)


def _begins_like_one(path: str) -> bool:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
            return False
        with open(path, "rb") as file:
            return file.read(9)[8:] == b"{"
    except (OSError, ValueError):  # no file, or no name of one: whoever takes it will say so
        return False
