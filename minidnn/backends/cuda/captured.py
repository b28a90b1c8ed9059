"""Runs a table of launches on callers' arrays and streams, as CUDA graphs.

A program keeps several instances, each with memory of its own, so that calls on different streams
run at once.  The graph of an instance reads and writes arrays in place where it can; the others are
copied to and from buffers of the instance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np

from ...errors import GraphError, OutOfMemoryError
from ...gpu import cupy
from ...runtime.arrays import from_bits
from ...runtime.program import DonatedLayout
from .arrays import (
    CUPY,
    NUMPY,
    ArrayLibrary,
    ArraySlot,
    CallerArray,
    as_it_is,
    check_aligned,
    check_no_overlap,
    outputs_of,
    overlap,
    read,
)
from .constants import Constants, UploadedConstants
from .external import ExternalInstances
from .instance import Instance, SharedArena
from .memory import Limit, release_unused, told
from .repeated import Repeated, bytes_beside
from .states import OrderedStates
from .table import CudaTable
from .timing import seconds_of_runs

_PER_THREAD_STREAM = 2
_MOST_INSTANCES = 4
"""Calls that run at once, on streams of their own and each in memory of its own; others wait."""


@contextmanager
def on_device(index: int) -> Iterator[None]:
    """Makes a device the current one within the context."""
    runtime = cupy().cuda.runtime
    before = runtime.getDevice()
    if before == index:
        yield
        return
    runtime.setDevice(index)
    try:
        yield
    finally:
        runtime.setDevice(before)


class CapturedProgram:
    """A table and its instances.  Several threads may call it at once, on any streams.

    If it has states, its runs and those of all programs of the same store are ordered one after
    the other, whatever their streams.

    Args:
        device: the index of the GPU.
        inputs, outputs: shape and dtype of each array.
    """

    def __init__(
        self, device: int, inputs: Sequence[ArraySlot], outputs: Sequence[ArraySlot]
    ) -> None:
        self.device = device
        self._inputs = inputs
        self._outputs = outputs
        self._lock = threading.Lock()
        self._runtime = cupy().cuda.runtime
        self._instances: dict[object, Instance] = {}
        #: The graphs of several runs, by the number of runs in a launch.
        self._repeated: dict[int, Repeated] = {}
        self._states: OrderedStates | None = None
        self._limit: Limit | None = None

    def use(
        self, table: CudaTable, constants: Constants | UploadedConstants, instance: Instance | None
    ) -> None:
        """Sets the table that calls run, its constants, and its first instance; if that is None,
        the first call makes one."""
        self.table = table
        self._constants = constants
        if instance is not None:
            self._instances[None] = instance
        self._repeated.clear()
        self._external = ExternalInstances(table)

    def use_external_buffers(self, donated: Sequence[int] = ()) -> DonatedLayout | None:
        """From now on keeps no buffers for inputs and outputs, but reads and writes callers' arrays
        in place from their first call on.

        This saves most memory where calls come by :meth:`run_on` and their addresses recur, as
        those of activations that are kept for a backward pass.

        Args:
            donated: the indices of inputs that are in one buffer, which callers may donate with a
                run: the program keeps values and workspaces in it, also in place of those inputs
                that no later node reads.

        Returns:
            The layout of that buffer; None if no input is named, or if the program needs memory of
            its own.
        """
        if self._states is not None or self._limit is not None:
            return None
        if not self._instances:  # no run has loaded the kernels yet, on which captures rely
            return None
        with on_device(self.device), self._lock:
            self._external.share(self.device, reserves=not donated)
            self._instances.clear()
            release_unused()  # CuPy's pool would keep the instances' memory
        return self._donated_layout(donated) if donated else None

    def _donated_layout(self, inputs: Sequence[int]) -> DonatedLayout | None:
        return None

    # Calls

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Computes the outputs; those of NumPy inputs into the given NumPy arrays."""
        for array, result in zip(outputs, self.call(inputs, None), strict=False):
            array[...] = result

    def call(self, inputs: Sequence[Any], out: Any) -> Sequence[Any]:
        """Computes the outputs on the current stream of the first input's library.  Current streams
        of other arrays' libraries wait for this one, as it waits for them.

        GraphError or DeviceError if an array does not fit.
        """
        return self._computed(inputs, out, in_place=True)[1]

    def _computed(
        self, inputs: Sequence[Any], out: Any, in_place: bool
    ) -> tuple[Instance, Sequence[Any]]:
        """Enqueues a run; returns the instance that it ran on, and the outputs.

        in_place: whether kernels may read and write the arrays directly; otherwise all are copied,
            so that the instance's own buffers hold the inputs afterwards.
        """
        device = self.device
        if self._runtime.getDevice() != device:
            with on_device(device):
                return self._computed(inputs, out, in_place)
        arrays = [read(s, a, device) for s, a in zip(self._inputs, inputs, strict=True)]
        library = arrays[0].library if arrays else NUMPY
        stream = _stream_of(arrays, device)
        results = self._results(library, out)
        in_place = in_place and (out is None or self._are_disjoint(arrays, results))
        several_libraries = len(arrays) > 1 or out is not None
        others = _others_of((*arrays, *results), stream, device) if several_libraries else ()
        for other in others:  # first the work that another library has enqueued on its arrays
            _follow(stream, other)
        instance = self._enqueue(arrays, results, stream, in_place)
        for other in others:
            _follow(other, stream)
        for result in results:
            if result.library.is_host:
                self._runtime.streamSynchronize(stream)
                break
        return instance, () if out is not None else self._finished(results)

    def run_on(
        self, stream: int, inputs: Sequence[int], outputs: Sequence[int], donated: int = 0
    ) -> None:
        """Computes the outputs on a stream, without checks: inputs and outputs are device addresses
        of contiguous arrays of the right types, and no output overlaps any other array.

        donated: the address of a buffer in the layout that :meth:`use_external_buffers` returned,
            whose contents are lost; 0 if there is none.
        """
        if self._runtime.getDevice() != self.device:
            with on_device(self.device):
                return self.run_on(stream, inputs, outputs, donated)
        arrays, results = list(map(_array_at, inputs)), list(map(_array_at, outputs))
        self._enqueue(arrays, results, stream, True, donated)

    def _enqueue(
        self,
        inputs: Sequence[CallerArray],
        results: Sequence[CallerArray],
        stream: int,
        disjoint: bool,
        donated: int = 0,
    ) -> Instance:
        instance = self._at_addresses(inputs, results, donated) if disjoint else None
        instance = self._take(_key(stream)) if instance is None else instance
        if self._states is None:
            self._start(instance, inputs, results, stream, disjoint)
        else:
            with self._states.turn(stream):
                self._start(instance, inputs, results, stream, disjoint)
        return instance

    def _start(
        self,
        instance: Instance,
        inputs: Sequence[CallerArray],
        results: Sequence[CallerArray],
        stream: int,
        disjoint: bool,
    ) -> None:
        runtime = self._runtime
        with instance.lock:
            # Even on the stream of the last run: a new stream may have its handle by now.
            runtime.streamWaitEvent(stream, instance.done.ptr)
            instance.launch(inputs, results, stream, disjoint)
            runtime.eventRecord(instance.done.ptr, stream)

    # Several runs in a launch

    def repeat(self, count: int) -> None:
        """Makes the graph for launches of ``count`` runs, which use the same memory one after the
        other, as all runs of a program with states do.  OutOfMemoryError if there is no room for
        their inputs and outputs.
        """
        with on_device(self.device), self._lock:
            if count in self._repeated:
                return
            assert self._states is not None
            table, constants = self.table, self._constants
            if self._limit is not None:
                ends_bytes = bytes_beside(table, count)
                needed = constants.bytes + table.block.own_bytes + ends_bytes
                if needed > self._limit.bytes:
                    raise OutOfMemoryError(
                        f"{self._limit.said}; {count} runs in a launch take {needed} bytes, of "
                        f"which their inputs and outputs are {ends_bytes}"
                    )
            values = self._instances[None].begin
            states = self._states.addresses
            with told():
                repeated = Repeated(table, count, values, states, constants.address)
            self._repeated[count] = repeated

    def launch(self, calls: Sequence[Sequence[Any]]) -> Sequence[np.ndarray]:
        """Computes the outputs for the inputs of several calls, one run after the other, in one
        launch on the current stream of the first array's library, and waits for it.  The results
        have the runs as their first axis.

        GraphError or DeviceError if an array does not fit.
        """
        assert self._states is not None
        device, runtime = self.device, self._runtime
        with on_device(device):
            arrays = [
                [read(s, a, device) for s, a in zip(self._inputs, call, strict=True)]
                for call in calls
            ]
            self.repeat(len(calls))
            repeated = self._repeated[len(calls)]
            stream = _stream_of(arrays[0], device)
            others = _others_of(list(chain.from_iterable(arrays)), stream, device)
            for other in others:
                _follow(stream, other)
            with self._states.turn(stream):
                copied = repeated.launch(arrays, stream)
            runtime.streamSynchronize(stream)
        results = repeated.results(copied, self._outputs)
        return [from_bits(r, slot.dtype) for r, slot in zip(results, self._outputs, strict=True)]

    def bind(self, inputs: Sequence[Any], out: Any) -> Bound:
        """Returns a program bound to these arrays, which reads them and writes ``out`` in place.

        GraphError unless they lie on the device, contiguous and aligned, in the compiled dtypes.
        """
        with on_device(self.device):
            arrays = [read(s, a, self.device) for s, a in zip(self._inputs, inputs, strict=True)]
            for slot, array, one in zip(self._inputs, inputs, arrays, strict=True):
                if one.library.is_host or not as_it_is(array, one):
                    raise GraphError(
                        f"{slot.what} cannot be bound: valid is a contiguous array on "
                        f"cuda:{self.device}, {slot.described()}"
                    )
            library = arrays[0].library if arrays else CUPY
            results = self._results(library, out)
            if any(one.library.is_host for one in results):
                raise GraphError("out is a NumPy array; valid is an array on the GPU")
            return self._bound(library, arrays, results)

    def _bound(
        self, library: ArrayLibrary, inputs: Sequence[CallerArray], results: Sequence[CallerArray]
    ) -> Bound:
        for slot, one in zip(self._inputs, inputs, strict=True):
            check_aligned(slot, one)
            for other, two in zip(self._outputs, results, strict=True):
                check_no_overlap(slot, one, other, two)
        for slot, one in zip(self._outputs, results, strict=True):
            check_aligned(slot, one)
        ends = [[one.pointer for one in some] for some in (inputs, results)]
        with told(), self._states.unchanged() if self._states else nullcontext():
            instance = self.instance(self.table, self._constants.address, *ends)
        outputs = tuple(self._finished(results))
        kept = (inputs, results, self)
        return Bound(instance, self.device, library, kept, outputs, self._states)

    def clock(self, inputs: Sequence[np.ndarray]) -> Callable[[int], float]:
        """Returns a function of a number of runs: it runs so many in a row, on device copies of the
        inputs, and returns the seconds of one by the GPU's clock."""
        with on_device(self.device):
            arrays = [cupy().asarray(array) for array in inputs]
            read_arrays = [
                read(s, a, self.device) for s, a in zip(self._inputs, arrays, strict=True)
            ]
            bound = self._bound(CUPY, read_arrays, self._results(CUPY, None))
        return partial(self._seconds, bound)

    def _seconds(self, bound: Bound, count: int) -> float:
        with on_device(self.device):
            return seconds_of_runs(bound, count)

    def _are_disjoint(self, inputs: Sequence[CallerArray], results: Sequence[CallerArray]) -> bool:
        """Whether no result overlaps an input."""
        return not any(
            overlap(slot, one, other, two)
            for slot, one in zip(self._inputs, inputs, strict=True)
            for other, two in zip(self._outputs, results, strict=True)
        )

    def _finished(self, results: Sequence[CallerArray]) -> list[Any]:
        return [
            one.library.finished(one.kept, slot)
            for one, slot in zip(results, self._outputs, strict=True)
        ]

    def _results(self, library: ArrayLibrary, out: Any) -> list[CallerArray]:
        if out is not None:
            return outputs_of(out, self._outputs, self.device)
        results = []
        for slot in self._outputs:
            array = library.empty(slot, self.device)
            results.append(CallerArray(library.pointer(array), library, array, library.written))
        return results

    # Instances

    def instance(
        self,
        table: CudaTable,
        constants: int,
        inputs: Sequence[int] | None = None,
        outputs: Sequence[int] | None = None,
    ) -> Instance:
        """Makes an instance of a table, on its own buffers or on a caller's inputs and outputs."""
        states = self._states.addresses if self._states else ()
        return Instance(table, states, constants, inputs, outputs)

    def _take(self, key: object) -> Instance:
        """The instance for calls of a key (a stream): the one it had, an idle one, a new one, or
        the oldest.  With states, whose runs are ordered, there is only one."""
        if self._states is not None:
            return self._instances[None]
        instance = self._instances.get(key)
        if instance is not None:
            return instance
        with self._lock:
            instance = self._instances.pop(None, None)
            if instance is None:
                instance = self._another()
            self._instances[key] = instance
            return instance

    def _at_addresses(
        self, inputs: Sequence[CallerArray], results: Sequence[CallerArray], donated: int
    ) -> Instance | None:
        """The instance that reads and writes these arrays in place, also those that libraries take;
        None if they have to be copied.

        It is made when their addresses come a second time, as they do where an allocator returns
        what was freed in the step before, or at once after :meth:`use_external_buffers`.
        """
        if self._states is not None or self._limit is not None:
            return None
        with self._lock:
            return self._external.of((*inputs, *results), self._external_instance, donated)

    def _external_instance(
        self, external: Sequence[int | None], fixed: Sequence[int], arena: SharedArena
    ) -> Instance:
        instance = Instance(
            self.table, (), self._constants.address, external=external, fixed=fixed, arena=arena
        )
        self._instances.clear()  # they are larger, with buffers for all inputs and outputs
        return instance

    def _another(self) -> Instance:
        for key, instance in self._instances.items():
            if instance.is_idle():
                del self._instances[key]
                return instance
        fits = self._limit is None or self._limit.bytes >= self.bytes + self.table.block.own_bytes
        if len(self._instances) < _MOST_INSTANCES and fits:
            try:
                with told():
                    return self.instance(self.table, self._constants.address)
            except OutOfMemoryError:
                pass  # the streams then share an instance
        if not self._instances:
            with told():
                return self.instance(self.table, self._constants.address)
        return self._instances.pop(next(iter(self._instances)))

    @property
    def bytes(self) -> int:
        """Device memory that the program holds now."""
        distinct = {id(instance) for instance in self._instances.values()}
        states = self._states.bytes if self._states else 0
        other = self._external.bytes + sum(repeated.bytes for repeated in self._repeated.values())
        buffers = len(distinct) * self.table.block.own_bytes
        return states + self._constants.bytes + buffers + other


