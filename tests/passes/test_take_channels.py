"""take_channels: shuffles, splits and joins of channels become one move."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import apply
from minidnn.passes.channels import TAKE_CHANNELS
from minidnn.passes.infrastructure import Context
from minidnn.passes.simplify import SIMPLIFY
from tests.passes.build import Build, assert_same, graph_of, join, ops_of, relu, run

X = (2, 6, 3, 5)


def after(build: Build, *shapes: tuple[int, ...], context: Context | None = None) -> Graph:
    before = run(graph_of(build, *(shapes or (X,))), SIMPLIFY)
    result = run(before, TAKE_CHANNELS, context=context)
    assert_same(before, result)
    return result


def shuffle(x: Value, groups: int = 2) -> Value:
    n, channels, rows, columns = x.shape
    apart = apply(ops.View((n, groups, channels // groups, rows, columns)), x)
    return apply(ops.View(x.shape), apply(ops.Transpose((0, 2, 1, 3, 4)), apart))


def part(x: Value, first: int, count: int, step: int = 1) -> Value:
    n, _, rows, columns = x.shape
    return apply(ops.Slice((0, first, 0, 0), (n, count, rows, columns), (1, step, 1, 1)), x)


def halves(x: Value) -> tuple[Value, Value]:
    half = x.shape[1] // 2
    return part(x, 0, half), part(x, half, half)


def picks_of(graph: Graph) -> list[tuple[list[str], tuple[tuple[int, int], ...]]]:
    """The operands' names and what is picked of them."""
    return [
        ([value.name for value in node.inputs], node.op.picks)
        for node in graph.nodes
        if isinstance(node.op, ops.TakeChannels)
    ]


def test_units_of_a_shufflenet_pick_what_they_compute_with() -> None:
    """What passes through is not copied, however many units it passes."""

    def build(t, x):
        kept, taken = halves(shuffle(x))
        for _ in range(3):
            kept, taken = halves(shuffle(join(kept, relu(taken))))
        return relu(shuffle(join(kept, taken)))

    found = after(build, (2, 8, 3, 5))
    assert ops_of(found) == ["TakeChannels", "ReLU"] * 4
    assert picks_of(found)[:2] == [
        (["x0"], ((0, 2), (0, 6), (0, 3), (0, 7))),
        (["x0", "relu"], ((0, 1), (1, 2), (0, 5), (1, 3))),
    ]


def test_what_else_is_read_of_a_chain_is_made_there() -> None:
    def build(t, x):
        shuffled = shuffle(x)
        return [relu(shuffled), relu(part(shuffled, 1, 3))]

    assert ops_of(after(build)) == ["TakeChannels", "ReLU", "TakeChannels", "ReLU"]


def test_picks_of_picks_are_picked_at_once_and_those_of_the_same_once() -> None:
    def build(t, x, y):
        first = apply(ops.TakeChannels(((1, 0), (0, 5), (1, 3), (0, 2))), x, y)
        again = apply(ops.TakeChannels(((0, 3), (1, 4), (0, 0))), first, x)
        return relu(shuffle(first)), relu(again), relu(part(again, 0, 2)), relu(shuffle(first))

    found = after(build, X, X)
    assert picks_of(found) == [
        (["x0", "x1"], ((0, 2), (0, 4), (1, 0))),
        (["x1", "x0"], ((0, 0), (0, 3), (1, 5), (1, 2))),
        (["x0"], ((0, 2), (0, 4))),
    ]
    assert picks_of(run(found, TAKE_CHANNELS)) == picks_of(found)


def test_what_picks_of_many_values_reads_their_join() -> None:
    def build(t, x):
        parts = [relu(x) for _ in range(ops.TakeChannels.MOST)]
        most, more = join(*parts), join(*parts, x)
        shuffles = [relu(shuffle(shuffle(value, 6))) for value in (most, more)]
        return [*shuffles, relu(part(more, 7, 2))]

    found = after(build)
    assert ops_of(found).count("Concat") == 1
    assert [len(operands) for operands, _ in picks_of(found)] == [ops.TakeChannels.MOST, 1]
    assert_same(found, run(found, TAKE_CHANNELS))


