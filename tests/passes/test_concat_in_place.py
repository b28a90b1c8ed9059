"""concat_in_place: operands of joins are written where the joined value lies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import minidnn as md
from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Node, Value
from minidnn.graph.layout import CHANNELS_LAST
from minidnn.graph.trace import apply
from minidnn.memory import Annotations
from minidnn.passes.in_place import CONCAT_IN_PLACE
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import PIPELINE
from tests.passes.build import constant, conv, graph_of, inputs_of, join, max_pool, relu, run, scale

X = (2, 4, 6, 6)


def placed(context: Context) -> dict[str, tuple[str, int]]:
    """Where each value that was placed lies: in which value, from which channel on."""
    places = context.annotations.placements
    return {v.name: (p.buffer.name, p.channel) for v, p in places.items()}


def check(build, *shapes, fuel: int | None = None) -> tuple[dict[str, tuple[str, int]], Context]:
    """Placements and context of the whole pipeline, whose plan the reference backend runs.

    Its arena is overwritten with NaN wherever the plan says that nothing lives.
    """
    graph = graph_of(build, *shapes)
    context = Context(fuel=fuel)
    run(graph, *PIPELINE, context=context)
    inputs = inputs_of(graph)
    outputs = md.compile(graph, device="reference", fuel=fuel)(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for got, expected in zip(outputs, evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    return placed(context), context


def dense(t, x: Value) -> Value:
    """Three layers of a dense block: each reads all that were made before it."""
    y = conv(t, x, 3)
    for _ in range(3):
        y = join(y, conv(t, relu(scale(t, y)), 2, 3))
    return conv(t, relu(scale(t, y)), 2)


def test_a_dense_block_lies_in_one_buffer() -> None:
    places, context = check(dense, X)
    assert places == {
        "conv2d": ("concat.2", 0),
        "conv2d.1": ("concat.2", 3),
        "conv2d.2": ("concat.2", 5),
        "conv2d.3": ("concat.2", 7),
        "concat": ("concat.2", 0),
        "concat.1": ("concat.2", 0),
    }
    mine = [r.description for r in context.rewrites if r.pass_name == "concat_in_place"]
    assert mine[:2] == ["write concat.1 into concat.2", "write conv2d.3 into concat.2"]


@pytest.mark.parametrize("fuel", range(5, 13))
def test_every_prefix_of_a_dense_blocks_placements_is_right(fuel: int) -> None:
    check(dense, X, fuel=fuel)


def test_inputs_outputs_and_repeated_operands_are_copied() -> None:
    def build(t, x):
        a, b, o = (conv(t, x, 2, 3) for _ in range(3))
        return o, conv(t, join(a, x, a, b, o), 2, 3)

    places, context = check(build, X)
    assert places == {"conv2d.1": ("concat", 8)}
    assert context.notes == {
        "conv2d": "copied into concat: it is an operand twice",
        "x0": "copied into concat: it is an input, a constant or a state",
        "conv2d.2": "copied into concat: it is an output of the graph, or what a state becomes",
    }


def test_constants_are_copied() -> None:
    def build(t, x):
        return conv(t, join(conv(t, x, 2), constant(t, X, "c")), 2, 3)

    places, context = check(build, X)
    assert places == {"conv2d": ("concat", 0)}
    assert context.notes == {"c": "copied into concat: it is an input, a constant or a state"}


def test_a_value_lies_in_one_join_only() -> None:
    """In the last one; the other copies it."""

    def build(t, x):
        a, b, c = (conv(t, x, 2, 3) for _ in range(3))
        return conv(t, join(a, b), 2, 3), conv(t, join(b, c), 2, 3)

    places, context = check(build, X)
    assert places == {
        "conv2d": ("concat", 0),
        "conv2d.1": ("concat.1", 0),
        "conv2d.2": ("concat.1", 2),
    }
    assert context.notes["conv2d.1"] == "copied into concat: it is a slice of concat.1 already"


def test_a_join_of_neighbours_in_a_buffer_is_a_name_for_them() -> None:
    def build(t, x):
        a, b, c = (conv(t, x, 2, 3) for _ in range(3))
        return conv(t, join(b, c), 3, 3), conv(t, join(a, b, c), 3, 3)

    places, context = check(build, X)
    assert places["concat"] == ("concat.1", 2)
    assert "concat names a part of concat.1" in [r.description for r in context.rewrites]
    assert not context.notes


def test_operands_in_another_order_are_no_neighbours() -> None:
    def build(t, x):
        a, b, c = (conv(t, x, 2, 3) for _ in range(3))
        return conv(t, join(c, b), 3, 3), conv(t, join(a, b, c), 3, 3)

    places, _ = check(build, X)
    assert "concat" not in places


def test_a_join_that_lies_in_another_stays_there() -> None:
    """Its operands lie side by side in a third one, and are copied."""

    def build(t, x):
        a, b, c, d = (conv(t, x, 2, 3) for _ in range(4))
        inner = join(a, b)
        j = join(inner, d)
        return conv(t, j, 3, 3), conv(t, join(c, a, b), 3, 3), conv(t, inner, 3, 3)

    places, context = check(build, X)
    assert places["concat"] == ("concat.1", 0)
    assert places["conv2d"] == ("concat.2", 2)
    assert context.notes["conv2d"] == "copied into concat: it is a slice of concat.2 already"


@pytest.mark.parametrize("last", [ops.Flatten(), ops.Reshape((-1, 6))], ids=str)
def test_what_is_reshaped_lies_by_itself(last: ops.Flatten) -> None:
    def build(t, x):
        a, b, c = (conv(t, x, 2, 3) for _ in range(3))
        return apply(last, join(a, b)), apply(last, c), conv(t, join(c, a, b), 3, 3)

    places, context = check(build, X)
    assert places == {"conv2d": ("concat.1", 2), "conv2d.1": ("concat.1", 4)}
    reason = "copied into concat.1: a reshape of it needs a buffer of its own"
    assert context.notes["conv2d.2"] == reason


def test_a_join_that_is_an_output_is_written_where_it_belongs() -> None:
    def build(t, x):
        a, b, c = (conv(t, x, 2, 3) for _ in range(3))
        j = join(a, b)
        return j, join(j, c)

    places, context = check(build, X)
    assert places["conv2d"] == ("concat", 0)
    assert (
        context.notes["concat"]
        == "copied into concat.1: it is an output of the graph, or what a state becomes"
    )


def test_joins_along_other_axes_are_left() -> None:
    def build(t, x):
        return conv(t, apply(ops.Concat(2), conv(t, x, 4), conv(t, x, 4)), 2, 3)

    assert check(build, X)[0] == {}


def test_negative_axes_are_axes_too() -> None:
    def build(t, x):
        return conv(t, apply(ops.Concat(-3), conv(t, x, 4), conv(t, x, 4)), 2, 3)

    assert check(build, X)[0] == {"conv2d": ("concat", 0), "conv2d.1": ("concat", 4)}


def test_sequences_write_slices_too() -> None:
    def build(t, x):
        return conv(t, join(max_pool(x), relu(conv(t, x, 2, 3))), 2, 3)

    assert check(build, X)[0] == {"maxpool2d": ("concat", 0), "relu": ("concat", 4)}


@dataclass(frozen=True)
class Choosy(Target):
    """Refuses slices of two channels; others cost a second."""

    def refuse_slice(self, node: Node, value: Value, channel: int) -> str | None:
        return "two channels are too few" if value.shape[1] == 2 else None

    def slice_seconds(self, node: Node, value: Value) -> float:
        return 1.0


def test_refusals_and_prices_of_the_target() -> None:
    graph = graph_of(lambda t, x: join(conv(t, x, 2), conv(t, x, 3)), X)
    context = Context(Choosy())
    assert run(graph, CONCAT_IN_PLACE, context=context) is graph
    assert context.notes["conv2d"] == "copied into concat: two channels are too few"
    assert context.notes["conv2d.1"] == (
        "copied into concat: writing a slice costs 1000000.0 us more, a copy 0.0 us"
    )


def test_another_layout_is_refused() -> None:
    graph = graph_of(lambda t, x: join(conv(t, x, 2), conv(t, x, 3)), X)
    context = Context(annotations=Annotations({graph.nodes[0].output: CHANNELS_LAST}))
    run(graph, CONCAT_IN_PLACE, context=context)
    assert placed(context) == {"conv2d.1": ("concat", 2)}
    assert context.notes["conv2d"] == "copied into concat: it has another layout"


def test_reordered_copies_are_refused() -> None:
    def build(t, x):
        return join(apply(ops.Reorder(CHANNELS_LAST), conv(t, x, 2)), conv(t, x, 3))

    context = Context()
    run(graph_of(build, X), CONCAT_IN_PLACE, context=context)
    assert context.notes["reorder"] == "copied into concat: it is a reordered copy"


def test_fuel_gives_prefixes() -> None:
    graph = graph_of(dense, X)
    full = Context()
    run(graph, CONCAT_IN_PLACE, context=full)
    assert len(full.rewrites) == 6
    for fuel in range(8):
        context = Context(fuel=fuel)
        run(graph, CONCAT_IN_PLACE, context=context)
        assert context.rewrites == full.rewrites[:fuel]
        assert len(placed(context)) == min(fuel, 6)
    assert CONCAT_IN_PLACE.requires == ("layout",)
