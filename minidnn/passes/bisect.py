"""bisect: which rewrite makes a result wrong?

Passes count their rewrites and stop when their fuel is used up, so a graph can be optimized by any
number of rewrites.  Where optimizing a network changes its results, bisection over that number
finds a number of rewrites with right results whose successor has wrong ones: the rewrite between
the two is at fault, or exposes an error of an earlier one.

Every graph is compared with the graph that no pass has touched, computed in float64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from minidnn.errors import GraphError
from minidnn.fusion.region import FusedSequence
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Constant, Graph, Rewriter, Value
from minidnn.memory import Annotations
from minidnn.passes import pipeline
from minidnn.passes.infrastructure import Context, Pass, Rewrite, run_passes

__all__ = ["Bisection", "Trial", "bisect", "deviation", "interpreted", "sensitivity"]

Arrays = Sequence[np.ndarray]

#: The default tolerance: ``ROUNDINGS`` times the deviation that rounding each weight once causes,
#: and at least ``LEAST_TOLERANCE``.
ROUNDINGS = 4
LEAST_TOLERANCE = 1e-6

#: Computes the outputs of an optimized graph; the context is the one it was optimized in.
Run = Callable[[Graph, Context, Arrays], Arrays]


@dataclass(frozen=True)
class Trial:
    """The result of a run after a limited number of rewrites.

    Attributes:
        fuel: how many rewrites were made.
        deviation: see :func:`deviation`; infinite if ``error`` says what failed.
        error: the text of the exception that a pass or the run raised, or "".
    """

    fuel: int
    deviation: float
    error: str = ""

    def __str__(self) -> str:
        return f"fails: {self.error}" if self.error else f"deviates by {self.deviation:.3g}"


@dataclass(frozen=True)
class Bisection:
    """What bisecting found.

    Attributes:
        tolerance: the largest deviation that counts as right.
        rewrites: all rewrites that the passes make without a limit.
        trials: all trials, in the order in which they were made.
        culprit: the rewrite that makes the result wrong, or None.
        before, after: the trials without and with it.  Without a culprit, ``before`` is the trial
            with no rewrite at all and ``after`` that with all of them; both are right, or both
            are wrong: then the fault lies in what runs the graph, not in a rewrite.
    """

    tolerance: float
    rewrites: tuple[Rewrite, ...]
    trials: tuple[Trial, ...]
    culprit: Rewrite | None
    before: Trial
    after: Trial

    @property
    def right(self) -> bool:
        """Whether all rewrites together change no result beyond the tolerance."""
        return self.culprit is None and self.after.deviation <= self.tolerance

    def __str__(self) -> str:
        count = len(self.rewrites)
        limit = f"the tolerance is {self.tolerance:.3g}"
        if self.culprit is not None:
            return (
                f"rewrite {self.culprit}\n"
                f"  without it ({self.before.fuel} of {count} rewrites) the result {self.before}\n"
                f"  with it ({self.after.fuel} of {count} rewrites) the result {self.after}\n"
                f"  {limit}; {len(self.trials)} trials"
            )
        if self.right:
            return f"after all {count} rewrites the result {self.after}; {limit}"
        return (
            f"with no rewrite at all the result {self.before}; {limit}: the fault is in what runs "
            "the graph, or the tolerance is too small for its precision"
        )


def bisect(
    graph: Graph,
    inputs: Arrays,
    tolerance: float | None = None,
    *,
    passes: Sequence[Pass] | None = None,
    context: Context | None = None,
    run: Run | None = None,
    observe: Callable[[Trial], None] | None = None,
) -> Bisection:
    """Finds a rewrite that changes a result beyond a tolerance.

    If wrong results stay wrong when more rewrites are made, it is the first such rewrite.

    Args:
        graph: the graph before all passes.
        inputs: one array per input of the graph.
        tolerance: the largest :func:`deviation` that counts as right.  Folding normalizations
            rounds new weights to float32, which deep networks amplify; so by default it is
            ROUNDINGS times the :func:`sensitivity` of the graph, at least LEAST_TOLERANCE.
        passes: the pipeline by default.
        context: its target and strategy are used; by default those of ``Context()``.
        run: how an optimized graph is computed; :func:`interpreted` by default.
        observe: called with each trial.

    Raises:
        GraphError: the tolerance is no positive number, or the passes make other rewrites when
            their fuel is limited, so that none can be blamed.
        Exception: what computing the graph before all passes raises.  What a pass or ``run``
            raises is a result, though: the rewrite that leads to it is found.
    """
    if tolerance is not None and not 0 < tolerance < np.inf:
        raise GraphError(f"tolerance={tolerance!r}; valid is a number above 0")
    check(graph)
    base_context = context or Context()
    expected = evaluate(graph, inputs, "float64")
    if tolerance is None:
        tolerance = max(LEAST_TOLERANCE, ROUNDINGS * sensitivity(graph, inputs, expected))
    search = _Search(
        graph,
        inputs,
        expected,
        pipeline.PIPELINE if passes is None else passes,
        base_context,
        run or interpreted,
        observe or (lambda trial: None),
    )
    # Fuel is a number even here: with None, contracts are checked, which hold after all rewrites
    # only and say nothing of results.
    after, rewrites = search.trial(sys.maxsize)
    before, _ = search.trial(0)
    common = (tolerance, rewrites)
    if before.deviation > tolerance or after.deviation <= tolerance:
        return Bisection(*common, tuple(search.trials), None, before, after)
    while after.fuel - before.fuel > 1:
        middle, middle_rewrites = search.trial((before.fuel + after.fuel) // 2)
        if middle_rewrites != rewrites[: len(middle_rewrites)]:
            raise GraphError(_other_rewrites(middle_rewrites, rewrites))
        if middle.deviation <= tolerance:
            before = middle
        else:
            after = middle
    return Bisection(*common, tuple(search.trials), rewrites[after.fuel - 1], before, after)


@dataclass
class _Search:
    """Runs trials of one graph, and keeps them."""

    graph: Graph
    inputs: Arrays
    expected: Arrays
    passes: Sequence[Pass]
    context: Context
    run: Run
    observe: Callable[[Trial], None]

    def __post_init__(self) -> None:
        self.trials: list[Trial] = []

    def trial(self, fuel: int) -> tuple[Trial, tuple[Rewrite, ...]]:
        """Makes at most ``fuel`` rewrites, runs the graph and compares its outputs; returns the
        rewrites, too."""
        annotations = Annotations()
        context = replace(self.context, fuel=fuel, rewrites=[], notes={}, annotations=annotations)
        error, difference = "", np.inf
        try:
            optimized = run_passes(self.graph, self.passes, context, verify=True)
            difference = deviation(self.run(optimized, context, self.inputs), self.expected)
        except Exception as problem:  # whatever it is, a rewrite led to it
            error = f"{type(problem).__name__}: {problem}"
        trial = Trial(len(context.rewrites), difference, error)
        self.trials.append(trial)
        self.observe(trial)
        return trial, tuple(context.rewrites)


def _other_rewrites(made: Sequence[Rewrite], rewrites: Sequence[Rewrite]) -> str:
    pairs = zip(made, rewrites, strict=False)
    one, other = next(((a, b) for a, b in pairs if a != b), (made[-1], None))
    return (
        f"with fuel for {len(made)} rewrites the passes make '{one}', without a limit "
        f"'{other}': pass {one.pass_name} does not make the same rewrites in the same order"
    )


def interpreted(graph: Graph, context: Context, inputs: Arrays) -> Arrays:
    """The outputs of an optimized graph in float64; sequences are interpreted patch by patch, as
    their kernel plans say."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if not isinstance(node.op, FusedSequence):
            rewriter.keep(node)
            continue
        op = _Interpreted(node.op.body, node.op.schedule)
        new = rewriter.add(op, [rewriter.value(v) for v in node.inputs], node.name, node.source)
        for old, value in zip(node.outputs, new.outputs, strict=True):
            rewriter.replace(old, value)
    return evaluate(rewriter.finish(), inputs, "float64")


