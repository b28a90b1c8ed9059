"""Products of batches of matrices by the emulator: on tensor cores and exact ones."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.product.matmul import (
    TILES,
    candidates,
    print_on_tensor_cores,
    print_product,
)
from minidnn.fusion.product import FusedProduct, shape_of
from minidnn.graph import operators as ops
from minidnn.runtime.arrays import from_bits, to_bits
from tests.cuda.cards import A100, H200
from tests.sampling import some

from .arrays import STORED
from .emulator.run import Emulated, guarded
from .products import DrawnProduct, drawn, factor, product_graph, turned
from .test_budgets import check

SEEDS = range(24)
DTYPES = ("float16", "bfloat16", "float32")
ALL = [(dtype, seed) for dtype in DTYPES for seed in SEEDS]


def launch_of(product: DrawnProduct, tile: int) -> Launch:
    node = product.product
    if node.output.dtype == "float32":
        return print_product(node, H200)[0][0]
    return print_on_tensor_cores(shape_of(node)[0], TILES[tile % len(TILES)])


def compute(
    kernels: Emulated, product: DrawnProduct, launch: Launch, backwards: bool = False
) -> np.ndarray:
    node = product.product
    given = dict(zip(product.graph.inputs, product.inputs, strict=True))
    read = shape_of(node)[1]
    arrays = []
    for value in read:
        bits = to_bits(given[value], value.dtype).ravel()
        arrays.append(guarded(bits.size, bits.dtype)[1])
        arrays[-1][:] = bits
    dtype = node.output.dtype
    whole, y = guarded(node.output.type.size, STORED[dtype])
    before = whole.copy()
    kernels.launch(launch, [*arrays, y], backwards)
    made = y.copy()
    y.view(np.uint8)[:] = 0xFF
    np.testing.assert_array_equal(whole.view(np.uint8), before.view(np.uint8))  # but nothing beside
    return from_bits(made.reshape(node.output.shape), dtype)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    launches = [launch_of(drawn(seed, dtype), seed) for dtype, seed in ALL if is_one(dtype, seed)]
    sources = {launch.source.name: launch.source for launch in launches}
    return Emulated([*sources.values()], tmp_path_factory.mktemp("products"), busy=True)


def is_one(dtype: str, seed: int) -> bool:
    return drawn(seed, dtype).is_integer


def test_most_become_one_node() -> None:
    assert sum(is_one(*each) for each in ALL) > 0.6 * len(ALL)
    kinds = [type(drawn(seed, "float16").product.op) for seed in SEEDS]
    assert kinds.count(FusedProduct) > len(SEEDS) // 2 and ops.MatMul in kinds


@pytest.mark.sampled(4)
@pytest.mark.race
@pytest.mark.parametrize(("dtype", "seed"), [each for each in ALL if is_one(*each)])
def test_drawn_products(dtype: str, seed: int, kernels: Emulated) -> None:
    product = drawn(seed, dtype)
    exact, off = product.expected()
    launch = launch_of(product, seed)
    y = compute(kernels, product, launch)
    assert (np.abs(y - exact) <= off).all()
    np.testing.assert_array_equal(compute(kernels, product, launch, backwards=True), y)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "seed"), [e for e in ALL if is_one(*e)][::3])
def test_infinities_and_nan(dtype: str, seed: int, kernels: Emulated) -> None:
    """They reach the results that they reach in NumPy, and no others."""
    product = drawn(seed, dtype, special=True)
    with np.errstate(all="ignore"):
        exact, off = product.expected()
    y = compute(kernels, product, launch_of(product, seed))
    np.testing.assert_array_equal(np.isnan(y), np.isnan(exact))
    np.testing.assert_array_equal(y[np.isinf(exact)], exact[np.isinf(exact)])
    finite = np.isfinite(exact)
    assert (np.abs(y[finite] - exact[finite]) <= off[finite]).all()


def test_heads_are_read_where_they_lie() -> None:
    """Of attention, whose scores have odd lines, no matrix is moved."""
    heads, last = ops.Transpose((0, 2, 1, 3)), ops.Transpose((0, 1, 3, 2))
    lies = (2, 37, 3, 16)
    before = ([heads, factor(0.25)], [heads, last])
    scores = turned(product_graph((lies, lies), "bfloat16", before), "bfloat16")
    (node,) = scores.nodes
    shape, _ = shape_of(node)
    assert (shape.factor, shape.batch, shape.y.rows) == (0.25, (2, 3), 37)
    assert shape.a.width(8, 16) == shape.b.width(8, 16) == 8 and shape.y.width(8, 37) == 1
    parts = ((2, 3, 37, 37), lies)
    context = turned(product_graph(parts, "bfloat16", ([], [heads]), [heads]), "bfloat16")
    shape, _ = shape_of(context.nodes[0])
    assert len(context.nodes) == 1 and shape.y.rows == 48
    # The gradient of keys: the result's rows follow each other, so operands change places.
    moved = turned(
        product_graph((lies, parts[0]), "bfloat16", ([heads, last], []), [last]), "bfloat16"
    )
    shape, read = shape_of(moved.nodes[0])
    assert (shape.rows, shape.columns, shape.y.columns) == (37, 16, 1)
    assert read == moved.inputs[::-1]


def test_kernels_keep_to_the_budget() -> None:
    """Of attention with 197 tokens: every tile's kernel on a part of the products."""
    heads, last = ops.Transpose((0, 2, 1, 3)), ops.Transpose((0, 1, 3, 2))
    lies, scores = (64, 197, 12, 64), (64, 12, 197, 197)
    for number, (shapes, before, reduction) in enumerate(
        (
            ((lies, lies), ([heads], [heads, last]), []),
            ((scores, lies), ([], [heads]), [heads]),
            ((scores, lies), ([last], [heads]), [heads]),
        )
    ):
        graph = turned(product_graph(shapes, "bfloat16", before, reduction), "bfloat16")
        shape, _ = shape_of(graph.nodes[0])
        launches = [print_on_tensor_cores(shape, tile) for tile in TILES]
        check(some(launches[number::2], 3), H200)
        check([print_on_tensor_cores(shape, candidates(shape, A100)[0])], A100)
