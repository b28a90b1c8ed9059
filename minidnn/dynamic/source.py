"""Sources of programs for a network with named sizes.

:class:`NetworkSource` traces and compiles the network for one size; :class:`ResizedPrograms` makes
programs for other sizes from one program, if its kernels are shape-generic, that is for any size.
"""

from __future__ import annotations

import gc
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minidnn.dynamic.kept import Key
from minidnn.errors import GraphError, MiniDNNError, OutOfMemoryError, UnsupportedError
from minidnn.executable import Executable
from minidnn.graph.ir import Graph
from minidnn.runtime.interface import interface_of
from minidnn.runtime.plan import Described, describe_plan, described, resized
from minidnn.runtime.program import ResizableProgram


@dataclass(frozen=True)
class NetworkSource:
    """A network, and the functions that trace and compile it.

    Attributes:
        shapes: the shapes of the inputs with the named sizes, as the caller gave them.
        trace: returns the graph for shapes of numbers alone.
        compile: returns the executable of such a graph; with False it tunes nothing.
        tunes: whether the caller asked for tuning.
        is_code: whether graphs come from others' code, which may branch on a size.
        compile_any_size: returns a function that compiles a graph with shape-generic kernels; None
            if there are none for the graph.
        asks_each: whether the graph may depend on sizes in ways that the graphs for two sizes do
            not show.
    """

    shapes: Any
    trace: Callable[[Any], Graph]
    compile: Callable[[Graph, bool], Executable]
    tunes: bool
    is_code: bool
    compile_any_size: Callable[[Graph], Callable[[], Executable] | None] = field(
        default=lambda graph: None
    )
    asks_each: bool = True


def checksums(graph: Graph) -> dict[str, int]:
    """The checksum of each constant by name; programs for other sizes must have the same."""
    sums: dict[str, int] = {}
    for value in graph.constants:
        array = np.ascontiguousarray(value.data)
        sums[value.name] = zlib.crc32(array.reshape(-1).view(np.uint8).data)
    return sums


def check_same(before: Mapping[str, int], now: Mapping[str, int]) -> None:
    """Raises GraphError if a constant has another checksum than before."""
    changed = [name for name, value in now.items() if before.get(name, value) != value]
    if changed:
        raise GraphError(
            f"parameter {changed[0]!r} of the network has other numbers than when it was compiled, "
            "so a program for another size would not compute the same; valid is to compile again"
        )


log = logging.getLogger(__name__)


class ResizedPrograms:
    """Makes programs for other sizes from the program for one, if they differ in sizes alone.

    Args:
        trace: returns the graph for some sizes.
        compile: returns the executable of a graph with shape-generic kernels.
        shapes: returns the shapes of the inputs for some sizes.
    """

    def __init__(
        self,
        trace: Callable[[Key], Graph],
        compile: Callable[[Graph], Executable],
        shapes: Callable[[Key], Sequence[tuple[int, ...]]],
    ) -> None:
        self._trace, self._compile, self._shapes = trace, compile, shapes
        self._base: Executable | None = None
        #: The description of the network, and its constants, if every size has to be compared.
        self._network: Described | None = None
        self._arrays: dict[str, np.ndarray] = {}

    def find(self, one: Key, other: Key, asks_each: bool) -> None:
        """Compares the network and its program for two sizes; only if they are the same but for
        sizes, :meth:`of` returns executables.

        ``asks_each``: whether the network must be traced and compared for every other size as well.
        """
        graph = self._trace(one)
        arrays = {value.name: value.data for value in graph.constants}
        network = described(graph, arrays)
        try:
            base = self._compile(graph)
        except OutOfMemoryError as error:
            log.info("%s: sizes %s: %s", graph.name, one, error)
            return
        second = self._trace(other)
        if base.store is not None or described(second, arrays) != network:
            return
        if describe_plan(self._compile(second).plan) == describe_plan(base.plan):
            self._base = base
            if asks_each:
                self._network, self._arrays = network, arrays

    def of(self, key: Key) -> Executable | None:
        """The executable for these sizes; None if it has to be compiled."""
        if self._base is None:
            return None
        asks = self._network is not None
        if asks and described(self._trace(key), self._arrays) != self._network:
            return None
        try:
            with _without_collector():
                return _of_size(self._base, self._shapes(key))
        except MiniDNNError as error:  # compiling says what is wrong, if anything is
            log.info("sizes %s: %s", key, error)
            return None


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disables Python's garbage collector.  A plan makes many objects and no garbage, and searching
    all objects of the process several times takes longer than making the plan."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _of_size(base: Executable, shapes: Sequence[tuple[int, ...]]) -> Executable:
    """The executable of the same network for inputs of these shapes.

    GraphError if an operator does not support the shapes of its operands then; UnsupportedError if
    the kernels are for one size.
    """
    if not isinstance(base.program, ResizableProgram):
        raise UnsupportedError(f"{base!r} has kernels of one size")
    plan = resized(base.plan, shapes)
    results = None if base.result_dtypes is None else [str(each) for each in base.result_dtypes]
    interface, program = interface_of(plan.graph), base.program.of_size(plan)
    return Executable(interface, program, base.device, base.precision, results, plan=plan)
