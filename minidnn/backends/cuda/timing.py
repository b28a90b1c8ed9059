"""Times each task of an instance, and whole runs, by CUDA events."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from ...cudnn.gpu_lock import gpu_lock
from ...cudnn.graph.timing import WAIT_CYCLES, keep_busy, timing_stream
from ...gpu import cupy
from .instance import Instance

_CYCLES_PER_LAUNCH = 60_000
"""Cycles of the GPU's clock, about 30 us: longer than Python takes to launch a task with events."""


def seconds_of_tasks(instance: Instance) -> list[float]:
    """The seconds of each task.  All are launched while the GPU is kept busy, so that it does not
    wait for the host.

    The time between two events includes about a microsecond of their own.
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
    """The mean seconds of a run, over ``count`` in a row; ``run`` launches one on CuPy's current
    stream."""
    cuda = cupy().cuda
    before, after = cuda.Event(), cuda.Event()
    cuda.get_current_stream().synchronize()  # copies of its inputs may be in flight
    with gpu_lock(cuda.runtime.getDevice()), timing_stream():
        keep_busy(WAIT_CYCLES)
        before.record()
        for _ in range(count):
            run()
        after.record()
        after.synchronize()
    return float(cuda.get_elapsed_time(before, after)) * 1e-3 / count
