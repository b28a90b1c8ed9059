"""Programs of a network for other sizes, from one whose kernels are those of any size."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from minidnn.dynamic.kept import Key
from minidnn.errors import MiniDNNError, OutOfMemoryError, UnsupportedError
from minidnn.executable import Executable
from minidnn.graph.ir import Graph
from minidnn.runtime.interface import interface_of
from minidnn.runtime.plan import Described, described, described_plan, resized
from minidnn.runtime.program import ResizableProgram

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
