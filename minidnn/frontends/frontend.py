"""What a front end is, and which there are.

A front end makes a graph of a model that was not written with minidnn's layers: a file, or an
object of another library.  Third parties add one by an entry point in the group
``minidnn.frontends`` whose object is a function without arguments that gives a :class:`FrontEnd`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Protocol

from minidnn.graph.ir import Graph


class FrontEnd(Protocol):
    """A kind of models that graphs can be made of."""

    name: str
    #: What it takes, for messages: "paths that end in .onnx".
    takes: str

    def accepts(self, network: object) -> bool:
        """Whether ``network`` is of its kind; cheap, and imports no optional dependency."""

    def to_graph(self, network: Any, shape: Any) -> Graph:
        """The graph for inputs of these shapes: one shape, a sequence or a dict of them, or None
        where the model says it.

        Raises UnsupportedError with all that cannot be taken at once, GraphError if the model is
        malformed or the shapes do not fit, DeviceError if a library that it needs is missing.
        """


def _onnx() -> FrontEnd:
    found: FrontEnd = import_module("minidnn.frontends.onnx.frontend").OnnxFrontEnd()
    return found


def _torch() -> FrontEnd:
    found: FrontEnd = import_module("minidnn.frontends.torch.frontend").TorchFrontEnd()
    return found


_BUILT_IN: dict[str, Callable[[], FrontEnd]] = {"onnx": _onnx, "torch": _torch}


def frontends() -> dict[str, FrontEnd]:
    """All front ends by name, those of third parties included; ours come first."""
    found = {name: make() for name, make in sorted(_BUILT_IN.items())}
    for entry in sorted(entry_points(group="minidnn.frontends"), key=lambda entry: entry.name):
        if entry.name not in found:
            found[entry.name] = entry.load()()
    return found


def frontend_for(network: object) -> FrontEnd | None:
    """The first front end that accepts ``network``, or None."""
    return next((each for each in frontends().values() if each.accepts(network)), None)