def test_moves_that_come_to_nothing_go() -> None:
    def build(t, x):
        first, second = halves(relu(x))
        return relu(join(first, second)), relu(shuffle(shuffle(x, 2), 3))

    # A join that is read stays, with operands of its own.
    assert ops_of(after(build)) == ["ReLU", *["TakeChannels"] * 2, "Concat", "ReLU", "ReLU"]


def test_whole_values_are_joined() -> None:
    def build(t, x, y):
        return relu(shuffle(shuffle(join(x, y), 2), 6))

    assert ops_of(after(build, X, X)) == ["Concat", "ReLU"]


def test_joins_that_are_read_stay_and_are_picked_from() -> None:
    def build(t, x):
        both = join(x, relu(x))
        return relu(both), relu(part(both, 4, 4))

    found = after(build)
    assert ops_of(found).count("Concat") == 1
    assert picks_of(found) == [(["concat"], ((0, 4), (0, 5), (0, 6), (0, 7)))]


def test_takes_and_steps_are_picked_and_fills_are_not() -> None:
    def build(t, x):
        taken = apply(ops.Take((None, (5, 0, 0), None, None)), x)
        filled = apply(ops.Take((None, (5, -1), None, None)), x)
        return relu(part(taken, 2, 2, -1)), relu(filled)

    found = after(build)
    assert picks_of(found) == [(["x0"], ((0, 0), (0, 0)))]
    assert "Take" in ops_of(found)


@pytest.mark.parametrize(
    "op",
    [
        ops.Slice((0, 0, 1, 0), (2, 3, 2, 5), (1, 1, 1, 1)),
        ops.Slice((0, 0, 2, 0), (2, 3, 3, 5), (1, 1, -1, 1)),
        ops.Slice((1, 0, 0, 0), (1, 3, 3, 5), (1, 1, 1, 1)),
        ops.Slice((0, 0, 0, 0), (2, 0, 3, 5), (1, 1, 1, 1)),
        ops.Take((None, (1, 2), None, (4, 3, 2, 1, 0))),
        ops.Transpose((0, 2, 1, 3)),
        ops.View((2, 6, 5, 3)),
        ops.Concat(2),
    ],
    ids=str,
)
def test_moves_of_other_axes_are_left_alone(op: ops.Slice) -> None:
    found = after(lambda t, x: relu(apply(op, x, *([x] * isinstance(op, ops.Concat)))))
    assert ops_of(found) == [op.name, "ReLU"]


def test_moves_between_values_of_other_ranks_stay_where_they_are_read() -> None:
    def build(t, x):
        apart = apply(ops.View((2, 2, 3, 3, 5)), x)
        turned = apply(ops.Transpose((0, 2, 1, 3, 4)), apart)
        return relu(turned), relu(apply(ops.View(X), turned))

    assert "TakeChannels" not in ops_of(after(build))


def test_constants_are_joined_first_and_whole_numbers_left_alone() -> None:
    def build(t, x):
        constant = t.constant(object(), "c", x.type, lambda: np.ones(X, np.float32))
        return relu(part(join(x, constant), 4, 4))

    assert ops_of(after(build)) == ["Concat", "TakeChannels", "ReLU"]
    whole = graph_of(lambda t, x: part(x, 1, 2), X, dtype="int64")
    assert ops_of(run(whole, TAKE_CHANNELS)) == ["Slice"]


def test_layer_by_layer_nothing_is_picked_and_fuel_limits_it() -> None:
    def build(t, x):
        kept, taken = halves(shuffle(join(x, relu(x))))
        return relu(kept), relu(taken)

    assert "TakeChannels" not in ops_of(after(build, context=Context(strategy="layers")))
    for fuel in range(8):
        assert ("Slice" in ops_of(after(build, context=Context(fuel=fuel)))) is (fuel < 6)
