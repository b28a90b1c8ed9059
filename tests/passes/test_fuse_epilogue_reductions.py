"""fuse_epilogue_reductions: a contraction gives mean and variance of its result, too."""

from __future__ import annotations

from typing import Any

from minidnn.backends.cuda.target import CudaTarget
from minidnn.fusion.region import FusedContraction, FusedGradient, FusedSums, Region, parts_of
from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operator import Contraction
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType
from minidnn.passes.absorb import ABSORB
from minidnn.passes.fuse_reductions import FUSE_EPILOGUE_REDUCTIONS
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.sum_together import STORE_SUMMED, SUM_TOGETHER
from tests.passes.build import Build, assert_same, constant, conv, graph_of, ops_of, relu, run
from tests.passes.test_sum_together import PAIR, total

X = (2, 4, 6, 7)
AXES = (0, 2, 3)


class Adding(Target):
    """Adds up whatever contractions make, and computes what follows them in their kernels."""

    def refuse_fusion(self, region: Region) -> str | None:
        match region:
            case FusedContraction():
                return self.refuse_around(region)
            case FusedSums() | FusedGradient(producer=None):
                return None
        return super().refuse_fusion(region)


class Plain(Adding):
    def refuse_fusion(self, region: Region) -> str | None:
        is_summed = isinstance(region, FusedContraction) and region.reductions
        return "it adds nothing up" if is_summed else super().refuse_fusion(region)


def moments(x: Any) -> list[Any]:
    mean = apply(ops.Reduce("mean", AXES, dtype="float32"), x)
    return [mean, apply(ops.Variance("float32"), x, mean)]


def after(
    build: Build,
    context: Context | None = None,
    inputs: tuple[tuple[int, ...], ...] = (X,),
    steps: tuple[Pass, ...] = (ABSORB, SUM_TOGETHER, FUSE_EPILOGUE_REDUCTIONS),
) -> Graph:
    before = graph_of(build, *inputs)
    context = context or Context(Adding())
    result = before
    for step in steps:
        result = run(result, step, context=context)
    assert_same(before, result)
    return result


def normalized(t: Any, x: Any) -> Any:
    y = conv(t, x, 3)
    return [relu(y), relu(apply(ops.Sigmoid(), y)), *moments(y)]


def region_of(graph: Graph) -> tuple[Node, list[Node]]:
    """The fused contraction of a graph, and what it computes."""
    (found,) = (
        (node, node.op.body.nodes) for node in graph.nodes if isinstance(node.op, FusedContraction)
    )
    return found[0], list(found[1])


def test_a_convolution_has_three_results() -> None:
    found = after(normalized)
    node, inner = region_of(found)
    assert [value.shape for value in node.outputs] == [(2, 3, 6, 7), (3,), (3,)]
    assert [each.op.name for each in inner] == ["Conv2d", "Reduce", "Variance"]
    parts = parts_of(node)
    assert isinstance(parts.node.op, Contraction) and not parts.prologue and not parts.epilogue
    assert [value.shape for value in parts.statistics] == [(3,), (3,)]
    assert parts.result is inner[0].output


def test_what_was_absorbed_is_added_up() -> None:
    def build(t: Any, x: Any) -> Any:
        y = relu(conv(t, x, 3))
        return [y, relu(apply(ops.Sigmoid(), y)), *moments(y)]

    node, inner = region_of(after(build))
    names = [each.op.name for each in inner]
    assert names == ["Conv2d", "ReLU", "Reduce", "Variance"]
    assert len(parts_of(node).epilogue) == 1


def test_a_refusal_is_noted() -> None:
    context = Context(Plain())
    assert "FusedSums" in ops_of(after(normalized, context))
    assert any("it adds nothing up" in note for note in context.notes.values())


def test_strategies_that_leave_layers_apart_do_not_add_up() -> None:
    found = after(normalized, Context(Adding(), "layers"))
    assert not any(isinstance(node.op, FusedContraction) for node in found.nodes)


