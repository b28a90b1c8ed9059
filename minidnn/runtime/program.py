"""Programs: the protocols of what a backend compiles a plan to.

Every backend's program has :meth:`Program.run`.  The other protocols are optional capabilities, for
which callers test with ``isinstance``.
"""

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
    """A compiled plan, which computes outputs from inputs."""

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Computes the outputs, which the caller passes as contiguous arrays of the right types."""


@runtime_checkable
class StatefulProgram(Program, Protocol):
    """A program whose graph has states, which live in a store."""

    def attach(self, store: Store) -> None:
        """Connects its states with those of a store, to which it adds the ones that are missing."""


@runtime_checkable
class TimedProgram(Program, Protocol):
    """A program that can time the nodes that it runs."""

    def seconds_of_nodes(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[Node, float]:
        """Computes the outputs, and returns the time of each node that has a kernel, in order."""

    def bound_seconds(self, operations: int, bytes: int, contraction: bool) -> float:
        """The least time in which a machine of these measured rates computes so many operations and
        moves so many bytes; a contraction's operations are multiply-adds."""


@runtime_checkable
class PackedProgram(Program, Protocol):
    """A program that has packed copies of all constants, and uses none of the graph's arrays."""

    @property
    def constant_bytes(self) -> int:
        """Size of the packed constants."""

    @property
    def run_bytes(self) -> int:
        """Size of the memory that a run needs in addition to packed constants, inputs and
        outputs."""

    def release_memory(self) -> None:
        """Returns memory that was only needed to compile to the system."""


@runtime_checkable
class SharingProgram(PackedProgram, Protocol):
    """A program whose packed constants other programs may share."""

    @property
    def shared_constants(self) -> Mapping[Any, int]:
        """The size of each packed constant; it has the same key in all programs that share it."""


@runtime_checkable
class ResizableProgram(Program, Protocol):
    """A program whose kernels may serve any size of inputs."""

    def of_size(self, plan: Plan) -> Program:
        """The program of a plan that is this one's for other sizes; see :func:`.plan.resized`."""


@runtime_checkable
class DeviceProgram(Program, Protocol):
    """A program that takes arrays on its own device, and decides which arrays it returns."""

    def call(self, inputs: Sequence[Any], out: Any) -> Sequence[Any]:
        """The outputs for the inputs in order, in ``out`` if that is not None; GraphError or
        DeviceError if an array does not fit."""

    def bind(self, inputs: Sequence[Any], out: Any) -> Any:
        """A callable that computes from these very arrays each time it is called."""


@dataclass(frozen=True)
class DonatedLayout:
    """The layout of a buffer that callers donate to a run: it holds some of the inputs, and the
    program uses it as its working memory.

    Attributes:
        bytes: size of the buffer.
        offsets: where each of these inputs begins, in bytes.
    """

    bytes: int
    offsets: tuple[int, ...]


@runtime_checkable
class StreamProgram(DeviceProgram, Protocol):
    """A device's program that computes on memory by address, on streams that callers own."""

    def run_on(
        self, stream: int, inputs: Sequence[int], outputs: Sequence[int], donated: int = 0
    ) -> None:
        """Enqueues the computation of the outputs.  Inputs and outputs are addresses of contiguous
        arrays of the right types, which are not checked; ``donated`` is the address of a donated
        buffer, or 0."""

    def use_external_buffers(self, donated: Sequence[int] = ()) -> DonatedLayout | None:
        """Stops keeping memory for inputs and outputs where it can; returns the layout of a buffer
        that callers may donate, which holds the inputs of numbers ``donated``."""


@runtime_checkable
class RepeatingProgram(StatefulProgram, Protocol):
    """A program with states that computes several runs in one launch, for hosts that are slower
    than their device."""

    def repeat(self, count: int) -> None:
        """Prepares launches of ``count`` runs; OutOfMemoryError if memory does not suffice."""

    def launch(self, calls: Sequence[Sequence[Any]]) -> Sequence[np.ndarray]:
        """The outputs for the inputs of each call, bitwise equal to those of separate runs in this
        order; runs are the first axis of results."""


@runtime_checkable
class ClockedProgram(Program, Protocol):
    """A device's program that can time whole runs by the clock of its device."""

    def clock(self, inputs: Sequence[np.ndarray]) -> Callable[[int], float]:
        """Copies the inputs, in the compiled dtypes, to the device; returns a function that makes
        so many runs in a row there, and returns the seconds of one."""


@runtime_checkable
class AddressedProgram(Program, Protocol):
    """A program that computes on CPU memory by address, on threads of its own."""

    @property
    def takes_addresses(self) -> bool:
        """Whether :meth:`run_at` can be used."""

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Computes the outputs; inputs and outputs are addresses of contiguous arrays of the right
        types, which are not checked."""

    def rest(self) -> None:
        """Has its threads sleep until the next run."""


@runtime_checkable
class DescribedProgram(Program, Protocol):
    """A program that can say how a node is computed."""

    def details(self, node: Node) -> str:
        """Algorithm, memory and occupancy in a few words; empty if there is nothing to report."""

    def refusals(self, node: Node) -> Mapping[str, str]:
        """The algorithms that cannot compute a node, and why not."""


@runtime_checkable
class CountedProgram(Program, Protocol):
    """A program that knows how many operations its algorithms take."""

    def spared_operations(self, node: Node) -> int:
        """How many operations its algorithm saves compared with the node's definition; transforms
        do not count."""


#: Constants begin at multiples of this many bytes in a file.
ALIGNMENT = 64


def offsets_of(constants: Sequence[np.ndarray]) -> list[int]:
    """The offset in bytes of each constant, if a file holds them one after another."""
    ends = [0]
    for array in constants:
        ends.append(ends[-1] + -(-array.nbytes // ALIGNMENT) * ALIGNMENT)
    return ends[:-1]


@dataclass(frozen=True)
class StoredProgram:
    """A program as a file stores it.

    Attributes:
        architecture: the device's name of the architecture that its code is compiled for.
        document: the JSON values from which its device builds the program again.
        code: executable code, by name.
        constants: flat arrays, stored at the offsets of :func:`offsets_of`.
        index_bytes: how many bytes of the constants, from the first on, may be used as indices or
            sizes, so that the program must not run unless they are right.
        relocate: returns its document for constants at these offsets instead; None if constants
            must be stored one after another.
    """

    architecture: str
    document: dict[str, Any]
    code: Mapping[str, bytes | memoryview]
    constants: Sequence[np.ndarray]
    index_bytes: int
    relocate: Callable[[Sequence[int]], dict[str, Any]] | None = None


WHY_NO_STATES = (
    "what has states, which live in a store, cannot be saved compiled; compiled without a store, "
    "weights are constants"
)


@runtime_checkable
class StorableProgram(Program, Protocol):
    """A program that can be written to a file."""

    def stored(self) -> StoredProgram:
        """The program in the form that files store; UnsupportedError if it cannot be stored,
        CompileError if its code no longer exists."""
