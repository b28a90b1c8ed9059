"""Products of batches of matrices on a GPU: every tile, and attention fused and unfused."""

from __future__ import annotations

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.cuda.functions import load_launches
from minidnn.backends.cuda.machine import machine_of
from minidnn.backends.cuda.product.matmul import TILES, print_on_tensor_cores
from minidnn.fusion.product import shape_of
from minidnn.gradients.reverse import pullback
from minidnn.graph.evaluate import evaluate
from minidnn.graph.types import rounded_to
from minidnn.runtime.arrays import from_bits, to_bits

from .arrays import STORED
from .products import attention_graph, drawn, packed_graph, with_gradients

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("seed", range(12))
def test_every_tile(seed: int, dtype: str, special: bool) -> None:
    cupy = pytest.importorskip("cupy")
    product = drawn(seed, dtype, special)
    if not product.is_integer:
        pytest.skip("a transpose stays")
    with np.errstate(all="ignore"):
        exact, off = product.expected()
    shape, read = shape_of(product.product)
    launches = [print_on_tensor_cores(shape, tile) for tile in TILES]
    given = dict(zip(product.graph.inputs, product.inputs, strict=True))
    arrays = [cupy.asarray(to_bits(given[value], dtype)) for value in read]
    made = product.product.output
    found = []
    for loaded in load_launches(launches, machine_of(0).arch):
        y = cupy.full(made.type.size, 7, STORED[dtype])
        loaded.bind([*(x.data.ptr for x in arrays), y.data.ptr])()
        found.append(from_bits(cupy.asnumpy(y).reshape(made.shape), dtype))
    finite = np.isfinite(exact)
    for y in found:
        np.testing.assert_array_equal(np.isnan(y), np.isnan(exact))
        assert (np.abs(y[finite] - exact[finite]) <= off[finite]).all()
        np.testing.assert_array_equal(y, found[0])  # whatever the tile is


Size = tuple[int, int, int, int, int]
#: Batch, queries, keys, heads, features of a head.
ATTENTION: tuple[Size, ...] = (
    (3, 17, 17, 4, 10),
    (2, 50, 33, 1, 64),
    (1, 1, 5, 3, 8),
    (2, 197, 197, 3, 64),
)
OFF = {"float32": 1e-5, "tf32": 4e-3, "float16": 6e-3, "bfloat16": 5e-2}


@pytest.mark.parametrize("precision", OFF)
@pytest.mark.parametrize("size", ATTENTION)
def test_attention_and_its_gradient(size: Size, precision: str) -> None:
    """Fused and unfused, beside float64."""
    graph = attention_graph(*size)
    random = np.random.default_rng(sum(size))
    dtype = "float32" if precision == "tf32" else precision
    graphs = [graph, with_gradients(graph), pullback(graph, graph.inputs)]
    batch, queries, keys, heads, features = size
    if queries == keys:
        graphs.append(with_gradients(packed_graph(batch, queries, heads, features)))
    for each in graphs:
        shapes = [value.shape for value in each.inputs]
        given = [rounded_to(dtype, random.standard_normal(s)).astype(np.float32) for s in shapes]
        expected = evaluate(each, given, "float64")
        for strategy in ("model", "layers"):
            run = md.compile(each, device="cuda", precision=precision, strategy=strategy)
            found = run(*given)
            found = [found] if len(expected) == 1 else found
            for got, exact in zip(found, expected, strict=True):
                off = np.abs(np.asarray(got, np.float64) - exact).max()
                assert off <= OFF[precision] * np.abs(exact).max(), (strategy, off)
