"""Times alternative GPU computations fairly: a short screening, then interleaved rounds.

Kernels at batch 1 take less time than Python needs to launch one.  So each contestant is captured
into a CUDA graph, short ones repeatedly, and the replay is timed after a kernel that keeps the GPU
busy while the host enqueues it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from minidnn.cudnn.errors import CuDNNError
from minidnn.cudnn.gpu_lock import gpu_lock
from minidnn.gpu import cupy

log = logging.getLogger(__name__)
Run = Callable[[], object]

GOAL_MS = 0.25
"""The duration in milliseconds that one timed replay should have at least."""

MOST_RUNS = 20
"""The largest number of runs in one replay."""

_HOPELESS = 2.0
"""A contestant that takes longer than this multiple of the least time is not timed further."""

_LAUNCHED_MS = 0.02
"""The milliseconds that launches from Python may add to the time of a single run."""

WAIT_CYCLES = 200_000
"""Cycles of the GPU's clock, about 0.1 ms: longer than launching a graph from Python takes."""


@dataclass(frozen=True)
class Contestant:
    """One of the computations that are compared; ``run`` enqueues it on CuPy's current stream.

    ``repeat(count)`` returns a function that enqueues it ``count`` times; without it the runs are
    captured into a CUDA graph.
    """

    run: Run
    repeat: Callable[[int], Run] | None = None


def race(
    contestants: Sequence[Contestant],
    *,
    rounds: int = 5,
    margin: float = 1.2,
    finalists: int = 6,
) -> list[float | None]:
    """The time of each contestant in milliseconds, None for those that failed.

    All are run a few times, and those that are not far slower than the best are timed roughly.
    Those of them within ``margin`` of the best, at most ``finalists``, are timed again in
    ``rounds`` interleaved rounds, and their least time counts.  The others keep their first time,
    raised to the final time of the best where it is below.  The lock of the GPU is held meanwhile.
    """
    cupy().cuda.get_current_stream().synchronize()  # the inputs may still be on their way
    with gpu_lock(cupy().cuda.runtime.getDevice()), timing_stream() as stream:
        once = [_once(contestant, stream) for contestant in contestants]
        limit = _HOPELESS * min((t for t in once if t is not None), default=0.0) + _LAUNCHED_MS
        replays = [
            None if t is None or t > limit else _replay(contestant, t, stream)
            for contestant, t in zip(contestants, once, strict=True)
        ]
        rough = [
            t if r is None else _roughly(r, stream) for r, t in zip(replays, once, strict=True)
        ]
        times: list[float | None] = list(rough)
        ranking = sorted((t, i) for i, t in enumerate(rough) if t is not None)
        if not ranking:
            return times
        final = {
            i: replay
            for t, i in ranking[:finalists]
            if t <= margin * ranking[0][0] and (replay := replays[i]) is not None
        }
        best = dict.fromkeys(final, math.inf)
        for _ in range(rounds):
            for index, replay in final.items():
                best[index] = min(best[index], _timed(replay, stream))
        for index, value in best.items():
            times[index] = value
        floor = min(best.values(), default=0.0)
        return [t if t is None or i in best else max(t, floor) for i, t in enumerate(times)]


def sample(contestant: Contestant, *, rounds: int = 30, limit_ms: float = 250.0) -> list[float]:
    """The times of one contestant in milliseconds, one per round, to show how they vary.

    Where ``rounds`` would take longer than ``limit_ms`` together there are fewer, but at least 7.
    The list is empty if the contestant failed.
    """
    cupy().cuda.get_current_stream().synchronize()  # the inputs may still be on their way
    with gpu_lock(cupy().cuda.runtime.getDevice()), timing_stream() as stream:
        once = _once(contestant, stream)
        if once is None:
            return []
        replay = _replay(contestant, once, stream)
        fitting = int(limit_ms / (_roughly(replay, stream) * replay.count))
        return [_timed(replay, stream) for _ in range(max(7, min(rounds, fitting)))]


def timing_stream() -> Any:
    """The stream of the current device on which everything is timed.

    It is created once per device, since workspaces are kept per stream.
    """
    device = cupy().cuda.runtime.getDevice()
    if device not in _streams:
        _streams[device] = cupy().cuda.Stream(non_blocking=True)
    return _streams[device]


_streams: dict[int, Any] = {}


@cache
def _wait() -> Any:
    """The kernel that keeps the GPU busy while the host enqueues what is timed.

    Without it the time between two events includes the launch from Python, which takes longer
    than many convolutions.
    """
    return cupy().RawKernel(_WAIT, "minidnn_wait")


_WAIT = """
extern "C" __global__ void minidnn_wait(long long cycles) {
    const long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
}
"""


def keep_busy(cycles: int) -> None:
    """Keeps the GPU busy for ``cycles`` of its clock, in order on CuPy's current stream."""
    _wait()((1,), (1,), (cycles,))


@dataclass(frozen=True)
class _Replay:
    """``start`` enqueues ``count`` runs of a contestant on the timing stream."""

    start: Run
    count: int


def _roughly(replay: _Replay, stream: Any) -> float:
    """The lesser of two times, unless the first is so long that a disturbance cannot matter."""
    first = _timed(replay, stream)
    return first if first > 20 * GOAL_MS else min(first, _timed(replay, stream))


def _once(contestant: Contestant, stream: Any) -> float | None:
    """The milliseconds of one run, after a warm-up that loads kernels; None if it fails."""
    try:
        contestant.run()
        stream.synchronize()
        return min(_timed(_Replay(contestant.run, 1), stream) for _ in range(2))
    except CuDNNError:
        return None  # the caller is told by None; a plan may fail only when it runs


def _replay(contestant: Contestant, once: float, stream: Any) -> _Replay:
    """A replay of enough runs to be timed, where one takes ``once`` milliseconds."""
    count = min(MOST_RUNS, math.ceil(GOAL_MS / max(once, 0.001)))
    if contestant.repeat is not None:
        start = contestant.repeat(count)
    else:
        start = _repeated(contestant.run, count, stream)
    start()
    stream.synchronize()
    return _Replay(start, count)


def _repeated(run: Run, count: int, stream: Any) -> Run:
    """A function that enqueues the runs: as one CUDA graph, or one by one where capture fails."""

    def enqueue() -> None:
        for _ in range(count):
            run()

    try:
        graph = capture(stream, enqueue)
    except (CuDNNError, cupy().cuda.runtime.CUDARuntimeError) as error:
        log.info("a contestant is timed without a CUDA graph, since capture failed: %s", error)
        return enqueue
    return partial(graph.launch, stream)


def _timed(replay: _Replay, stream: Any) -> float:
    """The milliseconds that one run of a replay takes."""
    cuda = cupy().cuda
    before, after = cuda.Event(), cuda.Event()
    keep_busy(WAIT_CYCLES)
    before.record(stream)
    replay.start()
    after.record(stream)
    after.synchronize()
    return float(cuda.get_elapsed_time(before, after)) / replay.count


def capture(stream: Any, enqueue: Callable[[], object]) -> Any:
    """The CUDA graph of the work that ``enqueue`` starts on ``stream``, a CuPy stream.

    CuPy captures in CUDA's relaxed mode: other threads may do anything meanwhile but synchronize
    the whole device, which fails while any of its streams is captured.
    """
    stream.begin_capture()
    try:
        enqueue()
    finally:
        graph = stream.end_capture()
    return graph
