"""plan_memory: offsets in one arena, against brute force and the lower bound."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from minidnn.errors import OutOfMemoryError
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph
from minidnn.graph.layout import CHANNELS_LAST, blocked
from minidnn.graph.trace import apply
from minidnn.memory import (
    ALIGNMENT,
    Annotations,
    Arena,
    Lifetime,
    lifetimes,
    peak_bytes,
    plan_memory,
    storage_roots,
)
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.plan import make_plan
from tests.passes.build import conv, graph_of, join, relu

BARE = Annotations()


def lowest(found: list[Lifetime]) -> int:
    """The smallest arena: for some order, each storage at the lowest place where it fits, gives
    an optimal packing (every optimal packing, pushed down, is of that kind)."""
    best = 1 << 62
    for order in permutations(found):
        placed: list[tuple[int, Lifetime]] = []
        for life in order:
            edges = sorted({0, *(o + p.bytes for o, p in placed if p.overlaps(life))})
            for offset in edges:
                if all(
                    offset + life.bytes <= o or o + p.bytes <= offset or not p.overlaps(life)
                    for o, p in placed
                ):
                    placed.append((offset, life))
                    break
        best = min(best, max(o + p.bytes for o, p in placed))
    return best


def random_graph(seed: int, nodes: int) -> Graph:
    random = np.random.default_rng(seed)

    def build(t, x):
        values = [x]
        for _ in range(nodes):
            source = values[int(random.integers(max(0, len(values) - 4), len(values)))]
            values.append(conv(t, source, int(random.integers(1, 30))))
        return apply(ops.Concat(1), *values[-2:])

    return graph_of(build, (1, 3, 4, 4))


def check(graph: Graph, arena: Arena) -> None:
    """Nothing that lives at the same time shares a byte; a different test than the planner's."""
    owner: dict[tuple[int, int], object] = {}
    for life in lifetimes(graph, BARE):
        begin = arena.offsets[life.value]
        assert begin % ALIGNMENT == 0 and begin + life.bytes <= arena.bytes
        for line in range(begin // ALIGNMENT, (begin + life.bytes) // ALIGNMENT):
            for time in range(life.first, life.last + 1):
                assert owner.setdefault((line, time), life.value) is life.value


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(25))
def test_tiny_graphs_against_brute_force(seed: int) -> None:
    graph = random_graph(seed, 6)
    arena = plan_memory(graph, BARE)
    check(graph, arena)
    found = lifetimes(graph, BARE)
    best = lowest(found)
    assert peak_bytes(found) == arena.lower_bound <= best <= arena.bytes <= 1.1 * best


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(10))
def test_larger_graphs(seed: int) -> None:
    graph = random_graph(100 + seed, 60)
    arena = plan_memory(graph, BARE)
    check(graph, arena)
    assert arena.lower_bound <= arena.bytes <= 1.25 * arena.lower_bound


def test_the_lower_bound_is_the_most_in_use_at_any_node() -> None:
    graph = random_graph(3, 20)
    found = lifetimes(graph, BARE)
    used = [
        sum(life.bytes for life in found if life.first <= i <= life.last)
        for i in range(len(graph.nodes))
    ]
    assert peak_bytes(found) == max(used)
    assert peak_bytes([]) == 0


def test_a_graph_that_needs_no_memory() -> None:
    graph = graph_of(lambda t, x: relu(x), (1, 2, 3, 3))
    assert plan_memory(graph, BARE) == Arena(0, {}, 0)


def test_inputs_outputs_and_constants_are_not_in_the_arena() -> None:
    def build(t, x):
        return conv(t, relu(conv(t, x, 4)), 2)

    graph = graph_of(build, (1, 3, 4, 4))
    assert [life.value.name for life in lifetimes(graph, BARE)] == ["conv2d", "relu"]


def test_views_share_storage_and_prolong_its_life() -> None:
    def build(t, x):
        y = conv(t, x, 4)
        flat = apply(ops.Flatten(), y)
        z = apply(ops.Softmax(1), conv(t, x, 2))
        return z, apply(ops.Softmax(1), flat)

    graph = graph_of(build, (1, 3, 4, 4))
    flatten = graph.node("flatten")
    assert BARE.is_view(flatten)
    assert storage_roots(graph, BARE)[flatten.output] is graph.node("conv2d").output
    (life,) = [f for f in lifetimes(graph, BARE) if f.value.name == "conv2d"]
    assert (life.first, life.last) == (0, 4)


