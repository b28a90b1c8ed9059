"""Bisecting finds the rewrite that was made wrong on purpose, and says so when there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError
from minidnn.fusion.region import FusedSequence
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, Node, Rewriter
from minidnn.graph.operators import BatchNorm, MaxPool2d, ReLU
from minidnn.layers.build import to_graph
from minidnn.layers.calibration import calibrate
from minidnn.passes.bisect import (
    ROUNDINGS,
    Bisection,
    Trial,
    bisect,
    deviation,
    interpreted,
    sensitivity,
)
from minidnn.passes.infrastructure import Context, Pass, run_passes
from minidnn.passes.pipeline import PIPELINE, optimize
from tests.sampling import every

BLOCKS = 6


@pytest.fixture(scope="module")
def case() -> tuple[Graph, list[np.ndarray]]:
    """Six blocks of everything that passes rewrite, with normalizations that do something."""
    blocks = [
        L.Sequential(L.Conv2d(4, 4, 3, padding=1), L.BatchNorm2d(4), L.ReLU(), L.MaxPool2d(2, 1))
        for _ in range(BLOCKS)
    ]
    net = md.Sequential(*blocks, L.BatchNorm2d(4), L.Dropout(), L.AvgPool2d(2))
    x = np.random.default_rng(0).standard_normal((2, 4, 12, 11), np.float32)
    return to_graph(calibrate(net.initialize(1), x), x.shape), [x]


def rewriting(
    kind: type, wrong: int, make: Callable[[Rewriter, Node], None], name: str = "wrong"
) -> Pass:
    """A pass that may rewrite every node of a kind, and does it wrongly to one of them."""

    def run(graph: Graph, context: Context) -> Graph:
        rewriter = Rewriter(graph)
        seen = 0
        for node in graph.nodes:
            found = isinstance(node.op, kind)
            allowed = found and context.allow(f"touch {node.name}")
            if allowed and seen == wrong:
                make(rewriter, node)
            else:
                rewriter.keep(node)
            seen += found
        return rewriter.finish()

    return Pass(name, run)


def other_eps(rewriter: Rewriter, node: Node) -> None:
    assert isinstance(node.op, BatchNorm)
    inputs = [rewriter.value(value) for value in node.inputs]
    new = rewriter.add(replace(node.op, eps=node.op.eps + 0.1), inputs, node.name)
    rewriter.replace(node.output, new.output)


def deviations(
    graph: Graph, inputs: Sequence[np.ndarray], passes: Sequence[Pass]
) -> tuple[list[float], Context]:
    """The oracle: how far off every number of rewrites is, one after another."""
    (wanted,) = evaluate(graph, inputs, "float64")
    found: list[float] = []
    while True:
        context = Context(fuel=len(found))
        (result,) = evaluate(run_passes(graph, passes, context), inputs, "float64")
        found.append(float(np.abs(result - wanted).max() / np.abs(wanted).max()))
        if len(context.rewrites) < len(found) - 1:
            return found[:-1], context


@pytest.mark.sampled(3)
@pytest.mark.parametrize("wrong", every(3, range(BLOCKS + 1)))
def test_the_rewrite_with_a_wrong_eps_is_found(
    case: tuple[Graph, list[np.ndarray]], wrong: int
) -> None:
    graph, inputs = case
    passes = (PIPELINE[0], rewriting(BatchNorm, wrong, other_eps), *PIPELINE[1:])
    found = bisect(graph, inputs, passes=passes)
    expected, context = deviations(graph, inputs, passes)
    first = next(k for k, off in enumerate(expected) if off > found.tolerance)
    assert found.culprit == context.rewrites[first - 1]
    norm = [node.name for node in graph.nodes if isinstance(node.op, BatchNorm)][wrong]
    assert (found.culprit.pass_name, found.culprit.description) == ("wrong", f"touch {norm}")
    assert (found.before.fuel, found.after.fuel) == (first - 1, first)
    assert found.before.deviation == pytest.approx(expected[first - 1], abs=1e-12)
    assert found.after.deviation == pytest.approx(expected[first], rel=1e-9)
    assert not found.right and list(found.rewrites) == context.rewrites
    assert len(found.trials) <= 2 + np.ceil(np.log2(len(found.rewrites)))


def test_right_passes_are_acquitted(case: tuple[Graph, list[np.ndarray]]) -> None:
    found = bisect(*case)
    assert found.right and found.culprit is None
    assert 0 < found.after.deviation < 1e-6 and found.before.deviation == 0
    assert [trial.fuel for trial in found.trials] == [len(found.rewrites), 0]
    assert len(found.rewrites) > 15
    assert str(found).startswith(f"after all {len(found.rewrites)} rewrites the result deviates by")


def test_the_default_tolerance_follows_the_network(case: tuple[Graph, list[np.ndarray]]) -> None:
    """A network that amplifies rounding by a thousand gets a thousand times the tolerance."""
    graph, inputs = case
    usual = sensitivity(graph, inputs)
    assert 1e-8 < usual < 1e-5
    assert bisect(graph, inputs).tolerance == pytest.approx(max(1e-6, ROUNDINGS * usual))

    weight = np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32)
    steep = md.Sequential(L.Conv2d(4, 8, 1, bias=False), L.Conv2d(8, 4, 1, bias=False))
    first = np.concatenate([weight, weight * np.float32(1.0001)])
    eye = np.eye(4, dtype=np.float32)[:, :, None, None]
    steep.load_state_dict({"0.weight": first, "1.weight": np.concatenate([eye, -eye], axis=1)})
    ill = to_graph(steep, inputs[0].shape)
    assert sensitivity(ill, inputs) > 1e-4  # the difference of nearly equal numbers
    assert bisect(ill, inputs).right


def test_sensitivity_leaves_what_is_not_finite() -> None:
    net = md.Sequential(L.Conv2d(1, 1, 1))
    net.load_state_dict({"0.weight": np.full((1, 1, 1, 1), np.inf), "0.bias": np.zeros(1)})
    x = np.ones((1, 1, 2, 2), np.float32)
    assert sensitivity(to_graph(net, x.shape), [x]) == 0.0


def test_an_untouched_graph_is_right(case: tuple[Graph, list[np.ndarray]]) -> None:
    found = bisect(*case, passes=())
    assert (found.right, found.rewrites, found.after.deviation) == (True, (), 0.0)


def test_the_fault_can_be_a_kernel_plan(
    case: tuple[Graph, list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences are interpreted, so that a plan that does not compute what it should shows."""
    graph, inputs = case
    pooling = [node.name for node in graph.nodes if isinstance(node.op, MaxPool2d)][3]
    usual = FusedSequence.interpret

    def interpret(self: FusedSequence, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        off = 0.5 if any(node.source == pooling for node in self.body.nodes) else 0.0
        return tuple(result + off for result in usual(self, *inputs))

    monkeypatch.setattr(FusedSequence, "interpret", interpret)
    found = bisect(graph, inputs)
    assert found.culprit is not None and found.culprit.pass_name == "depth_first"
    assert pooling in found.culprit.description


def fails(rewriter: Rewriter, node: Node) -> None:
    raise ZeroDivisionError("nothing to divide by")


def cuts_off(rewriter: Rewriter, node: Node) -> None:
    """Leaves the node out, so that its readers read what nothing makes."""


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (fails, "fails: ZeroDivisionError: nothing to divide by"),
        (cuts_off, "fails: GraphError: pass wrong: "),
    ],
)
def test_rewrites_that_break_are_found(
    case: tuple[Graph, list[np.ndarray]],
    make: Callable[[Rewriter, Node], None],
    text: str,
) -> None:
    graph, inputs = case
    passes = (PIPELINE[0], rewriting(ReLU, 2, make), *PIPELINE[1:])
    found = bisect(graph, inputs, passes=passes)
    relu = [node.name for node in graph.nodes if isinstance(node.op, ReLU)][2]
    assert found.culprit is not None and found.culprit.description == f"touch {relu}"
    assert found.after.deviation == np.inf and text in str(found.after)
    assert found.before.error == ""
    assert f"rewrite {found.culprit}\n  without it" in str(found)
    assert f"  with it ({found.after.fuel} of {len(found.rewrites)} rewrites) the" in str(found)


