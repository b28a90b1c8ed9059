"""Graphs in files: the graph and its weights in one safetensors file, without pickle.

The weights are ordinary tensors under their names, so that every reader of safetensors finds
them; the graph is JSON in the header's metadata (see :mod:`minidnn.graph.storage`).  This module
combines the modules for graphs and for weight files, which do not depend on each other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.ir import Graph
from minidnn.graph.registry import brief
from minidnn.graph.storage import from_document, to_document
from minidnn.passes import pipeline  # noqa: F401  regions that passes make register themselves
from minidnn.sizes.sized_graph import SizedGraph, dims_from_json, dims_to_json
from minidnn.weights import save_weights
from minidnn.weights._file import MappedFile
from minidnn.weights.safetensors import read_metadata, read_safetensors

__all__ = ["load_graph", "write_graph"]

METADATA_KEY = "minidnn.graph"
SIZES_KEY = "minidnn.sizes"
"""The metadata key of the named sizes of a graph, with their ranges."""
_LONGEST_MESSAGE = 2000


def write_graph(
    graph: Graph | SizedGraph,
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a graph and its weights to a file, which appears complete or not at all.

    ``metadata``: more texts for its header.  The same graph gives the same bytes in every
    process.

    Raises:
        GraphError: the graph is not legal, or an operator cannot be saved; names the node.
        WeightsError: the graph's description is longer than a safetensors header may be.
        OSError: the file cannot be written.
    """
    more = dict(metadata or {})
    if isinstance(graph, SizedGraph):
        more[SIZES_KEY] = _json(dims_to_json(graph.dims))
        save_weights(graph.arrays, path, {METADATA_KEY: _json(graph.document), **more})
        return
    document, stored = to_document(graph)
    arrays = {k: v.data for k, v in stored.items()}
    from_document(document, arrays)  # checks that what is written can be read
    save_weights(arrays, path, {METADATA_KEY: _json(document), **more})


def _json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def has_sizes(path: str | os.PathLike[str]) -> bool:
    """Whether the graph in a file has named sizes; raises what :func:`load_graph` raises for files
    that cannot be read."""
    return SIZES_KEY in read_metadata(MappedFile(path))


def load_graph(path: str | os.PathLike[str]) -> Graph | SizedGraph:
    """The graph in a file that :func:`save_graph` wrote; its weights are views of the file.

    Everything is checked and nothing in the file is executed.

    Args:
        path: of the file.

    Returns:
        The graph, unfused or fused as it was saved; of a network that was saved with a
        :class:`minidnn.Dim` one for all sizes in its range.

    Raises:
        WeightsError: the file cannot be read or is no valid safetensors file.
        GraphError: it holds no graph, or one that is not legal; names the file, the node and what
            would be valid.

    >>> exe = md.compile(md.load_graph("net.safetensors"))
    """
    if not isinstance(path, (str, os.PathLike)):
        raise GraphError(
            f"load_graph: path={path!r:.80} is a {type(path).__name__}; valid is a path"
        )
    file = MappedFile(path)
    metadata = read_metadata(file)
    text = metadata.get(METADATA_KEY)
    where = f"graph file {str(file.path)!r}"
    if text is None:
        raise GraphError(
            f"{where} holds weights, but no graph (its metadata lack {METADATA_KEY!r}); valid is "
            "a file that save_graph wrote; a network takes weights by "
            "net.load_state_dict(md.load_weights(path))"
        )
    arrays = {name: np.asarray(each) for name, each in read_safetensors(file).items()}
    try:
        if SIZES_KEY not in metadata:
            return from_document(_parse(text), arrays)
        return SizedGraph(_parse(text), arrays, dims_from_json(_parse(metadata[SIZES_KEY])))
    except RecursionError:
        raise GraphError(f"{where}: its JSON is nested too deep") from None
    except GraphError as error:
        message = str(error)
        if len(message) > _LONGEST_MESSAGE:
            message = message[:_LONGEST_MESSAGE] + "..."
        raise GraphError(f"{where}: {message}") from error


def _parse(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except ValueError as error:
        raise GraphError(f"its graph is not valid JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {brief(twice)} appears twice")
    return found


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
