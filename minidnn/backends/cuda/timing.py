"""Times each task of an instance by events."""

from __future__ import annotations

from itertools import pairwise

from ...cudnn.graph.timing import keep_busy
from ...gpu.cupy import cupy
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
