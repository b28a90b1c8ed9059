"""by_image: which runs of nodes are computed image after image, and what memory they need."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from minidnn.backends.cpu.isa import AVX512
from minidnn.backends.cpu.target import CpuTarget, device_for
from minidnn.fusion.one_image import one_image
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.liveness import group_lifetimes, lifetimes, storage_roots
from minidnn.graph.trace import apply
from minidnn.passes import by_image as module
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.memory import plan_groups, plan_memory
from tests.passes.build import conv, graph_of, join, linear, max_pool, relu, scale

X = (4, 16, 32, 32)


def context(shared: int = 1 << 20, threads: int = 2, **options) -> Context:
    """A CPU with a small shared cache, in which these graphs do not fit."""
    device = replace(device_for(AVX512, threads), shared_bytes=shared)
    return Context(CpuTarget(device, 16), **options)


def groups(graph: Graph) -> list[list[str]]:
    return [[node.name for node in graph.nodes[g.start : g.stop]] for g in graph.groups]


def chain(t, x: Value) -> Value:
    """Convolutions of 1x1, bound by memory, and a linear layer at the end."""
    for _ in range(3):
        x = relu(conv(t, x, 16))
    return linear(t, apply(ops.Flatten(), max_pool(x, 2, 2, 0)), 3)


def test_what_lies_between_memory_and_a_linear_layer() -> None:
    graph = optimize(graph_of(chain, X), context(), verify=True)
    assert groups(graph) == [["x0.NCHW16c", "relu", "relu.1", "relu.2", "maxpool2d"]]
    roots = storage_roots(graph)
    inner = {life.value.name: life for life in group_lifetimes(graph, graph.groups[0])}
    assert list(inner) == ["x0.NCHW16c", "relu", "relu.1", "relu.2"]
    assert all(life.bytes == 16 * 32 * 32 * 4 for life in inner.values()), "of one image"
    assert plan_groups(graph).bytes == 2 * 16 * 32 * 32 * 4
    whole = {life.value: life for life in lifetimes(graph)}
    assert not {roots[v] for v in graph.nodes[0].outputs} & set(whole)
    pooled = whole[roots[graph.node("maxpool2d").output]]
    assert (pooled.first, pooled.bytes) == (0, 4 * 16 * 16 * 16 * 4), "from the group's beginning"
    assert plan_memory(graph).bytes < plan_memory(optimize(graph_of(chain, X))).bytes


def test_what_a_group_reads_of_a_batch_lives_to_its_end() -> None:
    def build(t, x):
        y = linear(t, x, 32)  # of rank 4, but for whole batches only
        for _ in range(3):
            y = relu(conv(t, y, 16))
        return y

    graph = optimize(graph_of(build, X), context())
    (group,) = graph.groups
    found = [life for life in lifetimes(graph) if life.first < group.start]
    assert found and all(life.last in (group.start - 1, group.stop - 1) for life in found)
    assert any(life.last == group.stop - 1 for life in found)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, 16, 32, 32), {}),
        ((4, 16, 32, 32), {"threads": 8}),
        ((4, 16, 32, 32), {"strategy": "layers"}),
        ((4, 16, 32, 32), {"strategy": "contractions"}),
        ((4, 16, 32, 32), {"shared": 64 << 20}),
        ((4, 16, 32, 32), {"shared": 100 << 10}),
        ((4, 16, 32, 32), {"shared": 0}),
    ],
    ids=[
        "one image",
        "more workers than images",
        "layers",
        "contractions",
        "all fits the cache",
        "an image does not fit the cache",
        "no such cache",
    ],
)
def test_refusals(shape, options) -> None:
    assert groups(optimize(graph_of(chain, shape), context(**options))) == []


def test_other_devices_compute_whole_batches() -> None:
    assert groups(optimize(graph_of(chain, X))) == []


def test_values_that_are_no_batches_are_refused() -> None:
    def build(t, x, y):
        return relu(conv(t, apply(ops.Add(), relu(x), y), 16))

    assert groups(optimize(graph_of(build, X, X), context())) != []
    single = optimize(graph_of(build, X, (1, *X[1:])), context())
    assert all("add" not in name for names in groups(single) for name in names)


def test_fuel() -> None:
    graph = graph_of(chain, X)
    everything = context()
    optimize(graph, everything)
    assert (
        everything.rewrites[-1].description == "compute x0.NCHW16c to maxpool2d image after image"
    )
    less = optimize(graph, context(fuel=len(everything.rewrites) - 1))
    assert groups(less) == []


def branches(t, x: Value) -> Value:
    for size in (16, 64, 16):
        y = conv(t, relu(scale(t, x)), size)
        x = join(y, conv(t, max_pool(y), 16, 3))
    return conv(t, x, 512, 3)


@pytest.mark.parametrize("shared", [200 << 10, 400 << 10, 800 << 10, 1 << 20, 2 << 20])
@pytest.mark.parametrize("build", [chain, branches])
def test_the_runs_are_the_best_there_are(build, shared: int) -> None:
    given = context(shared)
    graph = optimize(graph_of(build, X), given)
    costs = [module._cost(graph, node, X[0], given) for node in graph.nodes]
    uses = module._uses(graph, costs)
    device = given.target.device
    runs = {
        (first, first + 1 + k): seconds
        for first in range(len(costs))
        for k, seconds in enumerate(module._savings(costs, uses, first, device))
        if k and seconds > 0
    }
    best = 0.0
    for count in range(5):
        for chosen in combinations(runs, count):
            if all(a[1] <= b[0] for a, b in zip(sorted(chosen), sorted(chosen)[1:], strict=False)):
                best = max(best, sum(runs[run] for run in chosen))
    found = sum(runs[g.start, g.stop] for g in graph.groups)
    assert found == pytest.approx(best, abs=1e-15)


def test_one_image_has_the_same_layouts_and_placements() -> None:
    graph = optimize(graph_of(branches, X), context())
    group = max(graph.groups, key=len)
    nodes = graph.nodes[group.start : group.stop]
    small, of = one_image(graph, nodes)
    assert [str(node.op) for node in small.nodes] == [str(node.op) for node in nodes]
    for node, twin in zip(nodes, small.nodes, strict=True):
        for value, image in zip(node.outputs, twin.outputs, strict=True):
            assert of[image] is value
            assert image.shape == (1, *value.shape[1:])
            assert small.layouts.get(image) == graph.layouts.get(value)
            place, own = graph.placements.get(value), small.placements.get(image)
            assert (place is None) == (own is None)
            if place is not None and own is not None:
                assert (of[own.buffer], own.channel) == (place.buffer, place.channel)


def test_a_reordered_graph_has_no_groups() -> None:
    graph = optimize(graph_of(chain, X), context())
    assert graph.groups and not graph.annotated(nodes=list(graph.nodes)).groups
    assert graph.annotated(layouts={}).groups == graph.groups
    assert isinstance(graph.nodes[0], Node)
