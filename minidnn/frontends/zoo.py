"""The front end for names of the zoo's networks, and what a text means that could be a name."""

from __future__ import annotations

import os
from difflib import get_close_matches
from typing import Any

from minidnn.errors import WeightsError, did_you_mean
from minidnn.graph.ir import Graph
from minidnn.layers.build import to_graph
from minidnn.layers.layer import Layer
from minidnn.models import get_model, list_models
from minidnn.weights import KNOWN_WEIGHTS, find_known


class ZooFrontEnd:
    """Networks of the zoo by name: ``"resnet18"`` with random weights, with published ones
    ``"resnet18.DEFAULT"``, ``"resnet50.IMAGENET1K_V1"`` or ``"ResNet18_Weights.DEFAULT"``."""

    name = "zoo"
    takes = "names of the zoo's networks"

    def accepts(self, network: object) -> bool:
        """Whether it is the name of a network, with or without its published weights."""
        return isinstance(network, str) and _is_known(network) and not is_path(network)

    def open(self, network: Any) -> Layer:
        found: Layer = network_of(network)
        return found

    def to_graph(self, network: Any, shape: Any) -> Graph:
        made = network_of(network)
        return to_graph(made, (1, *made.input_shape) if shape is None else shape)


def network_of(name: str) -> Any:
    """The network of the zoo that a name means, with published weights if it names them.

    GraphError if there is no such network, WeightsError if no such weights.
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
    """Whether a text means a file: it has a folder or an extension, or only a file has that
    name.  ``.DEFAULT`` and the like, which name weights, are no extensions."""
    version = text.partition(".")[2]
    if _is_known(text) and (not version or version.isupper()):
        return False
    return bool(os.path.dirname(text) or os.path.splitext(text)[1]) or os.path.exists(text)


def advice(text: str) -> str:
    """What to do about a text that no front end takes, for the beginning of a message."""
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
    """The published weights of a network."""
    found = (known for known in KNOWN_WEIGHTS if head in (known.network, known.enum))
    return ["DEFAULT", *(known.version for known in found)]


def _is_known(text: str) -> bool:
    head = text.partition(".")[0]
    return head in list_models() or any(head == known.enum for known in KNOWN_WEIGHTS)
