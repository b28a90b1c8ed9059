"""Times each task of an instance, and whole runs, by events."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from ...cudnn.gpu_turn import turn
from ...cudnn.graph.timing import WAIT_CYCLES, keep_busy, timing_stream
from ...gpu import cupy
from .instance import Instance

_CYCLES_PER_LAUNCH = 60_000
"""Of the GPU's clock, about 30 us: longer than Python takes to launch a task with its events."""


def seconds_of_tasks(instance: Instance) -> list[float]:
    """The seconds of each task, started while the GPU is kept busy, so that it waits for nothing.

    What lies between two events includes about a microsecond of theirs.
    """
    cuda = cupy().cuda
    count = len(instance.runs)
    events = [cuda.Event() for _ in range(count + 1)]
    with instance.stream:
        instance.stream.wait_event(instance.done)
        keep_busy(_CYCLES_PER_LAUNCH * (count + 4))
        events[0].record()
        for runs, event in zip(instance.runs, events[1:], strict=True):
            for run in runs:
                run()
            event.record()
        instance.copy_outputs()
        instance.stream.synchronize()
    return [cuda.get_elapsed_time(*pair) * 1e-3 for pair in pairwise(events)]


def seconds_of_runs(run: Callable[[], object], count: int) -> float:
    """The seconds of a run, of so many in a row, each of which is a launch on CuPy's current
    stream."""
    cuda = cupy().cuda
    before, after = cuda.Event(), cuda.Event()
    cuda.get_current_stream().synchronize()  # its inputs may still be on their way
    with turn(cuda.runtime.getDevice()), timing_stream():
        keep_busy(WAIT_CYCLES)
        before.record()
        for _ in range(count):
            run()
        after.record()
        after.synchronize()
    return float(cuda.get_elapsed_time(before, after)) * 1e-3 / count
