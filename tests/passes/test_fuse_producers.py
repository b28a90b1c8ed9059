"""fuse_producers: what a gradient of a convolution reads is a result of that gradient."""

from __future__ import annotations

from typing import Any

import pytest

from minidnn.backends.cuda.target import CudaTarget
from minidnn.fusion.region import FusedGradient, FusedSequence, Region
from minidnn.fusion.sequence import Schedule
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType
from minidnn.passes.depth_first import DEPTH_FIRST
from minidnn.passes.fuse import flat
from minidnn.passes.fuse_reductions import FUSE_EPILOGUE_REDUCTIONS, FUSE_PRODUCERS
from minidnn.passes.infrastructure import Context
from minidnn.passes.sum_together import SUM_TOGETHER
from tests.passes.build import Build, assert_same, constant, graph_of, ops_of, relu, run
from tests.passes.test_fuse_epilogue_reductions import Adding
from tests.passes.test_sum_together import PAIR, total

G, X = (2, 3, 6, 7), (2, 4, 6, 7)


class Making(Adding):
    """Makes whatever gradients read in their kernels, and adds up what they make."""

    def refuse_fusion(self, region: Region) -> str | None:
        return None if isinstance(region, FusedGradient) else super().refuse_fusion(region)


class Reading(Adding):
    def refuse_fusion(self, region: Region) -> str | None:
        is_made = isinstance(region, FusedGradient) and region.producer
        return "it reads what is there" if is_made else super().refuse_fusion(region)


def after(build: Build, context: Context | None = None) -> Graph:
    """Of two tensors like the convolution's result, and one like its image."""
    before = graph_of(build, G, G, X)
    result = before
    for step in (SUM_TOGETHER, DEPTH_FIRST, FUSE_EPILOGUE_REDUCTIONS, FUSE_PRODUCERS):
        result = run(result, step, context=context or Context(Making()))
    assert_same(before, result)
    return result


def regions(graph: Graph) -> list[FusedGradient]:
    return [node.op for node in graph.nodes if isinstance(node.op, FusedGradient)]


def of_image(t: Any, y: Any) -> Any:
    weight = constant(t, (3, 4, 1, 1), f"w{len(t.nodes)}")
    return apply(ops.Conv2dInputGradient(ops.Conv2d(), X[2:]), y, weight)


def of_filter(x: Any, y: Any) -> Any:
    return apply(ops.Conv2dWeightGradient(ops.Conv2d(), (1, 1)), x, y)


def normalized(t: Any, g: Any, y: Any, x: Any) -> list[Any]:
    z = relu(apply(PAIR, g, y))
    return [of_image(t, z), of_filter(x, z)]


def summed(t: Any, g: Any, y: Any, x: Any) -> list[Any]:
    z = apply(PAIR, g, y)
    back = of_image(t, z)
    return [back, total(apply(PAIR, back, x)), of_filter(x, z)]


def test_a_gradient_makes_what_it_and_others_read() -> None:
    found = after(normalized)
    (region,) = regions(found)
    assert region.producer is not None and ops_of(region.producer) == ["Pair", "ReLU"]
    assert region.sums is None and region.is_kept
    assert region.body.outputs[0] is region.core.inputs[0]
    assert ops_of(found) == ["FusedGradient", "Conv2dWeightGradient"]


def test_sums_stay_behind_it() -> None:
    (region,) = regions(after(summed))
    assert region.producer is not None and region.sums is not None and region.is_kept
    assert region.sums.body.inputs[0] is region.core.output
    assert [node.op.name for node in region.sums.reductions.values()] == ["Reduce"]


def test_what_nobody_else_reads_or_has_a_window_stays_apart() -> None:
    def alone(t: Any, g: Any, y: Any, x: Any) -> Any:
        return of_image(t, apply(PAIR, g, y))

    def window(t: Any, g: Any, y: Any, x: Any) -> list[Any]:
        z = apply(ops.MaxPool2d((3, 3), (1, 1), (1, 1)), apply(PAIR, g, y))
        return [of_image(t, z), of_filter(x, z)]

    def several(t: Any, g: Any, y: Any, x: Any) -> list[Any]:
        z = apply(PAIR, g, y)
        return [of_image(t, z), of_filter(x, z), relu(z)]

    for build in (alone, window, several):
        assert not regions(after(build)), build.__name__


def test_a_path_around_the_gradient_keeps_the_sequence_apart() -> None:
    """What the sums read is computed of what the gradient reads."""

    def build(t: Any, g: Any, y: Any, x: Any) -> list[Any]:
        z = apply(PAIR, g, y)
        weight = of_filter(x, z)
        back = of_image(t, z)
        beside = apply(ops.Conv2d(), z, apply(ops.View((4, 3, 1, 1)), weight))
        return [back, total(apply(PAIR, back, beside)), weight]

    (region,) = regions(after(build))
    assert region.producer is None and region.sums is not None


def test_refusals_are_noted_and_strategies_respected() -> None:
    context = Context(Reading())
    assert not regions(after(normalized, context))
    assert any("reads what is there" in note for note in context.notes.values())
    assert not regions(after(normalized, Context(Making(), strategy="layers")))


def sequence_of(dtype: str, vector: str, tensors: int) -> Node:
    """Sums of tensors, times a vector."""
    types = [TensorType((2, 16, 6, 7), dtype)] * tensors + [TensorType((16,), vector)]
    read = [Value(type, f"x{i}") for i, type in enumerate(types)]
    value, nodes = read[0], list[Node]()
    for other in read[1:-1]:
        nodes.append(Node(ops.Add(), [value, other], f"n{len(nodes)}"))
        value = nodes[-1].output
    product = argument(0) * argument(1)
    scale = ops.Formula(product, 1, 1, dtype=dtype, compute="float32")
    nodes.append(Node(scale, [value, read[-1]], "scale"))
    body = Graph(read, nodes[-1].outputs, nodes, "front")
    return Node(FusedSequence(body, Schedule(6, 7)), read, "sequence")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_cuda_makes_it_for_products_of_pixels_in_half_precision(dtype: str) -> None:
    def refused(*window: int, channels: int = 24, vector: str = "float32", tensors: int = 2) -> str:
        convolution = ops.Conv2d()
        weight = Value(TensorType((16, channels, *window), dtype), "w")
        made = sequence_of(dtype, vector, tensors)
        operands = [made.output, weight]
        node = Node(ops.Conv2dInputGradient(convolution, (6, 7)), operands, "gradient")
        body = Graph([*made.inputs, weight], [made.output, node.output], [made, node])
        region = FusedGradient(flat(body))
        return CudaTarget(precision=dtype).refuse_fusion(region) or ""

    assert not refused(1, 1) and not refused(1, 1, tensors=1)
    assert "multiple of 8" in refused(1, 1, channels=20)
    assert "more than 2" in refused(1, 1, tensors=3)
    assert "vectors of float32" in refused(1, 1, vector=dtype)
