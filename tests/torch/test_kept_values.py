"""How values lie, and in which dtype, that are kept between two programs."""

from __future__ import annotations

from minidnn.acceleration.kept import channels_last_values, only_cast
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType

_LAST, _FIRST = ops.Transpose((0, 2, 3, 1)), ops.Transpose((0, 3, 1, 2))


def lying(graph: Graph, *values: Value) -> list[bool]:
    found = channels_last_values(graph)
    return [value in found for value in values]


def test_images_lie_as_they_are_made() -> None:
    with tracing("g") as trace:
        x = trace.input(TensorType((2, 3, 8, 8)), "x")
        weight = trace.input(TensorType((4, 3, 3, 3)), "w")
        matrix = trace.input(TensorType((6, 4)), "m")
        image = apply(ops.Conv2d(), x, weight)
        rows = apply(_LAST, image)
        wide = apply(ops.Linear(), apply(ops.LayerNorm(1), rows), matrix)
        smooth = apply(ops.GELU(), wide)
        back = apply(_FIRST, smooth)
        square = apply(ops.Mul(), back, back)
    graph = trace.graph([square])
    values = image, rows, wide, smooth, back, square
    assert lying(graph, *values) == [True, False, False, False, True, True]


def test_what_is_given_another_shape_lies_as_its_readers_want_it() -> None:
    with tracing("g") as trace:
        x = trace.input(TensorType((2, 3, 64)), "x")
        weight, matrix = (
            trace.input(TensorType(shape), name)
            for shape, name in (((4, 3, 3, 3), "w"), ((6, 8), "m"))
        )
        image = apply(ops.ReLU(), apply(ops.View((2, 3, 8, 8)), x))
        rows = apply(ops.ReLU(), apply(ops.View((2, 8, 3, 8)), x))
        none = apply(ops.View((2, 4, 6, 8)), x)
        made = apply(ops.Conv2d(), image, weight), apply(ops.Linear(), rows, matrix), none
    graph = trace.graph(list(made))
    assert lying(graph, image, rows, none) == [True, False, True]


def test_inputs_that_are_only_cast() -> None:
    half = ops.Formula(argument(0), title="Cast", dtype="bfloat16", compute="float32")
    with tracing("g") as trace:
        cast, both, given, other = (
            trace.input(TensorType((2, 3)), name) for name in ("cast", "both", "given", "other")
        )
        results = [apply(half, value) for value in (cast, cast, both, given)]
        results += [apply(ops.ReLU(), both), given, apply(ops.ReLU(), other)]
    graph = trace.graph(results)
    assert only_cast(graph, "bfloat16") == {cast}
    assert only_cast(graph, "float16") == set()
