"""How far a precision's results are from those of float32, and how long it takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from minidnn.executable import Executable
from minidnn.measure.statistics import interleaved
from minidnn.precision.examples import Call
from minidnn.runtime.program import ClockedProgram, DeviceProgram

_SECONDS, _ROUND_SECONDS = 1.5, 0.005
"""What timing takes in all, and in a round for each precision, unless calls are longer."""
_ROUNDS, _MOST_CALLS = (5, 25), 1000

Clock = Callable[[int], float]
"""The seconds of a call, of so many in a row."""


def results_of(executable: Executable, call: Call) -> list[np.ndarray]:
    """The outputs of a call, in order."""
    found = executable(*call)
    if isinstance(found, dict):
        found = tuple(found.values())
    return [np.asarray(each) for each in (found if isinstance(found, tuple) else (found,))]


def relative_errors(
    exact: Sequence[Sequence[np.ndarray]], found: Sequence[Sequence[np.ndarray]]
) -> list[float]:
    """Of each output the Euclidean norm of what differs over all calls, as a part of that of exact
    results; infinite where results are not finite."""
    count = len(exact[0])
    apart, whole = np.zeros(count), np.zeros(count)
    for wanted, given in zip(exact, found, strict=True):
        for place, (one, other) in enumerate(zip(wanted, given, strict=True)):
            wide = one.astype(np.float64)
            whole[place] += np.vdot(wide, wide)
            with np.errstate(all="ignore"):  # what is not finite stays so
                wide -= other
                apart[place] += np.vdot(wide, wide)
    pairs = zip(apart.tolist(), whole.tolist(), strict=True)
    return [_share(one, other) for one, other in pairs]


def _share(apart: float, whole: float) -> float:
    if not apart:
        return 0.0
    return math.sqrt(apart / whole) if whole and math.isfinite(apart) else math.inf


def times_of(executables: Mapping[str, Executable], call: Call) -> dict[str, list[float]]:
    """The seconds of a call of each, round by round, in turn."""
    clocks = {name: _clock(each, call) for name, each in executables.items()}
    takes: dict[str, Callable[[], float]] = {}
    seconds = 0.0
    for name, clock in clocks.items():
        clock(1)  # what is loaded, or laid down, when it is first needed
        once = min(clock(1), clock(1))
        calls = min(_MOST_CALLS, max(1, math.ceil(_ROUND_SECONDS / max(once, 1e-9))))
        takes[name] = partial(clock, calls)
        seconds += calls * once
    least, most = _ROUNDS
    return interleaved(takes, min(most, max(least, int(_SECONDS / seconds))))


def _clock(executable: Executable, call: Call) -> Clock:
    program = executable.program
    if isinstance(program, ClockedProgram):
        return program.clock(call)
    out = None if isinstance(program, DeviceProgram) else executable.outputs_for(None)

    def clock(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            executable(*call, out=out)
        return (time.perf_counter() - start) / calls

    return clock