def test_without_fuel_nothing_happens() -> None:
    fuel = len(_rewrites(normalized)) - 1
    found = after(normalized, Context(Adding(), fuel=fuel))
    assert "FusedSums" in ops_of(found)


def _rewrites(build: Build) -> list[Any]:
    context = Context(Adding())
    after(build, context)
    return context.rewrites


def test_other_sweeps_stay() -> None:
    """A sum, a variance around a mean that is given, of what two contractions make, of a result
    that nobody else reads, and whose mean nobody reads."""

    def alone(t: Any, x: Any) -> Any:
        y = conv(t, x, 3)
        return [relu(y), relu(apply(ops.Sigmoid(), y)), apply(ops.Reduce("sum", AXES), y)]

    def given(t: Any, x: Any) -> Any:
        y, mean = conv(t, x, 3), constant(t, (3,), "mean")
        return [y, apply(ops.Variance("float32"), y, mean)]

    def two(t: Any, x: Any) -> Any:
        y, z = conv(t, x, 3), conv(t, x, 3)
        return [y, z, *moments(apply(ops.Add(), y, z))]

    def unread(t: Any, x: Any) -> Any:
        return moments(conv(t, x, 3))

    def no_mean(t: Any, x: Any) -> Any:
        y = conv(t, x, 3)
        return [y, moments(y)[1]]

    for build in (alone, given, two, unread, no_mean):
        found = after(build)
        regions = [n for n in found.nodes if isinstance(n.op, FusedContraction)]
        assert all(not parts_of(node).statistics for node in regions), build.__name__


def test_cuda_adds_up_behind_products_of_pixels_in_half_precision() -> None:
    def refused(shape: tuple[int, ...], filters: int, dtype: str, *geometry: Any) -> str | None:
        def build(t: Any, x: Any) -> Any:
            return conv(t, x, filters, *geometry)

        node = graph_of(build, shape).nodes[-1]
        halves = Node(node.op, [_as(v, dtype) for v in node.inputs], "conv")
        mean = Node(ops.Reduce("mean", AXES, dtype="float32"), halves.outputs, "mean")
        spread = Node(ops.Variance("float32"), [halves.output, mean.output], "spread")
        nodes = [halves, mean, spread]
        body = Graph(halves.inputs, [node.output for node in nodes], nodes)
        return CudaTarget(precision=dtype).refuse_fusion(FusedContraction(body))

    def _as(value: Any, dtype: str) -> Any:
        return Value(TensorType(value.shape, dtype), value.name)

    assert refused(X, 8, "bfloat16") is None
    assert "half precision" in (refused(X, 8, "float32") or "")
    assert "1x1" in (refused(X, 8, "bfloat16", 3) or "")


def test_cuda_adds_up_behind_gradients_of_windows() -> None:
    def refused(*window: int, channels: int = 16, dtype: str = "bfloat16", **geometry: Any) -> str:
        convolution = ops.Conv2d(**geometry)
        x, weight = (TensorType(s, dtype) for s in ((2, channels, 9, 8), (24, channels, *window)))
        (y,) = convolution.infer(x, weight)
        read = [Value(type, f"v{i}") for i, type in enumerate((y, weight))]
        node = Node(ops.Conv2dInputGradient(convolution, (9, 8)), read, "gradient")
        sum_of_it = Node(ops.Reduce("sum", AXES, dtype="float32"), node.outputs, "sum")
        body = Graph(read, sum_of_it.outputs, [node, sum_of_it])
        return CudaTarget(precision=dtype).refuse_fusion(FusedGradient(body)) or ""

    assert not refused(1, 1) and not refused(3, 3, padding=((1, 1), (2, 0))) and not refused(5, 2)
    assert "half precision" in refused(3, 3, dtype="float32")
    assert "stride 1" in refused(3, 3, stride=(2, 2)) and "dilation" in refused(
        3, 3, dilation=(2, 1)
    )
    assert "multiple of 8" in refused(3, 3, channels=12)
    assert "padding" in refused(2, 3, padding=((2, 2), (0, 0)))
    assert "padding" in refused(1, 1, padding=((1, 1), (0, 0)))