class Bound:
    """A program on fixed arrays: calling it computes ``outputs`` on the current stream of the
    arrays' library.  Calls must not overlap, since they use the same memory."""

    def __init__(
        self,
        instance: Instance,
        device: int,
        library: ArrayLibrary,
        kept: object,
        outputs: tuple[Any, ...],
        states: OrderedStates | None,
    ) -> None:
        self.outputs = outputs
        self._states = states
        self._instance = instance
        self._device = device
        self._library = library
        self._kept = kept
        runtime = cupy().cuda.runtime
        self._current: Callable[[], int] = runtime.getDevice
        self._launch: Callable[[int, int], None] = runtime.graphLaunch
        self._executable = instance.executable

    def __call__(self) -> None:
        """Computes."""
        device = self._device
        if self._current() != device:
            with on_device(device):  # only if needed: the context costs half a launch
                return self()
        stream = self._library.stream(device)
        if self._states is None:
            return self._launch(self._executable, stream)
        with self._states.turn(stream):
            self._launch(self._executable, stream)


@lru_cache(maxsize=1 << 14)
def _array_at(address: int) -> CallerArray:
    return CallerArray(address, CUPY, None)


def _key(stream: int) -> object:
    """The key of a stream's instance; the per-thread default stream differs from thread to
    thread."""
    return (stream, threading.get_ident()) if stream == _PER_THREAD_STREAM else stream


def _stream_of(arrays: Sequence[CallerArray], device: int) -> int:
    for array in arrays:
        if not array.library.is_host:
            return array.library.stream(device)
    return CUPY.stream(device)


def _others_of(arrays: Sequence[CallerArray], stream: int, device: int) -> Sequence[int]:
    """The current streams of the arrays' libraries, but for ``stream``."""
    libraries = {array.library for array in arrays if not array.library.is_host}
    return sorted({library.stream(device) for library in libraries} - {stream})


def _follow(later: int, earlier: int) -> None:
    """Makes later work on one stream wait for all earlier work on another."""
    cuda = cupy().cuda
    event = cuda.Event(block=False, disable_timing=True)
    cuda.runtime.eventRecord(event.ptr, earlier)
    cuda.runtime.streamWaitEvent(later, event.ptr)
