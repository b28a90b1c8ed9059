"""Sums over ranks (all-reduce) on GPUs: started on a stream of their own, and waited for where
results are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from ...gpu import cupy
from ...graph.operators import SumOverRanks
from ...graph.operators.ranks import process_group_of
from ...graph.types import TensorType
from .arrays import DEVICE_TO_DEVICE
from .functions import Run
from .table import LibraryRow, Row


class DeviceProcessGroup(Protocol):
    """A process group whose ranks have a GPU each."""

    def begin(self, sums: Sequence[tuple[int, int, int, str]], ready: Any, done: Any) -> None:
        """Starts sums after what CuPy's current stream has so far.

        Args:
            sums: for each, the addresses of operand and result, how many elements these have, and
                their dtype.
            ready: an event to record on the current stream, which the sums wait for.
            done: an event to record after the sums.
        """


@dataclass(frozen=True)
class RankSum:
    """The work of a task: to start the sums of a node, or to wait for them."""

    op: SumOverRanks
    types: tuple[TensorType, ...]
    #: The name of the node, which its start and its wait share.
    name: str
    begins: bool


class RankSums:
    """Makes the rows of sums over ranks; the start and the wait of a node share events."""

    def __init__(self) -> None:
        self._events: dict[str, tuple[Any, Any]] = {}

    def row(self, work: RankSum, arguments: Sequence[Any]) -> Row:
        """The row of a start, with the addresses of operands and results, or of a wait."""
        events = self._events.get(work.name)
        if events is None:
            ready, done = (cupy().cuda.Event(disable_timing=True) for _ in range(2))
            events = self._events[work.name] = ready, done
        if work.begins:
            return LibraryRow(_Begin(work.op.ranks, work.types, *events), tuple(arguments))
        return LibraryRow(_Wait(events[1]), ())


@dataclass(frozen=True, eq=False)
class _Begin:
    """The call that starts sums over ranks; with a single rank it copies the operands."""

    ranks: int
    types: tuple[TensorType, ...]
    ready: Any
    done: Any

    def bind(self, addresses: Sequence[int]) -> Run:
        count = len(self.types)
        ends = zip(addresses[:count], addresses[count:], self.types, strict=True)
        if self.ranks == 1:
            copies = [(source, to, type.bytes) for source, to, type in ends]
            return lambda: self._copy(copies)
        sums = [(source, to, type.size, type.dtype) for source, to, type in ends]
        meeting = cast(DeviceProcessGroup, process_group_of(self.ranks))
        return lambda: meeting.begin(sums, self.ready, self.done)

    def _copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        cuda = cupy().cuda
        stream = cuda.get_current_stream()
        for source, to, size in copies:
            cuda.runtime.memcpyAsync(to, source, size, DEVICE_TO_DEVICE, stream.ptr)
        self.done.record(stream)


@dataclass(frozen=True, eq=False)
class _Wait:
    """The call that has the current stream wait for sums over ranks."""

    done: Any

    def bind(self, addresses: Sequence[int]) -> Run:
        return lambda: cupy().cuda.get_current_stream().wait_event(self.done)
