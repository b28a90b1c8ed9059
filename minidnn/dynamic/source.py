"""What programs of a network are made from: its graph for some sizes, or a program for other sizes
whose kernels are those of any size.
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
from minidnn.runtime.plan import Described, described, described_plan, resized
from minidnn.runtime.program import ResizableProgram


@dataclass(frozen=True)
class NetworkSource:
    """What programs of a network are made from.

    Attributes:
        shapes: with the named sizes, as they were given.
        trace: the graph for shapes without any.
        compile: the executable of such a graph; with False nothing is tuned.
        tunes: whether tuning was asked for.
        is_code: whether graphs come from others' code, which may look at a size.
        compile_any_size: the same by kernels of any size; None if there are none for a graph.
        asks_each: whether what a graph does may depend on its sizes in ways that two of them do not
            show.
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
    """Of the constants: programs of other sizes must have the same."""
    found: dict[str, int] = {}
    for value in graph.constants:
        array = np.ascontiguousarray(value.data)
        found[value.name] = zlib.crc32(array.reshape(-1).view(np.uint8).data)
    return found


def check_same(before: Mapping[str, int], now: Mapping[str, int]) -> None:
    """GraphError if a constant has another checksum than before."""
    changed = [name for name, value in now.items() if before.get(name, value) != value]
    if changed:
        raise GraphError(
            f"parameter {changed[0]!r} of the network has other numbers than when it was compiled, "
            "so a program for another size would not compute the same; valid is to compile again"
        )


log = logging.getLogger(__name__)


class ResizedPrograms:
    """Makes the programs of other sizes from that of one, if both are the same but for sizes.

    Args:
        trace: the graph for some sizes.
        compile: the executable of a graph by kernels of any size.
        shapes: the shapes of the inputs for some sizes.
    """

    def __init__(
        self,
        trace: Callable[[Key], Graph],
        compile: Callable[[Graph], Executable],
        shapes: Callable[[Key], Sequence[tuple[int, ...]]],
    ) -> None:
        self._trace, self._compile, self._shapes = trace, compile, shapes
        self._base: Executable | None = None
        #: What the network is, and its constants, if it is to be asked for each size.
        self._network: Described | None = None
        self._arrays: dict[str, np.ndarray] = {}

    def find(self, one: Key, other: Key, asks_each: bool) -> None:
        """Finds out whether the network, and its program, is the same for two sizes.

        ``asks_each``: two do not show what it is for others.
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
        if described_plan(self._compile(second).plan) == described_plan(base.plan):
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
    """Nothing of a plan is garbage, and a collector that looks for some among all objects of the
    process, more than once, takes longer than making it."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _of_size(base: Executable, shapes: Sequence[tuple[int, ...]]) -> Executable:
    """The executable of the same network for inputs of these shapes.

    GraphError if an operator does not take what it is given then; UnsupportedError if the kernels
    are those of one size.
    """
    if not isinstance(base.program, ResizableProgram):
        raise UnsupportedError(f"{base!r} has kernels of one size")
    plan = resized(base.plan, shapes)
    results = None if base.result_dtypes is None else [str(each) for each in base.result_dtypes]
    interface, program = interface_of(plan.graph), base.program.of_size(plan)
    return Executable(interface, program, base.device, base.precision, results, plan=plan)
