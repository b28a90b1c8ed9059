"""depth_first: stacks become sequences."""

from __future__ import annotations

from functools import partial

import pytest

from minidnn.errors import GraphError
from minidnn.fusion.collapse import STRATEGIES, Strategy
from minidnn.fusion.region import FusedSequence
from minidnn.fusion.sequence import Schedule
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply
from minidnn.passes.depth_first import DEPTH_FIRST, no_loose_fusable_nodes
from minidnn.passes.fuse import contract
from minidnn.passes.infrastructure import Context, Pass, run_passes
from minidnn.passes.pipeline import optimize
from tests.passes.build import (
    assert_same,
    conv,
    expect,
    graph_of,
    join,
    max_pool,
    ops_of,
    relu,
    run,
    scale,
)

X = (2, 4, 6, 6)


def add(a, b):
    return apply(ops.Add(), a, b)


def bodies(graph: Graph) -> list[list[str]]:
    return [ops_of(n.op.body) for n in graph.nodes if isinstance(n.op, FusedSequence)]


def check(build, *shapes, strategy="model") -> Graph:
    before = graph_of(build, *shapes)
    after = run(before, DEPTH_FIRST, context=Context(strategy=strategy))
    assert_same(before, after)
    return after


def test_a_stack_with_a_value_that_is_read_outside() -> None:
    def build(t, x):
        s = scale(t, max_pool(x))
        return conv(t, s, 4), add(relu(s), x)

    expect(
        check(build, X),
        """
        g(%x0: float32[2, 4, 6, 6]) {
          %add:0: float32[2, 4, 6, 6], %add:1: float32[2, 4, 6, 6] = FusedSequence(schedule=6x6)(%x0)
            add(%x0: float32[2, 4, 6, 6]) {
              %maxpool2d: float32[2, 4, 6, 6] = MaxPool2d(kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))(%x0)
              %scaleshift: float32[2, 4, 6, 6] = ScaleShift()(%maxpool2d, @s1.a, @s1.b)
              %relu: float32[2, 4, 6, 6] = ReLU()(%scaleshift)
              %add: float32[2, 4, 6, 6] = Add()(%relu, %x0)
              return %scaleshift, %add
            }
          %conv2d: float32[2, 4, 6, 6] = Conv2d()(%add:0, @w2)
          return %conv2d, %add:1
        }
        """,  # noqa: E501
    )


def test_a_diamond_around_a_convolution_is_no_stack() -> None:
    """relu -> conv -> add and relu -> add: one stack of both ends would wait for itself."""

    def build(t, x):
        a = relu(x)
        return add(apply(ops.Tanh(), a), conv(t, a, 4))

    assert bodies(check(build, X)) == [["ReLU"], ["Tanh", "Add"]]


def test_two_stacks_that_would_wait_for_each_other() -> None:
    """Each is convex by itself, but contracting both would make a cycle.

    a1 -> b2 and b1 -> a2, with a = (a1, a2) and b = (b1, b2): a before b and b before a.
    """

    def build(t, x):
        a1, b1 = relu(x), apply(ops.Tanh(), x)
        a2 = add(a1, conv(t, b1, 4))
        return a2, add(b1, conv(t, a1, 4))

    after = check(build, X)
    assert sorted(map(len, bodies(after))) == [1, 1, 2]


def test_diamonds_inside_of_a_stack() -> None:
    def build(t, x):
        a = relu(x)
        return add(max_pool(a), max_pool(scale(t, a), 5, 1, 2))

    after = check(build, X, strategy="unrestricted")
    assert bodies(after) == [["ReLU", "MaxPool2d", "ScaleShift", "MaxPool2d", "Add"]]


def test_a_broadcast_ends_a_stack() -> None:
    """Its operand is needed whole before the first patch."""

    def build(t, x, y):
        return apply(ops.Mul(), x, apply(ops.Sigmoid(), y))

    after = check(build, X, (2, 4, 1, 1))
    assert bodies(after) == [["Sigmoid"], ["Mul"]]


def test_a_broadcast_of_an_input_is_read_where_it_lies() -> None:
    def build(t, x, y, z):
        return apply(ops.Mul(), add(max_pool(x), y), relu(apply(ops.Sub(), x, z)))

    assert len(bodies(check(build, X, (1, 4, 1, 1), (2, 1, 6, 1)))) == 1


def test_other_dtypes_and_batches_do_not_mix() -> None:
    def build(t, x, y):
        return max_pool(add(x, relu(y)))

    assert bodies(check(build, X, (1, 4, 6, 6))) == [["ReLU"], ["Add", "MaxPool2d"]]


def test_joins_inside_stacks() -> None:
    def build(t, x, y):
        return max_pool(relu(join(relu(x), scale(t, y))))

    assert bodies(check(build, X, (2, 3, 6, 6))) == [
        ["ReLU", "ScaleShift", "Concat", "ReLU", "MaxPool2d"]
    ]


