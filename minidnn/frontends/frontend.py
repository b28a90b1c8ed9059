"""The protocol of front ends, and the search for the one that accepts a model.

A front end converts a model that was not written with minidnn's layers, such as a file or an object
of another library, to a graph.  Third parties add one by an entry point in the group
``minidnn.frontends``, whose object is a function without arguments that returns a
:class:`FrontEnd`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from minidnn.errors import DeviceError
from minidnn.graph.ir import Graph
from minidnn.third_parties import FRONTENDS, broken, entries, make


@runtime_checkable
class FrontEnd(Protocol):
    """Converts models of one kind to graphs."""

    name: str
    #: The models that it accepts, for messages: "paths that end in .onnx".
    takes: str

    def accepts(self, network: object) -> bool:
        """Whether ``network`` is a model of this kind.  The check is cheap, and imports no optional
        dependency."""

    def to_graph(self, network: Any, shape: Any) -> Graph:
        """Returns the graph for inputs of these shapes: one shape, a sequence or a dict of shapes,
        or None where the model itself has them.

        Raises UnsupportedError, which lists everything that is not supported, GraphError if the
        model is malformed or the shapes do not fit, DeviceError if a required library is missing.
        """


@runtime_checkable
class OpeningFrontEnd(FrontEnd, Protocol):
    """A front end that reads a model once and makes graphs for several sizes from it."""

    def open(self, network: Any) -> Any:
        """Returns an object that the front end accepts in place of ``network``, and that does not
        change when a file does.

        Raises what ``to_graph`` raises, and GraphError if the model has a single fixed size.
        """


@runtime_checkable
class SizingFrontEnd(FrontEnd, Protocol):
    """A front end that can tell whether a model's graph depends on sizes in an arbitrary way."""

    def looks_at_sizes(self, network: Any) -> bool:
        """Whether the graph for other sizes may differ in ways that the graphs for two sizes do not
        show."""


@runtime_checkable
class RangingFrontEnd(OpeningFrontEnd, Protocol):
    """A front end for models that may define ranges of their sizes."""

    def own_sizes(self, network: Any) -> tuple[Any, Any]:
        """Returns an object that the front end accepts in place of ``network``, and the shapes of
        its inputs with named sizes, or None if the model defines none."""


def own_sizes(network: Any) -> tuple[Any, Any]:
    """Returns the object to use in place of a model, and the shapes of its inputs with the named
    sizes that it defines itself, or None if it defines none."""
    frontend = ask(network).found
    return frontend.own_sizes(network) if isinstance(frontend, RangingFrontEnd) else (network, None)


def reads_code(network: Any) -> bool:
    """Whether a model is code, which is run to make the graph for each size."""
    return not isinstance(ask(network).found, OpeningFrontEnd)


def open_model(network: Any) -> Any:
    """Reads a model once for graphs of several sizes; returns ``network`` itself where its front
    end does not read models."""
    frontend = ask(network).found
    return frontend.open(network) if isinstance(frontend, OpeningFrontEnd) else network


def looks_at_sizes(network: Any) -> bool:
    """Whether a model's graph for other sizes may differ in ways that the graphs for two sizes do
    not show."""
    frontend = ask(network).found
    return frontend.looks_at_sizes(network) if isinstance(frontend, SizingFrontEnd) else True


def _imported(module: str, kind: str) -> FrontEnd:
    """An instance of a class in a module of this package."""
    frontend: FrontEnd = getattr(import_module(f"minidnn.frontends.{module}"), kind)()
    return frontend


_BUILT_IN: dict[str, Callable[[], FrontEnd]] = {
    "onnx": partial(_imported, "onnx.frontend", "OnnxFrontEnd"),
    "saved": partial(_imported, "zoo", "SavedFrontEnd"),
    "torch": partial(_imported, "torch.frontend", "TorchFrontEnd"),
    "zoo": partial(_imported, "zoo", "ZooFrontEnd"),
}


@dataclass
class Asked:
    """The result of asking all front ends whether they accept a network.

    Attributes:
        found: the first front end that accepts it, built-in ones first; None if there is none.
        takes: the models that the other front ends accept, for messages.
        broken: the errors of third parties' front ends that could not be asked.
    """

    found: FrontEnd | None = None
    takes: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def complaint(self) -> str:
        """The errors of broken front ends, to be appended to an error message."""
        return "".join(f"; {text}" for text in self.broken)


def ask(network: object) -> Asked:
    """Asks front ends in turn until one accepts ``network``.  Those of third parties are imported
    only if no built-in one accepts it."""
    asked = Asked()
    for _, built_in in sorted(_BUILT_IN.items()):
        if _accepts(built_in(), network, asked):
            return asked
    for entry in entries(FRONTENDS):
        if entry.name in _BUILT_IN:
            continue
        try:
            if _accepts(make(entry, FrontEnd), network, asked):
                return asked
        except DeviceError as error:
            asked.broken.append(str(error))
        except Exception as error:  # third-party code may raise anything
            asked.broken.append(str(broken(entry, error)))
    return asked


def _accepts(frontend: FrontEnd, network: object, asked: Asked) -> bool:
    if frontend.accepts(network):
        asked.found = frontend
        return True
    asked.takes.append(frontend.takes)
    return False
