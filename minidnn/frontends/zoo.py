"""The front ends for minidnn's own networks: names of the zoo, and files that ``save_graph`` wrote.

A text given as a network may be a name or a path; :func:`is_path` decides which.
"""

from __future__ import annotations

import os
import stat
from difflib import get_close_matches
from typing import Any

from minidnn.errors import GraphError, WeightsError, did_you_mean
from minidnn.graph.checker import check_own_shape
from minidnn.graph.ir import Graph
from minidnn.layers.build import to_graph
from minidnn.layers.layer import Layer
from minidnn.models import get_model, list_models
from minidnn.sizes.sized_graph import SizedGraph
from minidnn.weights import KNOWN_WEIGHTS, find_known


class ZooFrontEnd:
    """Makes networks of the zoo by name: ``"resnet18"`` has random weights;
    ``"resnet18.DEFAULT"``, ``"resnet50.IMAGENET1K_V1"`` and ``"ResNet18_Weights.DEFAULT"`` have
    published ones."""

    name = "zoo"
    takes = "names of the zoo's networks"

    def accepts(self, network: object) -> bool:
        """Whether ``network`` is the name of a network, with or without published weights."""
        return isinstance(network, str) and _is_known(network) and not is_path(network)

    def open(self, network: Any) -> Layer:
        layer: Layer = network_of(network)
        return layer

    def to_graph(self, network: Any, shape: Any) -> Graph:
        layer = network_of(network)
        return to_graph(layer, (1, *layer.input_shape) if shape is None else shape)


def network_of(name: str) -> Any:
    """Returns the zoo's network of this name, with published weights if the name includes them.

    Raises GraphError if there is no such network, WeightsError if it has no such weights.
    """
    head, dot, version = name.partition(".")
    if head in list_models():
        if dot and version not in (versions := _versions(head)):
            raise WeightsError(
                f"weights {name!r} are not known; versions of {head}: {', '.join(versions)}"
            )
        return get_model(head, weights=version if dot else None)
    known = find_known(name) if "_Weights" in name else None
    return get_model(name) if known is None else get_model(known.network, weights=name)


def is_path(text: str) -> bool:
    """Whether a text is the path of a file: it has a folder or an extension, or a file of this name
    exists.  Names of the zoo's networks and weights are no paths; upper-case suffixes such as
    ``.DEFAULT`` name weights, and are no extensions."""
    version = text.partition(".")[2]
    if _is_known(text) and (not version or version.isupper()):
        return False
    return bool(os.path.dirname(text) or os.path.splitext(text)[1]) or os.path.exists(text)


def advice(text: str) -> str:
    """A hint about a text that no front end accepts, for the beginning of an error message."""
    if not is_path(text):
        close = get_close_matches(text, list_models(), 3)
        return f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    if not os.path.exists(text):
        head, _, version = text.partition(".")
        hint = did_you_mean(version, _versions(head)) if _is_known(head) else ""
        return f"there is no such file{hint or ';'} "
    if os.path.splitext(text)[1] in (".pth", ".pt", ".bin", ".ckpt", ".tar"):
        return (
            "it may hold weights, which a network takes by "
            "net.load_state_dict(md.load_weights(path)); "
        )
    return ""


def _versions(head: str) -> list[str]:
    """The versions of a network's published weights."""
    weights = (known for known in KNOWN_WEIGHTS if head in (known.network, known.enum))
    return ["DEFAULT", *(known.version for known in weights)]


def _is_known(text: str) -> bool:
    head = text.partition(".")[0]
    return head in list_models() or any(head == known.enum for known in KNOWN_WEIGHTS)


class SavedFrontEnd:
    """Loads saved graphs, which include their weights, and their sizes or ranges of sizes."""

    name = "saved"
    takes = "files that save_graph wrote"

    def accepts(self, network: object) -> bool:
        """Whether ``network`` is a graph for ranges of sizes, a path that ends in .safetensors, or
        a file that begins like a safetensors file."""
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
        """No: the file says how everything in the graph depends on sizes."""
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
    except (OSError, ValueError):
        return False  # no file, or an invalid path: another front end or ``advice`` reports it
