"""``precision="auto"``: the fastest of a device's precisions within an error that is allowed.

Every precision computes the same inputs as float32 does, and those whose results are near enough
are timed in turn with it.  A precision that rounds more is taken only where it is faster by more
than what times differ from round to round: for nothing gained, nothing is lost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from textwrap import shorten
from typing import Any

import numpy as np

from minidnn.backends.backend import AUTO, Backend, check_inputs_and_outputs_fit, why_not_in
from minidnn.errors import GraphError, OutOfMemoryError, UnsupportedError
from minidnn.executable import Executable
from minidnn.graph.ir import Graph
from minidnn.graph.types import BYTES, FLOATS, numpy_dtype
from minidnn.measure import interleaved, median, ratio
from minidnn.passes.infrastructure import Observer
from minidnn.report.explain import AutomaticPrecision, PrecisionTrial
from minidnn.runtime.arrays import checked, random_array, to_numpy
from minidnn.runtime.interface import Interface, interface_of
from minidnn.runtime.program import ClockedProgram, DeviceProgram

TOLERANCE = 0.01
"""The relative error that is allowed unless another is given."""

EXACT = "float32"
_NOT_FASTER = (EXACT, "float64")

Compiled = Callable[[str, Observer | None], Executable]
"""What makes the executable in a precision, its passes observed or not."""


def check_asked(precision: str | None, tolerance: Any, examples: Any) -> None:
    """GraphError for a tolerance that is none, or for what another precision does not take."""
    if precision != AUTO:
        for name, value in (("tolerance", tolerance), ("examples", examples)):
            if value is not None:
                text = shorten(repr(value), 60, placeholder="...")
                raise GraphError(
                    f"{name}={text} with precision={precision!r:.80}; valid is None, or "
                    f"precision={AUTO!r}, which chooses by it"
                )
    elif tolerance is not None and (
        not isinstance(tolerance, (int, float, np.floating))
        or isinstance(tolerance, bool)
        or not 0 < tolerance < math.inf
    ):
        raise GraphError(
            f"tolerance={tolerance!r:.80}; valid is a finite number above 0, the relative error "
            f"that is allowed, or None for {TOLERANCE}"
        )


def _why_not_automatic(graph: Graph) -> str | None:
    """Why no precision can be chosen for a graph; None if one can."""
    if graph.updates:
        named = ", ".join(repr(state.name) for state in list(graph.updates)[:3])
        return f"it updates states ({named}), so that no two runs compute the same"
    others = {value.dtype for value in graph.values if value.dtype in FLOATS} - {EXACT}
    if others:
        return (
            f"it has values in {' and '.join(sorted(others))}, and errors are told beside float32; "
            "valid is a network in float32, or precision=None, which computes in its own dtype"
        )
    return None


def fastest(
    graph: Graph,
    backend: Backend,
    compiled: Compiled,
    tolerance: float | None,
    examples: Any,
    observe: Observer | None,
) -> Executable:
    """The graph in the fastest precision within ``tolerance``; what was found out stands in the
    executable's ``automatic_precision``.

    Args:
        graph: what is compiled.
        backend: of the device.
        compiled: makes the executable in a precision, observed if that is not None.
        tolerance: the relative error that is allowed.
        examples: inputs as :func:`minidnn.compile` takes them.
        observe: told of the passes of the one that is chosen, afterwards.

    Raises:
        GraphError: examples do not fit, or results in float32 are not finite.
        UnsupportedError: the graph cannot be computed in several precisions.
    """
    if (reason := _why_not_automatic(graph)) is not None:
        raise UnsupportedError(f"precision={AUTO!r} for graph {graph.name!r}: {reason}")
    check_inputs_and_outputs_fit(backend, graph)
    allowed = TOLERANCE if tolerance is None else float(tolerance)
    calls = _calls_of(examples, interface_of(graph))
    seen: dict[str, list[Any]] = {}

    def made(precision: str) -> Executable:
        steps = seen[precision] = []
        return compiled(precision, (lambda *x: steps.append(x)) if callable(observe) else observe)

    kept = {EXACT: made(EXACT)}
    exact = _Exact(kept[EXACT], calls, examples is None)
    trials = []
    for precision in [each for each in backend.precisions() if each not in _NOT_FASTER]:
        trial, executable = _tried(precision, backend, made, exact)
        trials.append(trial)
        if executable is not None and trial.error is not None and trial.error <= allowed:
            kept[precision] = executable
    times = times_of(kept, calls[0]) if len(kept) > 1 else {}
    chosen = _choice(trials, times)
    found = kept[chosen]
    found.automatic_precision = AutomaticPrecision(
        chosen,
        allowed,
        exact.inputs,
        median(times[EXACT]).value if times else None,
        [_with_times(trial, times) for trial in trials],
    )
    for step in seen[chosen]:
        assert observe is not None
        observe(*step)
    return found


class _Exact:
    """What float32 gives, and what all others are compared with."""

    def __init__(self, executable: Executable, calls: Sequence[Call], is_random: bool) -> None:
        self.calls = calls
        many = f"{len(calls)} batch{'es' * (len(calls) > 1)}"
        self.inputs = f"{many} of {'random inputs' if is_random else 'examples'}"
        self._results = [results_of(executable, call) for call in calls]
        values = executable.interface.outputs
        self._names = executable.interface.output_names or [value.name for value in values]
        for results in self._results:
            self._check_finite(results)

    def _check_finite(self, results: Sequence[np.ndarray]) -> None:
        for name, array in zip(self._names, results, strict=True):
            if not np.isfinite(array).all():
                raise GraphError(
                    f"output {name!r} has numbers that are not finite in float32 on {self.inputs}, "
                    f"so that precision={AUTO!r} has nothing to compare with; valid are examples "
                    f"with finite results, or precision={EXACT!r}"
                )

    def trial(self, precision: str, executable: Executable) -> PrecisionTrial:
        """How far another precision is from it, at the output where that is most."""
        found = [results_of(executable, call) for call in self.calls]
        errors = relative_errors(self._results, found)
        worst = max(range(len(errors)), key=errors.__getitem__)
        name = self._names[worst] if len(errors) > 1 else ""
        return PrecisionTrial(precision, errors[worst], name)


def _tried(
    precision: str, backend: Backend, made: Callable[[str], Executable], exact: _Exact
) -> tuple[PrecisionTrial, Executable | None]:
    """What a precision gives, and what computes it; None if nothing does."""
    if (reason := why_not_in(backend, precision)) is not None:
        return PrecisionTrial(precision, refusal=reason), None
    try:
        executable = made(precision)
        return exact.trial(precision, executable), executable
    except UnsupportedError as error:
        reason = str(error)
    except OutOfMemoryError as error:
        reason = f"beside float32's program: {error}"
    return PrecisionTrial(precision, refusal=shorten(reason, 300, placeholder=" ...")), None


def _with_times(trial: PrecisionTrial, times: Mapping[str, Sequence[float]]) -> PrecisionTrial:
    own = times.get(trial.precision)
    if own is None:
        return trial
    return replace(trial, seconds=median(own).value, speed=ratio(times[EXACT], own))


def _choice(trials: Sequence[PrecisionTrial], times: Mapping[str, Sequence[float]]) -> str:
    """The precision of the least error than which none is faster, as far as times can tell."""
    chosen = EXACT
    for trial in sorted(trials, key=lambda each: each.error or 0.0):
        own = times.get(trial.precision)
        if own is not None and ratio(times[chosen], own).low > 1:
            chosen = trial.precision
    return chosen


Call = Sequence[np.ndarray]
"""The inputs of a call, in order."""

_RANDOM_CALLS, _RANDOM_BYTES = 4, 1 << 28
"""So many random inputs are drawn, unless they are larger."""


def _calls_of(examples: Any, interface: Interface) -> list[Call]:
    """The inputs of each call: random ones without examples, else what these give.

    Raises:
        GraphError: they do not fit, or random ones would make no sense.
    """
    if examples is None:
        return _random_calls(interface)
    several = isinstance(examples, list)
    calls: list[Call] = []
    for number, given in enumerate(examples if several else [examples]):
        named = given if isinstance(given, Mapping) else {}
        placed = () if named else given if isinstance(given, tuple) else (given,)
        try:
            arrays = _arrays(interface.ordered(placed, named), interface)
            calls += [_checked(call, interface) for call in _apart(arrays, interface)]
        except GraphError as error:
            what = f"examples[{number}]" if several else "examples"
            raise GraphError(f"{what}: {error}") from None
    if not calls:
        raise GraphError("examples=[]; valid is at least one array, or None for random inputs")
    return calls


def _random_calls(interface: Interface) -> list[Call]:
    for value in interface.inputs:
        if value.dtype not in (*FLOATS, *BYTES):
            raise GraphError(
                f"examples=None with precision={AUTO!r}: input {value.name!r} has dtype "
                f"{value.dtype}, of which random numbers mean nothing; valid are examples such as "
                "the network will see"
            )
    random = np.random.default_rng(0)
    types = [(value.shape, numpy_dtype(value.dtype)) for value in interface.inputs]
    size = sum(value.type.bytes for value in interface.inputs)
    count = max(1, min(_RANDOM_CALLS, _RANDOM_BYTES // max(1, size)))
    return [[random_array(random, *each) for each in types] for _ in range(count)]


def _arrays(given: Sequence[Any], interface: Interface) -> list[np.ndarray]:
    pairs = zip(given, interface.inputs, strict=True)
    return [to_numpy(f"input {value.name!r}", array)[0] for array, value in pairs]


def _apart(arrays: Sequence[np.ndarray], interface: Interface) -> list[Call]:
    """The inputs of several calls, where arrays have several times the rows of one."""
    counts = set()
    for array, value in zip(arrays, interface.inputs, strict=True):
        fits = array.ndim and value.shape and array.shape[1:] == value.shape[1:]
        count, rest = divmod(len(array), value.shape[0]) if fits else (0, 1)
        counts.add(0 if rest else count)
    count = counts.pop() if len(counts) == 1 else 0
    if count < 2:
        return [arrays]
    return list(zip(*(np.split(array, count) for array in arrays), strict=True))


def _checked(call: Call, interface: Interface) -> Call:
    pairs = zip(call, interface.inputs, strict=True)
    return [
        checked(f"input {value.name!r}", array, value.shape, numpy_dtype(value.dtype))
        for array, value in pairs
    ]


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
