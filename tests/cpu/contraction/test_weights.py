"""Weights are packed as kernels read them: the runner's functions, and what packs weights that
change from run to run, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from minidnn.backends.cpu.compilers.kernels import compile_kernels
from minidnn.backends.cpu.contraction.dot_product.pack import pack_bf16
from minidnn.backends.cpu.contraction.dot_product.scheme import choose_dot_product
from minidnn.backends.cpu.contraction.problem import BlockedView, Problem
from minidnn.backends.cpu.contraction.scheme import Scheme, Tile, split_vectors
from minidnn.backends.cpu.contraction.weights import packed_weights
from minidnn.backends.cpu.contraction.winograd.kernel import transformed_weights
from minidnn.backends.cpu.contraction.winograd.scheme import F2, F4, Transform, WinogradScheme
from minidnn.backends.cpu.execution.buffers import AlignedMemory, Guard
from minidnn.backends.cpu.execution.packing import Packed
from minidnn.backends.cpu.execution.program import BoundKernel, NativeProgram, shared_pool
from minidnn.backends.cpu.isa import AVX512_BF16, ISAS, usable_isas
from minidnn.graph.ir import Constant, Value
from minidnn.graph.types import TensorType
from minidnn.runtime.arrays import to_bits
from minidnn.runtime.operand import Operand

Widths = list[tuple[int, int]]


def problem(groups: int, outputs: int, inputs: int, kernel: int) -> Problem:
    view = BlockedView(inputs, 0, 1, 1, 1, 1)
    pair, none = (kernel, kernel), (0, 0)
    ones = (1, 1)
    return Problem(
        *(1, groups, inputs, outputs, pair, ones, pair, ones, ones, (none, none), view, view, ()),
    )


def tile_of(outputs: int, lanes: int, vectors: int) -> tuple[Tile, Widths]:
    """A tile, and the first output and the outputs of each of its groups."""
    blocks = -(-outputs // lanes)
    wide, narrow = split_vectors(blocks, vectors)
    counts = [vectors] * wide + [vectors - 1] * narrow
    firsts = np.cumsum([0, *counts]) * lanes
    widths = [(int(first), count * lanes) for first, count in zip(firsts, counts, strict=False)]
    return Tile(1, 4, vectors, wide, narrow), widths


def constant(weight: np.ndarray) -> Constant:
    return Constant(TensorType(weight.shape), "weight", weight)


def written(packed: Packed, threads: int) -> np.ndarray:
    """What is written between guard pages, where memory is NaN at first."""
    buffer = AlignedMemory(4 * packed.size, Guard.END)
    array = buffer.array("f4", (packed.size,))
    packed.write(array, packed.weight(), threads)
    assert buffer.stray_write() is None
    return np.array(array)


def written_by_kernel(
    packed: Packed, lanes: int, threads: int, given: np.ndarray | None = None
) -> np.ndarray:
    """The same by what packs weights that change from run to run, of the constant or of these."""
    isa = next(isa for isa in ISAS.values() if isa.lanes == lanes)
    if isa not in usable_isas():
        pytest.skip(f"this processor lacks {isa.name}")
    assert packed.kernel is not None
    (kernel,) = compile_kernels([packed.kernel], isa)
    given = packed.weight() if given is None else given
    buffer = AlignedMemory(4 * packed.size, Guard.END)
    weight = AlignedMemory(given.nbytes, Guard.END)
    weight.array(given.dtype.str, given.shape)[...] = given
    pointers = [buffer.address, *(n.ctypes.data for n in packed.numbers), weight.address]
    region = BoundKernel(kernel, tuple(map(Operand, range(len(pointers)))), packed.tasks)
    NativeProgram([region], len(pointers), pool=shared_pool(threads)).run(pointers)
    assert buffer.stray_write() is None
    return np.array(buffer.array("f4", (packed.size,)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("groups", "outputs", "inputs", "kernel", "block", "packing"),
    [
        (1, 64, 64, 3, 16, "blocks"),
        (1, 35, 40, 3, 16, "blocks"),
        (1, 1000, 700, 1, 16, "blocks"),
        (1, 10, 33, 1, 33, "features"),
        (3, 32, 48, 3, 16, "blocks"),
        (8, 4, 4, 3, 16, "blocks"),
        (4, 4, 4, 3, 16, "rows"),
        (8, 4, 2, 3, 16, "rows"),
        (1, 20, 3, 7, 1, "rows"),
        (1, 5, 1, 11, 1, "rows"),
        (1, 24, 16, 3, 16, "rows"),
    ],
)
@pytest.mark.together
def test_pairs_of_weights(
    groups: int, outputs: int, inputs: int, kernel: int, block: int, packing: str, threads: int
) -> None:
    """What packs them in each run writes what is packed of constants."""
    channels = groups * inputs
    view = BlockedView(channels, 0, 64 * block, block, 8 * block, block, "bfloat16")
    if packing == "features":
        view = BlockedView(inputs, 0, 0, inputs, 0, inputs, "bfloat16")
    made = replace(problem(groups, outputs, inputs, kernel), source=view, factors="bfloat16")
    scheme = choose_dot_product(made, AVX512_BF16, threads)
    assert scheme.packing == packing and (scheme.merged > 1) == (groups > 3)
    shape = (groups * outputs, inputs, kernel, kernel)
    weight = np.random.default_rng(0).standard_normal(shape, np.float32)
    bits = to_bits(weight, "bfloat16")
    known = pack_bf16(Constant(TensorType(shape, "bfloat16"), "weight", weight), scheme)
    packed = pack_bf16(Value(TensorType(shape, "bfloat16"), "weight"), scheme)
    assert isinstance(packed, Packed)
    found = written_by_kernel(packed, 16, threads, bits)
    np.testing.assert_array_equal(found.view(np.uint16), np.asarray(known()).reshape(-1))


def in_order(terms: np.ndarray, unit: int) -> Iterator[np.ndarray]:
    """(O, I, taps), by term of the sum: blocks of ``unit`` inputs, in each taps, then inputs."""
    for begin in range(0, terms.shape[1], unit):
        block = terms[:, begin : begin + unit]
        for tap in range(terms.shape[2]):
            yield from block[:, :, tap].T


@pytest.mark.sampled(3)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(
    ("groups", "outputs", "inputs", "kernel", "unit", "vectors"),
    [
        (1, 64, 64, 3, 16, 2),
        (1, 33, 21, 3, 8, 2),
        (1, 100, 700, 1, 16, 4),
        (1, 1000, 130, 1, 8, 4),
        (1, 5, 3, 11, 1, 1),
        (3, 20, 17, 3, 16, 2),
        (2, 7, 9, 5, 3, 1),
        (1, 1, 1, 1, 1, 1),
    ],
)
@pytest.mark.together
def test_weights_in_the_order_of_the_sum(
    groups: int, outputs: int, inputs: int, kernel: int, unit: int, vectors: int, lanes: int,
    threads: int,
) -> None:  # fmt: skip
    tile, widths = tile_of(outputs, lanes, vectors)
    scheme = Scheme(problem(groups, outputs, inputs, kernel), lanes, tile, 1, "blocks", unit, 0)
    shape = (groups * outputs, inputs, kernel, kernel)
    weight = np.random.default_rng(0).standard_normal(shape, np.float32)

    expected: list[np.ndarray] = []
    for terms in weight.reshape(groups, outputs, inputs, -1):
        for first, width in widths:
            rows = np.zeros((width, inputs, kernel**2), np.float32)
            rows[: max(0, outputs - first)] = terms[first : first + width]
            expected += in_order(rows, inputs if kernel == 1 else unit)
    packed = packed_weights(constant(weight), scheme)
    np.testing.assert_array_equal(written(packed, threads), np.concatenate(expected))
    np.testing.assert_array_equal(packed(), np.concatenate(expected))
    found = written_by_kernel(packed, lanes, threads)
    np.testing.assert_array_equal(found, np.concatenate(expected))


def test_weights_that_do_not_lie_as_they_are_counted() -> None:
    tile, _ = tile_of(32, 8, 2)
    scheme = Scheme(problem(1, 32, 24, 1), 8, tile, 1, "none", 8, 0)
    weight = np.random.default_rng(0).standard_normal((24, 64), np.float32).T[::2]
    found = packed_weights(constant(weight), scheme)()
    np.testing.assert_array_equal(
        found, packed_weights(constant(np.ascontiguousarray(weight)), scheme)()
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("local", [True, False], ids=["local", "spread"])
@pytest.mark.parametrize("transform", [F2, F4], ids=lambda transform: transform.name)
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 64), (35, 21), (257, 40), (3, 130), (48, 1)])
@pytest.mark.together
def test_transformed_weights(
    outputs: int, inputs: int, transform: Transform, local: bool, lanes: int, threads: int
) -> None:
    tile, widths = tile_of(outputs, lanes, 2)
    scheme = WinogradScheme(problem(1, outputs, inputs, 3), lanes, transform, tile, 4, local)
    weight = np.random.default_rng(0).standard_normal((outputs, inputs, 3, 3), np.float32)

    g = transform.weights
    parts = []
    for first, width in widths:
        rows = np.zeros((width, inputs, 3, 3))
        rows[: max(0, outputs - first)] = weight[first : first + width]
        made = np.einsum("ar,oirs,bs->abio", g, rows, g)
        parts.append(made.reshape(scheme.matrices, -1))
    expected = np.concatenate([p.ravel() for p in parts] if local else parts, axis=-1).ravel()
    packed = transformed_weights(constant(weight), scheme)
    found = written(packed, threads)
    np.testing.assert_array_equal(written_by_kernel(packed, lanes, threads), found)
    # Sums in float64 in another order: at most the last bit of a float32 differs.
    np.testing.assert_allclose(found, expected, rtol=2e-7, atol=1e-12)
    assert np.count_nonzero(found != expected.astype(np.float32)) <= 1 + found.size // 1000
