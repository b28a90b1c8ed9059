"""save_graph and save_onnx: write whatever ``compile`` takes to files that it takes again."""

from __future__ import annotations

import os
from typing import Any

from minidnn.dynamic.dim import NamedShapes
from minidnn.dynamic.executable import DynamicExecutable
from minidnn.dynamic.loaded import BatchExecutable
from minidnn.errors import GraphError
from minidnn.executable import Executable
from minidnn.graph.ir import Graph
from minidnn.networks import any_graph_of
from minidnn.preparation import Preparation, check_takes, metadata_of
from minidnn.sizes.sized_graph import SizedGraph, input_templates

__all__ = ["save_graph", "save_onnx"]


def save_graph(
    network: Any,
    path: str | os.PathLike[str],
    shape: NamedShapes | None = None,
    *,
    preparation: Preparation | None = None,
) -> None:
    """Writes a network for inputs of one size, or of named sizes, with its weights, to a file.

    ``load_graph`` gives the graph back, and ``compile`` takes the file, with the ranges of named
    sizes if there are any.  It is a safetensors file, which appears complete or not at all and
    holds nothing that could be executed; the same network gives the same bytes in every process.

    Args:
        network: a layer, a graph, an executable, or anything else that ``compile`` takes.  Of an
            executable it is the graph that was compiled, before passes changed it.
        path: any name but one that ends in .onnx; is replaced when it exists.
        shape: the inputs' shapes as for ``compile``, with a :class:`minidnn.Dim` in a size's place
            for all sizes in its range; not for what has its size already.
        preparation: how pictures are prepared for it, which ``load_preparation`` gives back.

    Raises:
        GraphError: the network or an argument is not legal, an operator cannot be saved, something
            but shapes and integers follows from named sizes, or the arrays of an executable's
            network are gone.
        WeightsError: the graph's description is longer than a safetensors header may be.
        OSError: the file cannot be written.

    >>> md.save_graph(net, "again.safetensors", (2, 3, 32, 32))
    >>> exe = md.compile("again.safetensors")
    """
    _check_path("save_graph", path)
    if os.fsdecode(path).lower().endswith(".onnx"):
        raise GraphError(
            f"save_graph: path={os.fspath(path)!r:.80} has the name of an ONNX file, which "
            "save_onnx writes; valid is another ending, such as .safetensors"
        )
    from minidnn.storage import write_graph

    graph, metadata = _checked("save_graph", network, shape, preparation)
    write_graph(graph, path, metadata)


def save_onnx(
    network: Any,
    path: str | os.PathLike[str],
    shape: NamedShapes | None = None,
    *,
    opset: int | None = None,
    preparation: Preparation | None = None,
) -> None:
    """Writes a network for inputs of one size, or named sizes, with its weights, as an ONNX file.

    Args:
        network, shape, preparation: as for :func:`save_graph`; named sizes are open in the file.
        path: a name that ends in .onnx; is replaced when it exists.
        opset: 20 by default, which is also the oldest.

    Raises:
        GraphError: the network or an argument is not legal, or larger than such a file may be
            (2 GiB).
        UnsupportedError: an operator or a dtype has no counterpart in that opset, or something but
            shapes follows from named sizes.
        DeviceError: the package ``onnx`` is not installed.
        OSError: the file cannot be written.

    >>> md.save_onnx(net, "again.onnx", (2, 3, 32, 32))
    """
    _check_path("save_onnx", path)
    if not os.fsdecode(path).lower().endswith(".onnx"):
        raise GraphError(
            f"save_onnx: path={os.fspath(path)!r:.80}; valid is a name that ends in .onnx, by "
            "which compile knows such files"
        )
    from minidnn.frontends.onnx.export.model import DEFAULT_OPSET, write_onnx

    graph, metadata = _checked("save_onnx", network, shape, preparation)
    write_onnx(graph, path, DEFAULT_OPSET if opset is None else opset, metadata)


def _checked(
    function: str, network: Any, shape: NamedShapes | None, preparation: Preparation | None
) -> tuple[Graph | SizedGraph, dict[str, str]]:
    """Returns the graph and its metadata, after checking that they fit."""
    metadata = metadata_of(preparation)
    graph = _graph(function, network, shape)
    check_takes(preparation, graph.name, input_templates(graph))
    return graph, metadata


def _graph(function: str, network: Any, shape: NamedShapes | None) -> Graph | SizedGraph:
    """Returns the graph to save; of an executable the one that was compiled."""
    if isinstance(network, (Executable, DynamicExecutable, BatchExecutable)):
        if shape is not None:
            raise GraphError(
                f"{function}: shape={shape!r:.80} of an executable, which has its own size; valid "
                f"is None, or {function}(network, path, shape) with the network"
            )
        source: Graph | SizedGraph = network.source
        return source
    return any_graph_of(network, shape)


def _check_path(function: str, path: Any) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise GraphError(
            f"{function}: path is a {type(path).__name__}; valid is a text or a pathlib.Path, and "
            f"what is saved comes first: {function}(network, path, shape)"
        )
