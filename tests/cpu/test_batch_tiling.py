"""Groups of nodes that are computed image after image: the bits of whole batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu import backend
from minidnn.backends.cpu.isa import AVX512, Isa, best_isa, with_int8
from minidnn.backends.cpu.one_image import one_image
from minidnn.backends.cpu.target import CpuTarget, device_for
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import apply
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.plan import make_plan
from tests.passes.build import conv, graph_of, inputs_of, join, linear, max_pool, relu, scale

X = (6, 3, 40, 40)


def small_cache(monkeypatch: pytest.MonkeyPatch, shared: int = 1700 << 10) -> None:
    def device(isa: Isa, threads: int) -> Any:
        return replace(device_for(isa, threads), shared_bytes=shared)

    monkeypatch.setattr(backend, "device_for", device)


def dense(t, x: Value) -> Value:
    """A dense block whose operands lie in one buffer, a residual, odd channels, a copy, a stack."""
    y = max_pool(relu(conv(t, x, 32, 3)), 3, 2)
    for _ in range(2):
        y = join(y, conv(t, relu(conv(t, relu(scale(t, y)), 32)), 16, 3))
    z = apply(ops.Add(), conv(t, y, 64, 3), y)
    z = join(conv(t, relu(z), 7), z, conv(t, relu(z), 16))  # 7: not a whole vector, is copied
    z = apply(ops.AdaptiveAvgPool2d((3, 3)), relu(scale(t, z)))
    return linear(t, apply(ops.Flatten(), conv(t, z, 8)), 5)


@pytest.fixture
def graph() -> Graph:
    return graph_of(dense, X)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.together(3)
def test_bits_do_not_depend_on_it(
    monkeypatch: pytest.MonkeyPatch, real_ispc: str, graph: Graph, threads: int, guarded: bool
) -> None:
    inputs = inputs_of(graph)
    expected = md.compile(graph, device="cpu", strategy="layers", threads=threads)(*inputs)
    small_cache(monkeypatch)
    exe = md.compile(graph, device="cpu", threads=threads, guarded=guarded)
    assert sum(map(len, exe.plan.annotations.groups)) >= 8
    for _ in range(3):
        np.testing.assert_array_equal(exe(*inputs), expected)


@pytest.mark.skipif(
    with_int8(best_isa()) == best_isa(), reason="this processor packs bytes for all images at once"
)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.together(3)
def test_bytes(monkeypatch: pytest.MonkeyPatch, real_ispc: str, threads: int) -> None:
    """Also groups of few channels, maxima, averages, and sums of two scales."""
    x = md.Input((3, 40, 40))
    y = L.MaxPool2d(2)(L.ReLU()(L.Conv2d(3, 32, 3, padding=1)(x)))
    z = L.Conv2d(32, 32, 3, padding=1, groups=32)(L.ReLU6()(L.Conv2d(32, 32, 1)(y)))
    z = L.Conv2d(32, 32, 1)(L.Conv2d(32, 32, 3, padding=1, groups=4)(z)) + y
    z = L.AvgPool2d(2)(L.Conv2d(32, 40, 3)(z))
    given = np.random.default_rng(0).standard_normal(X, np.float32)
    graph = md.quantize(md.Model(x, L.Flatten()(z)), given, ranges="minmax", device="cpu")
    expected = md.compile(graph, device="cpu", strategy="layers", threads=threads)(given)
    small_cache(monkeypatch, 150 << 10)
    exe = md.compile(graph, device="cpu", threads=threads, guarded=True)
    assert sum(map(len, exe.plan.annotations.groups)) >= 4
    for _ in range(3):
        np.testing.assert_array_equal(exe(given), expected)


def test_times_and_explanation(
    monkeypatch: pytest.MonkeyPatch, real_ispc: str, graph: Graph
) -> None:
    small_cache(monkeypatch)
    exe = md.compile(graph, device="cpu", threads=2)
    profile = exe.profile(*inputs_of(graph), runs=2)
    assert all(region.seconds > 0 for region in profile.regions)
    first = exe.plan.annotations.groups[0]
    assert f"image after image: {first[0].name} to {first[-1].name}" in exe.explain()


@pytest.mark.together(2)
def test_a_group_that_begins_with_several_outputs(
    monkeypatch: pytest.MonkeyPatch, real_ispc: str
) -> None:
    x = md.Input((32, 40, 40))
    y = L.MaxPool2d(3, 1, 1)(x)
    a, b = L.ReLU()(y), L.Tanh()(y)
    outputs = (L.Conv2d(32, 32, 3, padding=1)(a), L.Conv2d(32, 32, 3, padding=1)(b), a)
    network, shape = md.Model(x, outputs), (6, 32, 40, 40)
    given = np.random.default_rng(0).standard_normal(shape, np.float32)
    expected = md.compile(network, shape, device="cpu", strategy="layers", threads=2)(given)
    small_cache(monkeypatch)
    exe = md.compile(network, shape, device="cpu", threads=2, guarded=True)
    assert len(exe.plan.annotations.groups[0][0].outputs) == 2
    for result, right in zip(exe(given), expected, strict=True):
        np.testing.assert_array_equal(result, right)


def test_one_image_has_the_same_layouts_and_placements(graph: Graph) -> None:
    device = replace(device_for(AVX512, 2), shared_bytes=1700 << 10)
    context = Context(CpuTarget(device, 16))
    plan = make_plan(optimize(graph, context), context)
    whole = plan.annotations
    assert whole.placements
    for group in whole.groups:
        small, of = one_image(plan, group)
        assert [str(node.op) for node in small.graph.nodes] == [str(node.op) for node in group]
        for node, twin in zip(group, small.graph.nodes, strict=True):
            for value, image in zip(node.outputs, twin.outputs, strict=True):
                assert of[image] is value and image.shape == (1, *value.shape[1:])
                assert small.layout(image) == plan.layout(value)
                place = small.annotations.place(image)
                assert replace(place, buffer=of[place.buffer]) == whole.place(value)