@pytest.mark.parametrize(
    ("shape", "layout", "view"),
    [
        ((1, 8, 4, 4), blocked(8), False),
        ((1, 8, 1, 1), blocked(8), True),
        ((1, 6, 1, 1), blocked(8), False),
        ((1, 8, 1, 1), CHANNELS_LAST, True),
        ((1, 8, 4, 4), CHANNELS_LAST, False),
    ],
)
def test_a_view_keeps_the_order_of_elements(shape, layout, view: bool) -> None:
    graph = graph_of(lambda t, x: apply(ops.Flatten(), relu(x)), shape)
    found = Annotations({graph.nodes[0].output: layout})
    assert found.is_view(graph.nodes[1]) is view


@pytest.mark.parametrize(
    ("shape", "layout", "view"),
    [
        ((4, 8, 1, 1), CHANNELS_LAST, True),
        ((4, 1, 3, 3), CHANNELS_LAST, True),
        ((4, 8, 3, 1), CHANNELS_LAST, False),
        ((4, 8, 1, 1), blocked(8), False),
    ],
)
def test_a_reorder_that_moves_nothing_is_a_view(shape, layout, view: bool) -> None:
    graph = graph_of(lambda t, x: relu(apply(ops.Reorder(layout), x)), shape)
    found = Annotations({graph.nodes[0].output: layout})
    assert found.is_view(graph.nodes[0]) is view
    root = storage_roots(graph, found)[graph.nodes[0].output]
    assert root is (graph.inputs[0] if view else graph.nodes[0].output)


def test_reshaped_constants_are_no_views() -> None:
    def build(t, x):
        c = t.constant(object(), "c", x.type, lambda: np.zeros(x.shape, np.float32))
        return apply(ops.Flatten(), c)

    graph = graph_of(build, (1, 2, 3, 3))
    assert not BARE.is_view(graph.nodes[0])


def test_blocked_layouts_take_whole_blocks() -> None:
    graph = graph_of(lambda t, x: relu(relu(x)), (2, 9, 5, 5))
    value = graph.nodes[0].output
    assert BARE.storage_bytes(value) == -(-2 * 9 * 25 * 4 // 64) * 64
    assert Annotations({value: blocked(16)}).storage_bytes(value) == 2 * 16 * 25 * 4


def test_joined_values_live_from_their_first_part_to_their_last_reader() -> None:
    def build(t, x):
        a, b = conv(t, x, 2, 3), conv(t, x, 3, 3)
        c = conv(t, join(a, b), 4, 3)
        return conv(t, c, 1, 3)

    context = Context()
    found = lifetimes(optimize(graph_of(build, (1, 3, 4, 4)), context), context.annotations)
    lives = {life.value.name: (life.first, life.last) for life in found}
    assert lives == {"concat": (0, 3), "conv2d.2": (3, 4)}


def test_a_plan_carries_what_explains_it() -> None:
    context = Context()
    graph = optimize(random_graph(1, 5), context)
    plan = make_plan(graph, context)
    assert list(plan.rewrites) == context.rewrites
    assert plan.notes == context.notes and plan.notes is not context.notes
    assert plan.layout(graph.inputs[0]).name == "NCHW"
    assert plan.annotations is context.annotations
    assert plan.roots == storage_roots(graph, plan.annotations)


def test_what_memory_cannot_hold_is_refused() -> None:
    context = Context()
    graph = optimize(graph_of(lambda t, x: relu(conv(t, relu(x), 2)), (1, 3, 8, 8)), context)
    plan = make_plan(graph, context)
    largest = 3 * 8 * 8 * 4
    needed = plan.arena.bytes + largest + graph.outputs[0].type.bytes
    plan.check_fits(needed, "a device")
    text = rf"%x0: float32\[1, 3, 8, 8\] takes {largest} bytes, and values that are needed at once "
    with pytest.raises(OutOfMemoryError, match=rf"{text}{needed}; a device has {needed - 1}$"):
        plan.check_fits(needed - 1, "a device")
    with pytest.raises(OutOfMemoryError, match=rf"at once {2 * needed}; a device has {needed}$"):
        plan.check_fits(needed, "a device", wider=2)
