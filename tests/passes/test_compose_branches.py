"""compose_branches: operators that branch off one value and meet again become one."""

from __future__ import annotations

import numpy as np

from minidnn.fusion.region import FusedContraction
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.expression import argument, clip, erf
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import apply
from minidnn.passes.absorb import ABSORB
from minidnn.passes.compose import COMPOSE_BRANCHES
from minidnn.passes.infrastructure import Context
from tests.passes.build import Build, conv, graph_of, ops_of, relu, run, scale

X = (2, 3, 5, 7)
HARDSIGMOID = ops.Formula(clip(argument(0) / 6.0 + 0.5, 0.0, 1.0), title="Hardsigmoid")


def after(build: Build, *shapes: tuple[int, ...], context: Context | None = None) -> Graph:
    """The graph after the pass, which changes no bit, NaN and infinities included."""
    before = graph_of(build, *shapes)
    result = run(before, COMPOSE_BRANCHES, context=context)
    random = np.random.default_rng(1)
    given = [random.standard_normal(shape).astype(np.float32) * 40 for shape in shapes]
    for array in given:
        array.flat[:4] = np.nan, np.inf, -np.inf, -0.0
    pairs = zip(evaluate(before, given), evaluate(result, given), strict=True)
    assert all(a.tobytes() == b.tobytes() for a, b in pairs)
    return result


def silu(x: Value) -> Value:
    return apply(ops.Mul(), apply(ops.Sigmoid(), x), x)


def gelu(x: Value) -> Value:
    inner = apply(ops.Formula(erf(argument(0) / 1.4142135), title="Erf"), x)
    outer = apply(ops.Formula(argument(0) + 1.0, title="One"), inner)
    return apply(ops.Formula(argument(0) * 0.5, title="Half"), apply(ops.Mul(), x, outer))


def test_activations_that_are_spelled_out() -> None:
    assert ops_of(after(lambda t, x: silu(x), X)) == ["Sigmoid+Mul"]
    assert ops_of(after(lambda t, x: gelu(x), X)) == ["Erf+One+Mul", "Half"]

    def hardswish(t, x):
        return apply(ops.Mul(), x, apply(HARDSIGMOID, x))

    assert ops_of(after(hardswish, X)) == ["Hardsigmoid+Mul"]


def test_the_nearest_value_is_the_root_and_meetings_nest() -> None:
    assert ops_of(after(lambda t, x: silu(relu(x)), X)) == ["ReLU", "Sigmoid+Mul"]

    def nested(t, x):
        y = silu(x)
        return apply(ops.Add(), y, x)

    assert ops_of(after(nested, X)) == ["Sigmoid+Mul+Add"]


def test_a_contraction_takes_what_was_composed() -> None:
    graph = graph_of(lambda t, x: silu(conv(t, x, 4, 3)), X)
    assert ops_of(run(graph, ABSORB)) == ["Conv2d", "Sigmoid", "Mul"]
    (node,) = run(graph, COMPOSE_BRANCHES, ABSORB).nodes
    assert isinstance(node.op, FusedContraction)
    assert [inner.op.name for inner in node.op.body.nodes] == ["Conv2d", "Sigmoid+Mul"]


def test_what_others_read_stays() -> None:
    def read(t, x):
        gate = apply(ops.Sigmoid(), x)
        return [apply(ops.Mul(), gate, x), relu(gate)]

    assert ops_of(after(read, X)) == ["Sigmoid", "Mul", "ReLU"]

    def result(t, x):
        gate = apply(ops.Sigmoid(), x)
        return [apply(ops.Mul(), gate, x), gate]

    assert ops_of(after(result, X)) == ["Sigmoid", "Mul"]


def test_several_values_vectors_and_other_shapes_stay() -> None:
    def two(t, x, y):
        return apply(ops.Mul(), apply(ops.Sigmoid(), x), y)

    def vectors(t, x):
        return apply(ops.Mul(), scale(t, x), x)

    def wider(t, x):
        return apply(ops.Mul(), apply(ops.Sigmoid(), apply(ops.Reduce("max", (2,), True), x)), x)

    assert ops_of(after(two, X, X)) == ["Sigmoid", "Mul"]
    assert ops_of(after(vectors, X)) == ["ScaleShift", "Mul"]
    assert ops_of(after(wider, X)) == ["Reduce", "Sigmoid", "Mul"]


def test_chains_halves_and_layers_apart_are_left_alone() -> None:
    chain = graph_of(lambda t, x: relu(apply(ops.Sigmoid(), x)), X)
    assert run(chain, COMPOSE_BRANCHES) is chain
    halves = graph_of(lambda t, x: silu(x), X, dtype="float16")
    assert run(halves, COMPOSE_BRANCHES) is halves
    graph = graph_of(lambda t, x: silu(x), X)
    for context in (Context(strategy="contractions"), Context(strategy="layers"), Context(fuel=0)):
        assert run(graph, COMPOSE_BRANCHES, context=context) is graph
