"""``precision="auto"``: the fastest of a device's precisions within an error that is allowed.

Every precision computes the same inputs as float32 does, and those whose results are near enough
are timed in turn with it.  A precision that rounds more is taken only where it is faster by more
than what times differ from round to round: for nothing gained, nothing is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import Any

import numpy as np

from minidnn.backends.backend import AUTO, Backend, check_inputs_and_outputs_fit, why_not_in
from minidnn.errors import GraphError, OutOfMemoryError, UnsupportedError
from minidnn.executable import Executable
from minidnn.graph.ir import Graph
from minidnn.graph.types import FLOATS
from minidnn.measure.statistics import median, ratio
from minidnn.passes.infrastructure import Observer
from minidnn.precision.examples import Call, calls_of
from minidnn.precision.measured import relative_errors, results_of, times_of
from minidnn.report.explain import AutomaticPrecision, PrecisionTrial
from minidnn.runtime.interface import interface_of

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


def why_not_automatic(graph: Graph) -> str | None:
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
    if (reason := why_not_automatic(graph)) is not None:
        raise UnsupportedError(f"precision={AUTO!r} for graph {graph.name!r}: {reason}")
    check_inputs_and_outputs_fit(backend, graph)
    allowed = TOLERANCE if tolerance is None else float(tolerance)
    calls = calls_of(examples, interface_of(graph))
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