def test_what_runs_the_graph_can_be_at_fault(case: tuple[Graph, list[np.ndarray]]) -> None:
    def run(graph: Graph, context: Context, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return [y + 1 for y in evaluate(graph, inputs)]

    found = bisect(*case, run=run)
    assert not found.right and found.culprit is None
    assert str(found).startswith("with no rewrite at all the result deviates by ")
    assert "the fault is in what runs the graph, or the tolerance is too small" in str(found)


def test_the_context_is_taken_over(case: tuple[Graph, list[np.ndarray]]) -> None:
    given = Context(strategy="layers", fuel=3)
    found = bisect(*case, context=given)
    context = Context(strategy="layers")
    optimize(case[0], context)
    assert found.rewrites == tuple(context.rewrites) != bisect(*case).rewrites
    assert given.rewrites == [] and given.fuel == 3


def test_passes_that_change_their_mind_are_told(case: tuple[Graph, list[np.ndarray]]) -> None:
    def moody(graph: Graph, context: Context) -> Graph:
        count = context.fuel or 0
        for i in range(8):
            context.allow(f"step {i} of mood {min(count, 9)}")
        return graph

    def off(graph: Graph, context: Context, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return [y * (1 + len(context.rewrites)) for y in evaluate(graph, inputs, "float64")]

    with pytest.raises(GraphError) as caught:
        bisect(*case, passes=(Pass("moody", moody),), run=off)
    assert str(caught.value) == (
        "with fuel for 4 rewrites the passes make '#1 moody: step 0 of mood 4', without a limit "
        "'#1 moody: step 0 of mood 9': pass moody does not make the same rewrites in the same order"
    )


def test_every_fuel_makes_the_first_of_all_rewrites(case: tuple[Graph, list[np.ndarray]]) -> None:
    """What bisecting relies on."""
    full = Context()
    optimize(case[0], full)
    for fuel in range(len(full.rewrites) + 2):
        context = Context(fuel=fuel)
        optimize(case[0], context)
        assert context.rewrites == full.rewrites[:fuel]


def test_trials_are_observed_in_order(case: tuple[Graph, list[np.ndarray]]) -> None:
    seen: list[Trial] = []
    passes = (rewriting(BatchNorm, 3, other_eps),)
    found: Bisection = bisect(*case, passes=passes, observe=seen.append)
    assert tuple(seen) == found.trials and len(seen) > 2


@pytest.mark.parametrize("tolerance", [0, -1.0, float("nan"), float("inf")])
def test_a_tolerance_is_a_number_above_0(
    case: tuple[Graph, list[np.ndarray]], tolerance: float
) -> None:
    with pytest.raises(GraphError, match=rf"tolerance={tolerance!r}; valid is a number above 0"):
        bisect(*case, tolerance)


def test_interpreted_is_what_evaluate_gives(case: tuple[Graph, list[np.ndarray]]) -> None:
    context = Context()
    graph = optimize(case[0], context)
    assert any(isinstance(node.op, FusedSequence) for node in graph.nodes)
    (one,) = interpreted(graph, context, case[1])
    (other,) = evaluate(graph, case[1], "float64")
    assert one.dtype == np.float64
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("result", "expected", "wanted"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([1e-3, 0.0], [0.0, 0.0], 1e-3),
        ([np.nan, 2.0], [np.nan, 4.0], 0.5),
        ([np.inf, -np.inf], [np.inf, -np.inf], 0.0),
        ([np.inf], [-np.inf], np.inf),
        ([np.nan], [np.inf], np.inf),
        ([1.0], [np.nan], np.inf),
        ([np.inf, 1.0], [2.0, 1.0], np.inf),
        ([1.0, 1.0], [1.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_deviation(result: list[float], expected: list[float], wanted: float) -> None:
    assert deviation([np.array(result)], [np.array(expected)]) == wanted


def test_deviation_is_that_of_the_worst_output() -> None:
    one, two = np.array([100.0]), np.array([1.0])
    assert deviation([one + 1, two + 0.5], [one, two]) == 0.5
