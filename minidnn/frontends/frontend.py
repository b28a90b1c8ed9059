"""What a front end is, and which there are.

A front end makes a graph of a model that was not written with minidnn's layers: a file, or an
object of another library.  Third parties add one by an entry point in the group
``minidnn.frontends`` whose object is a function without arguments that gives a :class:`FrontEnd`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from minidnn.errors import DeviceError
from minidnn.graph.ir import Graph
from minidnn.third_parties import FRONTENDS, broken, entries, make


@runtime_checkable
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


@runtime_checkable
class OpeningFrontEnd(FrontEnd, Protocol):
    """A front end that can read a model once, for graphs of several sizes."""

    def open(self, network: Any) -> Any:
        """What it takes in place of ``network``, and what does not change when a file does.

        Raises what ``to_graph`` raises, and GraphError if the model has but one size.
        """


@runtime_checkable
class SizingFrontEnd(FrontEnd, Protocol):
    """A front end that can tell of a model whether its graph is the same for all sizes."""

    def looks_at_sizes(self, network: Any) -> bool:
        """Whether two graphs for different sizes may not show what those of others are."""


@runtime_checkable
class RangingFrontEnd(OpeningFrontEnd, Protocol):
    """A front end of models that may say the ranges of their sizes."""

    def own_sizes(self, network: Any) -> tuple[Any, Any]:
        """What it takes in place of ``network``, and the shapes of its inputs with named sizes;
        None where it says none."""


def own_sizes(network: Any) -> tuple[Any, Any]:
    """What stands for a model from now on, and the shapes of its inputs with the named sizes that
    it says itself; None if it says none."""
    found = ask(network).found
    return found.own_sizes(network) if isinstance(found, RangingFrontEnd) else (network, None)


def reads_code(network: Any) -> bool:
    """Whether graphs of a model come from code that is run for each size."""
    return not isinstance(ask(network).found, OpeningFrontEnd)


def open_model(network: Any) -> Any:
    """A model that was read once, or ``network`` itself if that needs no reading."""
    found = ask(network).found
    return found.open(network) if isinstance(found, OpeningFrontEnd) else network


def looks_at_sizes(network: Any) -> bool:
    """Whether two graphs of a model for different sizes may not show what those of others are."""
    found = ask(network).found
    return found.looks_at_sizes(network) if isinstance(found, SizingFrontEnd) else True


def _onnx() -> FrontEnd:
    found: FrontEnd = import_module("minidnn.frontends.onnx.frontend").OnnxFrontEnd()
    return found


def _saved() -> FrontEnd:
    found: FrontEnd = import_module("minidnn.frontends.own").SavedFrontEnd()
    return found


def _zoo() -> FrontEnd:
    found: FrontEnd = import_module("minidnn.frontends.own").ZooFrontEnd()
    return found


def _torch() -> FrontEnd:
    found: FrontEnd = import_module("minidnn.frontends.torch.frontend").TorchFrontEnd()
    return found


_BUILT_IN: dict[str, Callable[[], FrontEnd]] = {
    "onnx": _onnx,
    "saved": _saved,
    "torch": _torch,
    "zoo": _zoo,
}


@dataclass
class Asked:
    """The front ends' answer to a network.

    Attributes:
        found: the first that accepts it, ours first.
        takes: what those take that do not, for messages.
        broken: what is wrong with those of third parties that could not be asked.
    """

    found: FrontEnd | None = None
    takes: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def complaint(self) -> str:
        """What is broken, to be added to the message of an error."""
        return "".join(f"; {text}" for text in self.broken)


def ask(network: object) -> Asked:
    """Asks the front ends, until one accepts ``network``; those of third parties are imported
    only if none of ours does."""
    asked = Asked()
    for _, ours in sorted(_BUILT_IN.items()):
        if _accepts(ours(), network, asked):
            return asked
    for entry in entries(FRONTENDS):
        if entry.name in _BUILT_IN:
            continue
        try:
            if _accepts(make(entry, FrontEnd), network, asked):
                return asked
        except DeviceError as error:
            asked.broken.append(str(error))
        except Exception as error:  # whatever its own code does
            asked.broken.append(str(broken(entry, error)))
    return asked


def _accepts(each: FrontEnd, network: object, asked: Asked) -> bool:
    if each.accepts(network):
        asked.found = each
        return True
    asked.takes.append(each.takes)
    return False
