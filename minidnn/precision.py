"""``precision="auto"``: the fastest of a device's precisions within an allowed error.

The network is compiled in every precision, and run on the same inputs as in float32.  Precisions
within the tolerance are timed, interleaved with float32.  A precision that rounds more is chosen
only where it is faster by more than times vary from round to round.
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
from minidnn.executable import Executable, results_of
from minidnn.graph.ir import Graph
from minidnn.graph.types import FLOATS, INT8_DTYPES, numpy_dtype
from minidnn.measure import interleaved, median, ratio
from minidnn.passes.infrastructure import Observer
from minidnn.report.explain import AutomaticPrecision, PrecisionTrial
from minidnn.runtime.arrays import checked, random_array, to_numpy
from minidnn.runtime.interface import Interface, interface_of
from minidnn.runtime.program import ClockedProgram, DeviceProgram

TOLERANCE = 0.01
"""The default of the allowed relative error."""

EXACT = "float32"
"""The precision that results are compared with."""
_NOT_FASTER = (EXACT, "float64")

Compiled = Callable[[str, Observer | None], Executable]
"""Compiles the graph in a precision, with an observer of its passes or None."""


def check_asked(precision: str | None, tolerance: Any, examples: Any) -> None:
    """GraphError for an invalid tolerance, or for arguments that only "auto" takes."""
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
    """Compiles a graph in the fastest precision within ``tolerance``; the executable's attribute
    ``automatic_precision`` has the errors and times of all.

    Args:
        graph: the graph to compile.
        backend: the device's backend.
        compiled: compiles in a precision, with an observer of its passes.
        tolerance: the allowed relative error; None for :data:`TOLERANCE`.
        examples: inputs as :func:`minidnn.compile` takes them.
        observe: called with the passes of the chosen precision, afterwards.

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
    """The results in float32 on all calls, with which other precisions are compared."""

    def __init__(self, executable: Executable, calls: Sequence[Call], is_random: bool) -> None:
        self.calls = calls
        count = f"{len(calls)} batch{'es' * (len(calls) > 1)}"
        self.inputs = f"{count} of {'random inputs' if is_random else 'examples'}"
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
        """The error of another precision, at the output where it is largest."""
        found = [results_of(executable, call) for call in self.calls]
        errors = relative_errors(self._results, found)
        worst = max(range(len(errors)), key=errors.__getitem__)
        name = self._names[worst] if len(errors) > 1 else ""
        return PrecisionTrial(precision, errors[worst], name)


def _tried(
    precision: str, backend: Backend, made: Callable[[str], Executable], exact: _Exact
) -> tuple[PrecisionTrial, Executable | None]:
    """The trial of a precision, and its executable; None if it cannot be compiled."""
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
    """The trial with its median time and its speed against float32, if it was timed."""
    own = times.get(trial.precision)
    if own is None:
        return trial
    return replace(trial, seconds=median(own).value, speed=ratio(times[EXACT], own))


def _choice(trials: Sequence[PrecisionTrial], times: Mapping[str, Sequence[float]]) -> str:
    """The fastest precision: in the order of errors, one that is faster than the best before it, by
    the lower end of the interval of their ratio."""
    chosen = EXACT
    for trial in sorted(trials, key=lambda each: each.error or 0.0):
        own = times.get(trial.precision)
        if own is not None and ratio(times[chosen], own).low > 1:
            chosen = trial.precision
    return chosen


Call = Sequence[np.ndarray]
"""The inputs of a call, in order."""

_RANDOM_CALLS, _RANDOM_BYTES = 4, 1 << 28
"""The number of random calls, and the bytes of inputs above which there are fewer."""


def _calls_of(examples: Any, interface: Interface) -> list[Call]:
    """The inputs of each call: those of the examples, or random ones without examples.

    Raises:
        GraphError: they do not fit, or random ones would make no sense.
    """
    if examples is None:
        return _random_calls(interface)
    several = isinstance(examples, list)
    calls: list[Call] = []
    for number, given in enumerate(examples if several else [examples]):
        named = given if isinstance(given, Mapping) else {}
        positional = () if named else given if isinstance(given, tuple) else (given,)
        try:
            arrays = _arrays(interface.ordered(positional, named), interface)
            calls += [_checked(call, interface) for call in _apart(arrays, interface)]
        except GraphError as error:
            what = f"examples[{number}]" if several else "examples"
            raise GraphError(f"{what}: {error}") from None
    if not calls:
        raise GraphError("examples=[]; valid is at least one array, or None for random inputs")
    return calls


def _random_calls(interface: Interface) -> list[Call]:
    """Random inputs of several calls, always the same."""
    for value in interface.inputs:
        if value.dtype not in (*FLOATS, *INT8_DTYPES):
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
    """Splits arrays with a multiple of the network's batch into the inputs of several calls."""
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
"""The seconds that timing takes in all, and for each precision in a round, if calls are shorter."""
_ROUNDS, _MOST_CALLS = (5, 25), 1000

Clock = Callable[[int], float]
"""Returns the seconds of one call, averaged over so many in a row."""


def relative_errors(
    exact: Sequence[Sequence[np.ndarray]], found: Sequence[Sequence[np.ndarray]]
) -> list[float]:
    """The error of each output: the Euclidean norm of the differences over all calls, relative to
    that of the exact results; infinite where results are not finite."""
    count = len(exact[0])
    squared_errors, squared_norms = np.zeros(count), np.zeros(count)
    for exact_results, found_results in zip(exact, found, strict=True):
        for place, (expected, actual) in enumerate(zip(exact_results, found_results, strict=True)):
            values = expected.astype(np.float64)
            squared_norms[place] += np.vdot(values, values)
            with np.errstate(all="ignore"):  # what is not finite stays so
                values -= actual
                squared_errors[place] += np.vdot(values, values)
    pairs = zip(squared_errors.tolist(), squared_norms.tolist(), strict=True)
    return [_share(expected, actual) for expected, actual in pairs]


def _share(apart: float, whole: float) -> float:
    if not apart:
        return 0.0
    return math.sqrt(apart / whole) if whole and math.isfinite(apart) else math.inf


def times_of(executables: Mapping[str, Executable], call: Call) -> dict[str, list[float]]:
    """The seconds of a call of each executable, round by round, interleaved."""
    clocks = {name: _clock(each, call) for name, each in executables.items()}
    takes: dict[str, Callable[[], float]] = {}
    seconds = 0.0
    for name, clock in clocks.items():
        clock(1)  # a warm-up: code is loaded and memory allocated on first use
        once = min(clock(1), clock(1))
        calls = min(_MOST_CALLS, max(1, math.ceil(_ROUND_SECONDS / max(once, 1e-9))))
        takes[name] = partial(clock, calls)
        seconds += calls * once
    least, most = _ROUNDS
    return interleaved(takes, min(most, max(least, int(_SECONDS / seconds))))


def _clock(executable: Executable, call: Call) -> Clock:
    """Makes the clock of an executable: the program's own, if it has one, or wall time."""
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