def gradient_of(t: Any, x: Any, y: Any) -> Any:
    """The gradient for images like ``x`` from that of three channels."""
    weight = constant(t, (3, x.shape[1], 1, 1), f"w{len(t.nodes)}")
    return apply(ops.Conv2dInputGradient(ops.Conv2d(), (6, 7)), y, weight)


def after_gradient(build: Build, context: Context | None = None) -> Graph:
    steps = (SUM_TOGETHER, STORE_SUMMED, FUSE_EPILOGUE_REDUCTIONS)
    return after(build, context, (X, (2, 3, 6, 7)), steps)


def regions(graph: Graph) -> list[FusedGradient]:
    return [node.op for node in graph.nodes if isinstance(node.op, FusedGradient)]


def sums_in(region: FusedGradient) -> FusedSums:
    assert region.sums is not None
    return region.sums


def masked(t: Any, x: Any, y: Any) -> Any:
    g = gradient_of(t, x, y)
    return [apply(PAIR, g, x), total(apply(PAIR, relu(x), g)), total(relu(g))]


def test_a_gradient_that_others_read_is_kept() -> None:
    (region,) = regions(after_gradient(masked))
    assert region.is_kept and region.core.op.name == "Conv2dInputGradient"
    assert [node.op.name for node in sums_in(region).reductions.values()] == ["Reduce", "Reduce"]
    assert not sums_in(region).stored
    assert sums_in(region).body.inputs[0] is region.core.output


def test_a_gradient_that_is_added_up_alone_is_not_kept() -> None:
    def build(t: Any, x: Any, y: Any) -> Any:
        summed = apply(PAIR, gradient_of(t, x, y), x)
        return [summed, total(summed)]

    (region,) = regions(after_gradient(build))
    assert not region.is_kept
    assert [value.shape for value in sums_in(region).stored.values()] == [X]


def test_of_two_gradients_one_is_computed_with_the_sums() -> None:
    def build(t: Any, x: Any, y: Any) -> Any:
        return [total(apply(PAIR, gradient_of(t, x, y), gradient_of(t, x, relu(y))))]

    found = after_gradient(build)
    assert len(regions(found)) == 1
    assert ops_of(found).count("Conv2dInputGradient") == 1


def test_gradients_stay_apart_where_the_device_says_so() -> None:
    class IsolatedJobs(Adding):
        def refuse_fusion(self, region: Region) -> str | None:
            is_gradient = isinstance(region, FusedGradient)
            return "it adds nothing up" if is_gradient else super().refuse_fusion(region)

    context = Context(IsolatedJobs())
    assert not regions(after_gradient(masked, context))
    assert any("it adds nothing up" in note for note in context.notes.values())


def test_sweeps_of_planes_stay_apart() -> None:
    class Planes(Adding):
        fuses_spatial_sums = True

    def planes(t: Any, x: Any, y: Any) -> Any:
        return [apply(ops.Reduce("sum", (2, 3)), apply(PAIR, gradient_of(t, x, y), x))]

    def numbers(t: Any, x: Any, y: Any) -> Any:
        scale = apply(ops.Reduce("max", (2, 3), True), x)
        return [total(apply(PAIR, gradient_of(t, x, y), scale))]

    for build in (planes, numbers):
        found = after_gradient(build, Context(Planes()))
        assert "FusedSums" in ops_of(found) and not regions(found)


def test_what_depends_on_a_gradient_by_another_path_stays_apart() -> None:
    def build(t: Any, x: Any, y: Any) -> Any:
        g = gradient_of(t, x, y)
        return [total(apply(PAIR, g, conv(t, g, X[1], 3)))]

    assert not regions(after_gradient(build))
