"""batch_tiling: which runs of nodes are computed image after image, and what memory they need."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from minidnn.backends.cpu.isa import AVX512
from minidnn.backends.cpu.target import CpuTarget, device_for
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import apply
from minidnn.memory import (
    Annotations,
    group_lifetimes,
    lifetimes,
    plan_groups,
    plan_memory,
    storage_roots,
)
from minidnn.passes import batch_tiling as module
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from tests.passes.build import conv, graph_of, join, linear, max_pool, relu, scale

X = (4, 16, 32, 32)


def context(shared: int = 1 << 20, threads: int = 2, **options) -> Context:
    """A CPU with a small shared cache, in which these graphs do not fit."""
    device = replace(device_for(AVX512, threads), shared_bytes=shared)
    return Context(CpuTarget(device, 16), **options)


def grouped(graph: Graph, given: Context, verify: bool = False) -> tuple[Graph, Annotations]:
    """The optimized graph, and what passes found out about it."""
    return optimize(graph, given, verify=verify), given.annotations


def groups(graph: Graph, given: Context | None = None) -> list[list[str]]:
    """The names of the nodes of each group that are found in a graph."""
    _, found = grouped(graph, given or Context())
    return [[node.name for node in group] for group in found.groups]


def chain(t, x: Value) -> Value:
    """Convolutions of 1x1, bound by memory, and a linear layer at the end."""
    for _ in range(3):
        x = relu(conv(t, x, 16))
    return linear(t, apply(ops.Flatten(), max_pool(x, 2, 2, 0)), 3)


def test_what_lies_between_memory_and_a_linear_layer() -> None:
    graph, found = grouped(graph_of(chain, X), context(), verify=True)
    (group,) = found.groups
    assert [node.name for node in group] == ["x0.NCHW16c", "relu", "relu.1", "relu.2", "maxpool2d"]
    roots = storage_roots(graph, found)
    inner = {life.value.name: life for life in group_lifetimes(graph, found, group)}
    assert list(inner) == ["x0.NCHW16c", "relu", "relu.1", "relu.2"]
    assert all(life.bytes == 16 * 32 * 32 * 4 for life in inner.values()), "of one image"
    assert plan_groups(graph, found).bytes == 2 * 16 * 32 * 32 * 4
    whole = {life.value: life for life in lifetimes(graph, found)}
    assert not {roots[v] for v in graph.nodes[0].outputs} & set(whole)
    pooled = whole[roots[graph.node("maxpool2d").output]]
    assert (pooled.first, pooled.bytes) == (0, 4 * 16 * 16 * 16 * 4), "from the group's beginning"
    other = plan_memory(*grouped(graph_of(chain, X), Context()))
    assert plan_memory(graph, found).bytes < other.bytes


def test_what_a_group_reads_of_a_batch_lives_to_its_end() -> None:
    def build(t, x):
        y = linear(t, x, 32)  # of rank 4, but for whole batches only
        for _ in range(3):
            y = relu(conv(t, y, 16))
        return y

    graph, annotations = grouped(graph_of(build, X), context())
    (group,) = annotations.groups
    first, last = (graph.position[node] for node in (group[0], group[-1]))
    found = [life for life in lifetimes(graph, annotations) if life.first < first]
    assert found and all(life.last in (first - 1, last) for life in found)
    assert any(life.last == last for life in found)


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
    assert groups(graph_of(chain, shape), context(**options)) == []


def test_other_devices_compute_whole_batches() -> None:
    assert groups(graph_of(chain, X)) == []


def test_values_that_are_no_batches_are_refused() -> None:
    def build(t, x, y):
        return relu(conv(t, apply(ops.Add(), relu(x), y), 16))

    assert groups(graph_of(build, X, X), context()) != []
    single = groups(graph_of(build, X, (1, *X[1:])), context())
    assert all("add" not in name for names in single for name in names)


def test_fuel() -> None:
    graph = graph_of(chain, X)
    everything = context()
    optimize(graph, everything)
    assert (
        everything.rewrites[-1].description == "compute x0.NCHW16c to maxpool2d image after image"
    )
    assert groups(graph, context(fuel=len(everything.rewrites) - 1)) == []


def branches(t, x: Value) -> Value:
    for size in (16, 64, 16):
        y = conv(t, relu(scale(t, x)), size)
        x = join(y, conv(t, max_pool(y), 16, 3))
    return conv(t, x, 512, 3)


@pytest.mark.parametrize("shared", [200 << 10, 400 << 10, 800 << 10, 1 << 20, 2 << 20])
@pytest.mark.parametrize("build", [chain, branches])
def test_the_runs_are_the_best_there_are(build, shared: int) -> None:
    given = context(shared)
    graph, annotations = grouped(graph_of(build, X), given)
    costs = [module._cost(node, X[0], given) for node in graph.nodes]
    uses = module._uses(graph, annotations, costs)
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
    first = [graph.position[group[0]] for group in annotations.groups]
    lengths = map(len, annotations.groups)
    found = sum(runs[i, i + n] for i, n in zip(first, lengths, strict=True))
    assert found == pytest.approx(best, abs=1e-15)