class _Interpreted(FusedSequence):
    """A sequence whose reference is the interpreter of its kernel plan."""

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return self.interpret(*inputs)


def sensitivity(graph: Graph, inputs: Arrays, expected: Arrays | None = None) -> float:
    """The :func:`deviation` in float64 when every weight is replaced by the next float32 number
    above or below it; 0 if outputs become finite or stop being so.

    ``expected`` are the outputs of the graph in float64, if the caller has them.
    """
    random = np.random.default_rng(0)
    moved: dict[Value, Value] = {}
    rewriter = Rewriter(graph)

    def move(value: Value) -> Value:
        if not isinstance(value, Constant) or value.dtype != "float32":
            return rewriter.value(value)
        if value not in moved:
            data = value.data
            direction = np.where(random.random(data.shape) < 0.5, -np.inf, np.inf)
            neighbours = np.where(
                np.isfinite(data), np.nextafter(data, direction.astype(data.dtype)), data
            )
            moved[value] = Constant(value.type, value.name, neighbours)
        return moved[value]

    for node in graph.nodes:
        new = rewriter.add(node.op, [move(v) for v in node.inputs], node.name, node.source)
        for old, value in zip(node.outputs, new.outputs, strict=True):
            rewriter.replace(old, value)
    if expected is None:
        expected = evaluate(graph, inputs, "float64")
    difference = deviation(evaluate(rewriter.finish(), inputs, "float64"), expected)
    return difference if np.isfinite(difference) else 0.0


def deviation(results: Arrays, expected: Arrays) -> float:
    """The largest absolute difference of any output, relative to that output's largest finite
    value.

    It is infinite if a value that is not finite differs; it is absolute for an output whose finite
    values are all zero.
    """
    worst = 0.0
    for result, wanted in zip(results, expected, strict=True):
        if np.shape(result) != np.shape(wanted):
            return np.inf
        actual = np.asarray(result, np.float64).ravel()
        reference = np.asarray(wanted, np.float64).ravel()
        finite = np.isfinite(reference)
        if not np.array_equal(actual[~finite], reference[~finite], equal_nan=True):
            return np.inf
        actual, reference = actual[finite], reference[finite]
        if not np.isfinite(actual).all():
            return np.inf
        if reference.size:
            scale = float(np.abs(reference).max()) or 1.0
            worst = max(worst, float(np.abs(actual - reference).max()) / scale)
    return worst