def test_joins_that_something_outside_reads_are_left_to_placement() -> None:
    def build(t, x):
        j = join(relu(x), scale(t, x))
        return conv(t, j, 4), max_pool(j)

    assert bodies(check(build, X)) == [["ReLU"], ["ScaleShift"], ["MaxPool2d"]]


def test_channels_that_would_lie_in_two_places() -> None:
    """concat(a, b) + concat(b, a): on one axis of channels a lies at 0 and at 4.

    Neither join can be in a stack with all that it is made of and with the sum; both stay joins.
    """

    def build(t, x):
        a, b = relu(x), scale(t, x)
        return add(join(a, b), join(b, a))

    after = check(build, X)
    assert ops_of(after) == ["FusedSequence", "FusedSequence", "Concat", "Concat", "FusedSequence"]


def test_max_windows_are_separated_where_that_is_cheaper() -> None:
    def build(t, x):
        for _ in range(4):
            x = max_pool(x, 9, 1, 4)
        return x

    shape = (16, 64, 56, 56)
    graph = graph_of(build, shape)
    context = Context()
    after = run(graph, DEPTH_FIRST, context=context)
    assert [str(node.op) for node in bodies_of(after)[0][:2]] == [
        "MaxPool2d(kernel_size=(1, 9), stride=(1, 1), padding=(0, 4))",
        "MaxPool2d(kernel_size=(9, 1), stride=(1, 1), padding=(4, 0))",
    ]
    assert context.rewrites[0].description == "separate maxpool2d into columns and rows"
    for strategy in ("one", "five", "unrestricted", "layers"):
        plain = run(graph, DEPTH_FIRST, context=Context(strategy=strategy))
        kernels = {n.op.kernel_size for b in bodies_of(plain) for n in b if hasattr(n.op, "window")}
        assert kernels == {(9, 9)}, "the paper knows no separation"


def bodies_of(graph: Graph):
    return [n.op.body.nodes for n in graph.nodes if isinstance(n.op, FusedSequence)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_leaves_no_fusable_node_alone(strategy: str) -> None:
    def build(t, x):
        y = x
        for _ in range(7):
            y = relu(scale(t, max_pool(y)))
        return apply(ops.Softmax(1), add(y, x))

    after = check(build, X, strategy=strategy)
    assert list(no_loose_fusable_nodes(after)) == []
    count = {"one": 7, "five": 2, "unrestricted": 1, "model": len(bodies(after))}
    assert len(bodies(after)) == count.get(strategy, 22)


def test_fuel_takes_stack_after_stack() -> None:
    def build(t, x):
        return relu(conv(t, relu(conv(t, relu(x), 4)), 4))

    before = graph_of(build, X)
    for fuel in range(5):
        context = Context(fuel=fuel)
        after = run(before, DEPTH_FIRST, context=context)
        assert ops_of(after).count("FusedSequence") == len(context.rewrites) == min(fuel, 3)
        assert_same(before, after)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_dead_nodes_that_no_fuel_was_left_to_drop(strategy: Strategy) -> None:
    """Regions are made of them, too: their results are read by nobody, and computed."""

    def build(t, x):
        relu(scale(t, max_pool(relu(conv(t, x, 4)))))
        return max_pool(relu(x))

    before = graph_of(build, X)
    for fuel in range(12):
        after = run(before, DEPTH_FIRST, context=Context(strategy=strategy, fuel=fuel))
        assert_same(before, after)
        assert_same(before, optimize(before, Context(strategy=strategy, fuel=fuel)))


def test_groups_that_wait_for_each_other_are_named() -> None:
    graph = graph_of(lambda t, x: relu(relu(relu(x))), X)
    first, _, last = graph.nodes
    with pytest.raises(AssertionError, match=r"^groups that end with relu\.2, relu\.1 wait for"):
        contract(graph, [((first, last), partial(FusedSequence, schedule=Schedule(1, 1)))])


def test_the_contract() -> None:
    graph = graph_of(lambda t, x: relu(x), X)
    assert list(no_loose_fusable_nodes(graph)) == ["node 'relu' (ReLU()) is in no region"]
    lazy = Pass("depth_first", lambda g, c: g, ensures=DEPTH_FIRST.ensures)
    with pytest.raises(GraphError, match=r"^pass depth_first broke its contract: node 'relu' "):
        run_passes(graph, [lazy], Context(), verify=True)
    assert DEPTH_FIRST.requires == ("simplify", "absorb")


def test_regions_know_their_stacks() -> None:
    def build(t, x):
        y = conv(t, relu(max_pool(x)), 4)
        for _ in range(6):
            y = relu(scale(t, max_pool(y)))
        return y

    def origins(strategy: str) -> list[str]:
        after = check(build, X, strategy=strategy)
        return [n.op.origin for n in after.nodes if isinstance(n.op, FusedSequence)]

    assert origins("model") == ["stack 1", "stack 2"]
    assert origins("five") == ["stack 1", "stack 2, part 1 of 2", "stack 2, part 2 of 2"]
    assert set(origins("layers")) == {"no stack"}
