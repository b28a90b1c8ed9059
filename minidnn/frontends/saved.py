"""The front end for files that ``save_graph`` wrote."""

from __future__ import annotations

import os
import stat
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.checker import check_own_shape
from minidnn.graph.ir import Graph


class SavedFrontEnd:
    """Saved graphs, which have their sizes and their weights."""

    name = "saved"
    takes = "files that save_graph wrote"

    def accepts(self, network: object) -> bool:
        """Whether it is a path that ends in .safetensors, or a file that begins like one."""
        if not isinstance(network, (str, os.PathLike)):
            return False
        path = os.fsdecode(network)
        return path.lower().endswith(".safetensors") or _begins_like_one(path)

    def open(self, network: Any) -> Graph:
        from minidnn.storage import load_graph

        graph = load_graph(network)
        raise GraphError(
            f"graph {graph.name!r} in {os.fsdecode(network)!r} has its own sizes, so that none can "
            "be named; valid is the network that was saved, or an ONNX file with open sizes"
        )

    def to_graph(self, network: Any, shape: Any) -> Graph:
        from minidnn.storage import load_graph

        graph = load_graph(network)
        if shape is not None:
            check_own_shape(graph, shape)
        return graph


def _begins_like_one(path: str) -> bool:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
            return False
        with open(path, "rb") as file:
            return file.read(9)[8:] == b"{"
    except (OSError, ValueError):  # no file, or no name of one: whoever takes it will say so
        return False
