"""Images that lie behind each other as one: the same bits, in blocks that are full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minidnn.backends.cuda.sequence.flat import SMALL, merge_batch
from minidnn.fusion.region import FusedSequence
from minidnn.graph import operators as ops
from minidnn.graph.ir import Value
from minidnn.graph.layout import CHANNELS_LAST, PLANAR, Layout
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType, rounded_to
from minidnn.passes.depth_first import DEPTH_FIRST
from tests.passes.build import constant, run

from .sequences import Case, case_of, run_cases
from .test_sequence_kinds import numbers_for

Operand = tuple[int, ...]


def numbers(t: Any, x: Value, d: Value) -> Value:
    return (x - d) / d


def alone(t: Any, x: Value) -> Value:
    return x * x + 1.0


def scaled(t: Any, x: Value) -> Value:
    vectors = [constant(t, x.shape[1:2], name) for name in ("scale", "shift")]
    return apply(ops.ScaleShift(), x, *vectors) * 0.5


#: What is computed, of which shapes, in which layouts.
CASES: list[tuple[Callable[..., Value], list[Operand], tuple[Layout, ...]]] = [
    (numbers, [(37, 96), (37, 1)], (PLANAR,)),
    (numbers, [(300, 7), (300, 1)], (PLANAR,)),
    (numbers, [(5, 1000), (5, 1)], (PLANAR,)),
    (numbers, [(9, 24), (1, 24)], (PLANAR,)),
    (numbers, [(6, 3, 4, 4), (6, 3, 1, 1)], (PLANAR, CHANNELS_LAST)),
    (numbers, [(6, 3, 5, 3), (6, 1, 1, 1)], (PLANAR, CHANNELS_LAST)),
    (numbers, [(6, 3, 4, 4), (1, 3, 1, 1)], (PLANAR, CHANNELS_LAST)),
    (alone, [(3000, 1)], (PLANAR,)),
    (alone, [(33, 10)], (PLANAR,)),
    (alone, [(7, 8, 4, 4)], (PLANAR, CHANNELS_LAST)),
    (alone, [(2, SMALL // 2)], (PLANAR,)),
    (scaled, [(70, 12)], (PLANAR,)),
    (scaled, [(4, 12, 3, 5)], (PLANAR, CHANNELS_LAST)),
]


def region_of(build: Callable[..., Value], shapes: list[Operand], dtype: str) -> FusedSequence:
    with tracing("g") as trace:
        given = [trace.input(TensorType(s, dtype), f"x{i}") for i, s in enumerate(shapes)]
        outputs = [build(trace, *given)]
    (node,) = run(trace.graph(outputs), DEPTH_FIRST).nodes
    assert isinstance(node.op, FusedSequence)
    return node.op


def case(
    build: Any, shapes: list[Operand], layout: Layout, extra: int = 0, dtype: str = "float32"
) -> Case:
    region = region_of(build, shapes, dtype)
    operands = [rounded_to(dtype, array) for array in numbers_for(region.body)]
    return case_of(region, operands, layout, extra=extra)


@pytest.mark.race
def test_results_have_the_same_bits(tmp_path: Path) -> None:
    """Also in slices of wider buffers, whose images are not merged."""
    cases = [case(build, shapes, layout) for build, shapes, layouts in CASES for layout in layouts]
    cases += [case(b, shapes, PLANAR, dtype="bfloat16") for b, shapes, _ in CASES[:-2]]
    cases += [case(alone, [(7, 8, 4, 4)], layout, extra=3) for layout in (PLANAR, CHANNELS_LAST)]
    run_cases(cases, tmp_path)


@pytest.mark.parametrize(
    ("build", "shapes", "layout", "blocks"),
    [
        (numbers, [(200704, 96), (200704, 1)], PLANAR, 200704 * 96 // 1024),
        (alone, [(200704, 1)], PLANAR, 200704 // 1024),
        (alone, [(64, 1000)], PLANAR, 63),
        (scaled, [(1024, 64)], PLANAR, 64),
        (alone, [(1024, 4, 4, 4)], CHANNELS_LAST, 64),
    ],
)
def test_blocks_are_full(build: Any, shapes: list[Operand], layout: Layout, blocks: int) -> None:
    assert case(build, shapes, layout).kernel.launch.grid[0] == blocks


def test_large_images_have_blocks_of_their_own() -> None:
    found = case(alone, [(2, 8, 64, 64)], PLANAR)
    plan, binding = found.region.kernel
    assert merge_batch(plan, binding, (*found.inputs, *found.outputs))[1].batch == 2
