"""Networks for which there is no memory: refused by their declared sizes before anything runs, and
with the node's name where memory runs out all the same."""

from __future__ import annotations

import gc
import resource
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import scalar
from minidnn.errors import OutOfMemoryError
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.expression import argument
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operator import Operator
from minidnn.graph.types import TensorType
from minidnn.passes import simplify
from minidnn.passes.infrastructure import Pass

ROWS = 1_000_000
BYTES = ROWS * 84 * 4
"""What :func:`repeated` makes of 336 bytes: more than earlier tests leave free on the heap, from
which memory comes without more address space."""


def repeated(*shape: int) -> Graph:
    x = Value(TensorType((1, 2, 6, 7)), "x")
    wide = Node(ops.Expand((*shape, 2, 6, 7)), [x], "wide")
    padded = Node(ops.Pad((0, 0, 0, 1), (0, 0, 0, 0)), [wide.output], "padded")
    return Graph([x], [padded.output], [wide, padded])


@contextmanager
def address_space(more: int) -> Iterator[None]:
    """Leaves the process so many bytes beside what it has, garbage of earlier tests excepted."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("rows", [1 << 30, 1 << 50])
@pytest.mark.parametrize("options", [{}, {"precision": "float64"}, {"strategy": "layers"}])
def test_what_is_declared_too_large_is_refused_before_it_runs(
    rows: int, options: dict[str, Any]
) -> None:
    with pytest.raises(OutOfMemoryError, match=r"%padded: .* outputs .*; this process has \d+$"):
        md.compile(repeated(rows), device="reference", **options)


def test_values_inside_that_are_too_large_are_refused_too() -> None:
    graph = repeated(1 << 40)
    padded = graph.nodes[-1]
    total = Node(ops.Reduce("sum", tuple(range(1, 4))), [padded.output], "total")
    first = Node(ops.Slice((0,), (5,), (1,)), [total.output], "first")
    graph = Graph(graph.inputs, [first.output], [*graph.nodes, total, first])
    with pytest.raises(OutOfMemoryError, match=r"%padded: .* at once \d+; this process has \d+$"):
        md.compile(graph, device="reference", strategy="layers")


def test_long_axes_are_no_work_for_passes() -> None:
    """A value of 10^9 channels, of which passes would otherwise make a list."""
    x = Value(TensorType((1, 10**9, 1, 1), "float16"), "x")
    first = Node(ops.Slice((0,) * 4, (1, 5, 1, 1), (1,) * 4), [x], "first")
    graph = Graph([x], [first.output], [first])
    try:
        md.compile(graph, device="reference")
    except OutOfMemoryError as error:
        assert "this process has" in str(error)  # on a small machine


def test_a_network_that_fits_in_float32_alone() -> None:
    graph = repeated(ROWS)
    with address_space(3 * BYTES):
        md.compile(graph, device="reference")
        with pytest.raises(OutOfMemoryError, match="this process has"):
            md.compile(graph, device="reference", precision="float64")


def test_memory_that_runs_out_is_told_with_the_node() -> None:
    executable = md.compile(repeated(ROWS), device="reference")
    (x,) = executable.random_inputs()
    with (
        address_space(BYTES // 2),
        pytest.raises(OutOfMemoryError, match="for a result of 384000000 "),
    ):
        executable(x)
    out = np.empty(executable.interface.outputs[0].shape, np.float32)
    with (
        address_space(BYTES // 2),
        pytest.raises(OutOfMemoryError, match=rf"^graph .* for its values, {BYTES} bytes$"),
    ):
        executable(x, out=out)
    message = rf"^node 'wide' \(Expand.*\): there is no memory .*; %wide: .* takes {BYTES} bytes$"
    with address_space(BYTES + BYTES // 4), pytest.raises(OutOfMemoryError, match=message):
        executable(x, out=out)
    with address_space(BYTES // 2), pytest.raises(OutOfMemoryError, match=message):
        evaluate(executable.source, [x])


@dataclass(frozen=True)
class Hungry(Operator):
    """Takes more memory than any machine has."""

    kind = "reduction"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        return inputs

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.empty(1 << 60, np.uint8),)


def test_a_constant_that_cannot_be_computed() -> None:
    known = Constant(TensorType((4,)), "known", np.zeros(4, np.float32))
    made = Node(Hungry(), [known], "made")
    x = Value(TensorType((4,)), "x")
    total = Node(ops.Add(), [x, made.output], "total")
    executable = md.compile(Graph([x], [total.output], [made, total]), device="reference")
    with pytest.raises(OutOfMemoryError, match=r"constant made\S*: there is no memory to compute"):
        executable(np.zeros(4, np.float32))


@pytest.mark.parametrize(("rows", "is_folded"), [(1000, True), (simplify.FOLDED_BYTES, False)])
def test_large_constants_of_small_ones_are_not_folded(rows: int, is_folded: bool) -> None:
    known = Constant(TensorType((1, 2)), "known", np.ones((1, 2), np.float32))
    x = Value(TensorType((1, 2)), "x")
    wide = Node(ops.Expand((rows, 2)), [known], "wide")
    first = Node(ops.Slice((0, 0), (1, 2), (1, 1)), [wide.output], "first")
    total = Node(ops.Add(), [x, first.output], "total")
    folded: list[bool] = []

    def observe(step: Pass, before: Graph, after: Graph) -> None:
        if step.name == "simplify":
            folded.append(not any(node.name == "wide" for node in after.nodes))

    graph = Graph([x], [total.output], [wide, first, total])
    with address_space(1 << 30):
        if is_folded:
            md.compile(graph, device="reference", observe=observe)
        else:
            with pytest.raises(OutOfMemoryError, match=r"%wide: .* this process has"):
                md.compile(graph, device="reference", observe=observe)
    assert folded == [is_folded]


@pytest.mark.parametrize("function", [scalar.fma, lambda a, b, c: scalar.erf(a) * b + c])
def test_emulated_functions_take_no_more_memory_than_others(function: Any) -> None:
    operands = [np.ones((1 << 20, 1), np.float32), np.ones(4, np.float32)]
    operands.append(np.array(2, np.float32))
    expression = function(argument(0), argument(1), argument(2))
    tracemalloc.start()
    try:
        scalar.evaluate(expression, operands)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20  # 4 times the result
    finally:
        tracemalloc.stop()
