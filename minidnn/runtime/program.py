"""What every backend makes of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from minidnn.graph.ir import Node
    from minidnn.runtime.plan import Plan
    from minidnn.runtime.store import Store


class Program(Protocol):
    """A compiled plan."""

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Computes the outputs, which are given as contiguous arrays of the right type."""


@runtime_checkable
class StatefulProgram(Program, Protocol):
    """A program whose graph has states, which live in a store."""

    def attach(self, store: Store) -> None:
        """Finds its states in a store, or puts them there."""


@runtime_checkable
class TimedProgram(Program, Protocol):
    """A program that can time what it runs, which a backend may offer."""

    def seconds_of_nodes(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[Node, float]:
        """Computes the outputs; how long each node that takes a kernel took, in order."""

    def bound_seconds(self, operations: int, bytes: int, contraction: bool) -> float:
        """The least time for that much work by the machine's measured rates; a contraction's
        operations are multiply-adds."""


@runtime_checkable
class PackedProgram(Program, Protocol):
    """A program that has copies of all constants in its own form, and none of the graph's."""

    @property
    def constant_bytes(self) -> int:
        """The packed constants."""

    @property
    def run_bytes(self) -> int:
        """What a run needs beside them and the arrays of inputs and outputs."""

    def release_memory(self) -> None:
        """Gives back what compiling needed to the system."""


@runtime_checkable
class SharingProgram(PackedProgram, Protocol):
    """A program whose packed constants others may use, too."""

    @property
    def shared_constants(self) -> Mapping[Any, int]:
        """The bytes of each; programs that share one have it by the same key."""


@runtime_checkable
class ResizableProgram(Program, Protocol):
    """A program whose kernels may be those of any size."""

    def of_size(self, plan: Plan) -> Program:
        """The program of the same plan for other sizes, see :mod:`minidnn.runtime.plan`."""


@runtime_checkable
class DeviceProgram(Program, Protocol):
    """A program that takes arrays of its own device, and decides how results are given back."""

    def call(self, inputs: Sequence[Any], out: Any) -> Sequence[Any]:
        """The outputs for the inputs in order, in ``out`` if that is not None; GraphError or
        DeviceError if an array does not fit."""

    def bind(self, inputs: Sequence[Any], out: Any) -> Any:
        """What computes from these very arrays each time it is called."""


@dataclass(frozen=True)
class DonatedLayout:
    """A buffer that callers donate: inputs of a program lie in it, and the program works in it.

    Attributes:
        bytes: of all of it.
        offsets: where each of the inputs begins.
    """

    bytes: int
    offsets: tuple[int, ...]


@runtime_checkable
class StreamProgram(DeviceProgram, Protocol):
    """A device's program that computes on its memory by address, on streams of a caller's."""

    def run_on(
        self, stream: int, inputs: Sequence[int], outputs: Sequence[int], donated: int = 0
    ) -> None:
        """Computes the outputs, without waiting; all are addresses of contiguous arrays of the
        right types, which nobody checks; ``donated`` is that of a buffer to work in, or 0."""

    def use_external_buffers(self, donated: Sequence[int] = ()) -> DonatedLayout | None:
        """From now on keeps no memory for inputs and outputs where it need not; how callers lay out
        a buffer that they donate, in which these inputs lie."""


@runtime_checkable
class RepeatingProgram(StatefulProgram, Protocol):
    """A program with states that makes several runs in one launch, for hosts that are slower than
    their device."""

    def repeat(self, count: int) -> None:
        """Gets ready for launches of so many runs; OutOfMemoryError if there is no room."""

    def launch(self, calls: Sequence[Sequence[Any]]) -> Sequence[np.ndarray]:
        """The outputs for the inputs of each call, one run after the other with the same bits as
        of runs by themselves; the first axis of results is that of the runs."""


@runtime_checkable
class ClockedProgram(Program, Protocol):
    """A device's program that can time whole runs by the clock of its device."""

    def clock(self, inputs: Sequence[np.ndarray]) -> Callable[[int], float]:
        """Copies the inputs, in the compiled dtypes, to the device; what gives the seconds of a run
        there, of so many in a row."""


@runtime_checkable
class AddressedProgram(Program, Protocol):
    """A program that computes on memory of the CPU, on threads of its own."""

    @property
    def takes_addresses(self) -> bool:
        """Whether :meth:`run_at` can be used."""

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Computes the outputs; all are addresses of contiguous arrays of the right types, which
        nobody checks."""

    def rest(self) -> None:
        """Has its threads sleep until the next run."""


@runtime_checkable
class DescribedProgram(Program, Protocol):
    """A program that can say how a node is computed."""

    def details(self, node: Node) -> str:
        """Algorithm, memory, occupancy, in a few words; empty if there is nothing to say."""

    def refusals(self, node: Node) -> Mapping[str, str]:
        """Algorithms by which it does not compute a node, and why, in words."""


@runtime_checkable
class CountedProgram(Program, Protocol):
    """A program that knows how many operations its algorithms take."""

    def spared_operations(self, node: Node) -> int:
        """How many less than the node's definition; what an algorithm transforms does not count."""


#: Where a constant in a file may begin.
ALIGNMENT = 64


def offsets_of(constants: Sequence[np.ndarray]) -> list[int]:
    """Where each of several constants begins that lie in a file one after another."""
    ends = [0]
    for array in constants:
        ends.append(ends[-1] + -(-array.nbytes // ALIGNMENT) * ALIGNMENT)
    return ends[:-1]


@dataclass(frozen=True)
class StoredProgram:
    """A program as it stands in a file.

    Attributes:
        architecture: what its code is made for, as its device names it.
        document: what its device makes a program of again, as JSON has it.
        code: what is executed, by name.
        constants: flat arrays, which lie in the file as :func:`offsets_of` says.
        index_bytes: how many bytes of the constants, from the first on, may be used as indices or
            sizes, so that the program must not run unless they are right.
        placed: its document if each of its constants begins at another offset; None if they must
            lie one after another.
    """

    architecture: str
    document: dict[str, Any]
    code: Mapping[str, bytes | memoryview]
    constants: Sequence[np.ndarray]
    index_bytes: int
    placed: Callable[[Sequence[int]], dict[str, Any]] | None = None


WHY_NO_STATES = (
    "what has states, which live in a store, cannot be saved compiled; compiled without a store, "
    "weights are constants"
)


@runtime_checkable
class StorableProgram(Program, Protocol):
    """A program that can be written to a file."""

    def stored(self) -> StoredProgram:
        """It as a file has it; UnsupportedError if this one cannot be stored, CompileError if its
        code is gone."""
