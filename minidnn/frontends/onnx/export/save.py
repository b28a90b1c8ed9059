"""A graph as a file that other engines run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minidnn.frontends.onnx.export.model import DEFAULT_OPSET, written_model
from minidnn.frontends.onnx.export.sized import to_sized_onnx
from minidnn.graph.ir import Graph
from minidnn.sizes.sized_graph import SizedGraph


def write_onnx(
    graph: Graph | SizedGraph,
    path: str | os.PathLike[str],
    opset: int = DEFAULT_OPSET,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a graph as an ONNX file, which appears complete or not at all.

    ``metadata`` are the model's properties, beside the ranges of named sizes.

    Raises:
        GraphError: the graph is not legal, or larger than such a file may be (2 GiB).
        UnsupportedError: an operator or a dtype has no counterpart in that opset, or something
            cannot be said for all sizes.
        DeviceError: the package ``onnx`` is not installed.
        OSError: the file cannot be written.
    """
    model = to_onnx(graph, opset)
    for key, value in (metadata or {}).items():
        model.metadata_props.add(key=key, value=value)
    data = model.SerializeToString()
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error  # not the temporary one


def to_onnx(graph: Graph | SizedGraph, opset: int = DEFAULT_OPSET) -> Any:
    """The graph as an ``onnx.ModelProto``; raises what :func:`write_onnx` raises."""
    if isinstance(graph, SizedGraph):
        return to_sized_onnx(graph, opset)
    return written_model(graph, opset).model
