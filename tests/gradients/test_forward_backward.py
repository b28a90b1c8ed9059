"""A graph and its gradient as two graphs, joined again, are the gradient of the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.gradients.forward_backward import ForwardBackward
from minidnn.gradients.reverse import pullback
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType


def network() -> Graph:
    """Of an image a map, behind a product that two results are computed of, and a place."""
    with tracing("network") as trace:
        x = trace.input(TensorType((2, 3, 6, 6)), "x")
        kernel = trace.input(TensorType((4, 3, 3, 3)), "kernel")
        scale = trace.input(TensorType((4, 1, 1)), "scale")
        unused = trace.input(TensorType((4,)), "unused")
        y: Any = apply(ops.Conv2d(), x, kernel)
        y = apply(ops.ReLU(), y * scale)
        means = y.mean((2, 3))
        place = apply(ops.ArgMax(1), means)
        return trace.graph([y, means, place, unused])


def two_products() -> Graph:
    """What the second is of is made, element by element, of what the first gives."""
    with tracing("products") as trace:
        x = trace.input(TensorType((2, 3, 6, 6)), "x")
        kernel = trace.input(TensorType((4, 3, 3, 3)), "kernel")
        scale = trace.input(TensorType((4, 1, 1)), "scale")
        other = trace.input(TensorType((5, 4, 2, 2)), "other")
        y: Any = apply(ops.Conv2d(), x, kernel)
        return trace.graph([apply(ops.Conv2d(), apply(ops.Tanh(), y * scale), other)])


def joined() -> Graph:
    """What the last product is of is made, element by element, of a join of what others give."""
    with tracing("joined") as trace:
        x = trace.input(TensorType((2, 3, 6, 6)), "x")
        kernel = trace.input(TensorType((4, 3, 3, 3)), "kernel")
        scale = trace.input(TensorType((8, 1, 1)), "scale")
        other = trace.input(TensorType((5, 8, 2, 2)), "other")
        y: Any = apply(ops.Conv2d(), x, kernel)
        y = apply(ops.Concat(1), y, apply(ops.Conv2d(), x, kernel * 2))
        return trace.graph([apply(ops.Conv2d(), apply(ops.Tanh(), y * scale), other)])


def arrays_of(graph: Graph) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal(value.shape).astype(np.float32) for value in graph.inputs]


def run(graph: Graph, arrays: Any) -> list[np.ndarray]:
    found = md.compile(graph, device="reference", precision="float64")(*arrays)
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("present", [(0, 1), (0,), (1,)])
def test_halves(present: tuple[int, ...]) -> None:
    graph = network()
    halves = ForwardBackward(graph, (1, 2, 3), 3)
    assert halves.floating == (0, 1)
    backward = halves.backward_of(present)
    assert backward.differentiated == (1, 2)

    arrays = arrays_of(graph)
    results = run(halves.forward, arrays)
    random = np.random.default_rng(1)
    seeds = [random.standard_normal(graph.outputs[place].shape) for place in present]
    given = [arrays[place] for place in backward.given]
    found = run(backward.graph, [*given, *(results[place] for place in backward.kept), *seeds])

    with tracing("loss") as trace:
        trace.adopt(graph)
        weights = [trace.input(graph.outputs[p].type, f"weight{p}") for p in present]
        terms: Any = [(graph.outputs[p] * w).sum() for p, w in zip(present, weights, strict=True)]
        whole = trace.graph([sum(terms[1:], terms[0])])
    whole = md.gradient(whole, whole.outputs[0], of=["kernel", "scale"])
    for one, other in zip(found, run(whole, [*arrays, *seeds])[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_what_is_kept_lies_in_memory_anyway() -> None:
    halves = ForwardBackward(network(), (1, 2))
    own = len(halves.graph.outputs)
    (kept,) = halves.forward.outputs[own:]
    assert kept.name == "conv2d"  # the product and the mask are computed again
    assert halves.backward.given == (0, 2)


@pytest.mark.parametrize(
    ("make", "own", "joined_names"),
    [(two_products, ["conv2d"], ["conv2d"]), (joined, ["conv2d", "conv2d.1"], ["concat"])],
)
def test_what_a_product_reads_is_computed_again(
    make: Callable[[], Graph], own: list[str], joined_names: list[str]
) -> None:
    """Of the product before, or of a join of such, which is kept then."""
    graph, found = make(), []
    arrays = arrays_of(graph)
    seed = np.random.default_rng(1).standard_normal(graph.outputs[0].shape)
    for compute_again in (False, True):
        halves = ForwardBackward(graph, (1, 2, 3), compute_again=compute_again)
        backward = halves.backward
        kept = halves.forward.outputs[len(graph.outputs) :]
        names = joined_names if compute_again else own
        assert [value.name for value in kept] == [*names, "tanh"]
        readers = backward.graph.readers[backward.graph.inputs[len(backward.given) + len(kept) - 1]]
        kinds = {node.op.kind for node in readers}
        assert ("elementwise" in kinds) is not compute_again and "contraction" in kinds
        results = run(halves.forward, arrays)
        given = [arrays[place] for place in backward.given]
        read = [results[place] for place in backward.kept]
        found.append(run(backward.graph, [*given, *read, seed]))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("moved", [False, True])
def test_sums_of_which_rows_are_normalized_are_kept(moved: bool) -> None:
    """They are not added up again, each of all before."""
    sums = []
    with tracing("sums") as trace:
        y: Any = trace.input(TensorType((2, 4, 5, 6) if moved else (2, 5, 6, 4)), "x")
        scales = [trace.input(TensorType((4,)), f"scale{i}") for i in range(3)]
        matrix = trace.input(TensorType((4, 4)), "matrix")
        for scale in scales:
            rows = apply(ops.Transpose((0, 2, 3, 1)), y) if moved else y
            z = apply(ops.Linear(), apply(ops.LayerNorm(1), rows, scale, scale), matrix)
            y = y + (apply(ops.Transpose((0, 3, 1, 2)), z) if moved else z)
            sums.append(y.name)
        rows = apply(ops.Transpose((0, 2, 3, 1)), y) if moved else y
        graph = trace.graph([apply(ops.LayerNorm(1), rows, scales[0], scales[0])])
    of = range(1, 5)
    halves, arrays = ForwardBackward(graph, of), arrays_of(graph)
    kept = {value.name for value in halves.forward.outputs[1:]}
    assert kept >= set(sums)
    assert kept.isdisjoint(node.name for node in halves.backward.graph.nodes)
    backward, seed = halves.backward, np.random.default_rng(1).standard_normal((2, 5, 6, 4))
    results = run(halves.forward, arrays)
    given = [arrays[p] for p in backward.given] + [results[p] for p in backward.kept]
    whole = pullback(graph, [graph.inputs[place] for place in of])
    expected = run(whole, [*arrays, seed])
    for one, other in zip(run(backward.graph, [*given, seed]), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def test_nothing_is_kept_for_nothing() -> None:
    halves = ForwardBackward(network(), ())
    assert halves.backward.differentiated == ()
    assert halves.forward.outputs == halves.graph.outputs


@pytest.mark.parametrize("present", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("kernel", [3, 23])
def test_places_of_maxima_are_found_forwards(kernel: int, present: tuple[int, ...]) -> None:
    """For all results, and for some of them, whose gradients have windows of their own."""
    with tracing("maxima") as trace:
        x = trace.input(TensorType((2, 3, 24, 24)), "x")
        scale = trace.input(TensorType((3, 1, 1)), "scale")
        y: Any = apply(ops.MaxPool2d((kernel, kernel), (1, 1)), apply(ops.Tanh(), x * scale))
        graph = trace.graph([y, y * 2.0])
    halves = ForwardBackward(graph, (0, 1))
    places = [node for node in halves.forward.nodes if node.op.name == "Place"]
    assert len(places) == (1 if kernel == 3 else 2)
    backward = halves.backward_of(present)
    assert all(node.op.name != "Place" for node in backward.graph.nodes)
    arrays = arrays_of(graph)
    results = run(halves.forward, arrays)
    seeds = [np.ones(graph.outputs[place].shape, np.float32) for place in present]
    given = [arrays[p] for p in backward.given] + [results[p] for p in backward.kept]
    found = run(backward.graph, [*given, *seeds])
    times = sum((1.0, 2.0)[place] for place in present)
    inner = np.tanh(arrays[0].astype(np.float64) * arrays[1])
    expected = np.zeros_like(inner)
    for row in range(24 - kernel + 1):
        for column in range(24 - kernel + 1):
            tile = inner[:, :, row : row + kernel, column : column + kernel].reshape(2, 3, -1)
            at = tile.argmax(2)
            for image, channel in np.ndindex(2, 3):
                down, right = divmod(int(at[image, channel]), kernel)
                expected[image, channel, row + down, column + right] += times
    expected *= 1 - inner**2
    np.testing.assert_allclose(found[0], expected * arrays[1], 1e-6, 1e-6)
    by_scale = (expected * arrays[0]).sum((0, 2, 3))[:, None, None]
    np.testing.assert_allclose(found[1], by_scale, 1e-6, 1e-5)


def joins(way: str) -> Graph:
    """Layers that read joins of joins, of which the last is kept for all."""
    with tracing("joins") as trace:
        x = trace.input(TensorType((2, 3, 5, 6)), "x")
        kernels = [trace.input(TensorType((c, 3, 3, 3)), f"kernel{c}") for c in (5, 2, 1)]
        last = trace.input(TensorType((4, 8, 1, 1)), "last")
        first, second, third = (
            apply(ops.Conv2d(padding=((1, 1), (1, 1))), x, kernel) for kernel in kernels
        )
        one: Any = apply(ops.Concat(1), first, second)
        two: Any = apply(ops.Concat(1), one, third)
        y: Any = apply(ops.Conv2d(), apply(ops.Sigmoid(), two * two), last)
        results = [y, (one * one).mean((2, 3))]
        if way == "a part is a result":
            results.append(second)
        if way == "two joins begin with one":
            other: Any = apply(ops.Concat(1), one, third * third, first)
            results.append((other * other).mean((2, 3)))
        if way == "a value is joined twice":
            other = apply(ops.Concat(1), one, first)
            results.append((other * other).mean((2, 3)))
        return trace.graph(results)


@pytest.mark.parametrize(
    ("way", "is_joined"),
    [
        ("plain", True),
        ("a part is a result", False),
        ("two joins begin with one", True),
        ("a value is joined twice", True),
    ],
)
def test_joins_are_kept_in_place_of_what_they_join(way: str, is_joined: bool) -> None:
    """Whichever results there are gradients by."""
    graph = joins(way)
    arrays, random = arrays_of(graph), np.random.default_rng(1)
    seeds = [random.standard_normal(value.shape) for value in graph.outputs]
    plain = ForwardBackward(graph, range(1, 5))
    halves = ForwardBackward(graph, range(1, 5), compute_again=True)
    kept = [value.name for value in halves.forward.outputs[len(graph.outputs) :]]
    assert any("concat" in name for name in kept) is is_joined
    if is_joined:
        assert not {"conv2d", "conv2d.1", "conv2d.2"} & {*kept}
    for present in [(0,), (1,), tuple(range(len(graph.outputs)))]:
        found = []
        for each in (plain, halves):
            backward = each.backward_of(present)
            results = run(each.forward, arrays)
            given = [arrays[place] for place in backward.given]
            read = [results[place] for place in backward.kept]
            found.append(run(backward.graph, [*given, *read, *(seeds[p] for p in present)]))
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
