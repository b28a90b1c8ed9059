"""The gradient of a convolution for its weight, and for a depthwise one's input: beside float64,
with what is not finite, and the same bits on any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.cpu.compilers.kernels import compile_kernels
from minidnn.backends.cpu.contraction.dot_product.weight_gradient import print_pixel_products
from minidnn.backends.cpu.execution.buffers import AlignedMemory, Guard
from minidnn.backends.cpu.execution.program import BoundKernel, NativeProgram, shared_pool
from minidnn.backends.cpu.isa import AVX512, AVX512_BF16, Isa, why_no_bfloat16
from minidnn.backends.cpu.stage import Workspace
from minidnn.backends.cpu.tensor import Tensor
from minidnn.graph import operators as ops
from minidnn.graph.types import TensorType, rounded_to
from minidnn.layers.activations import OperatorLayer
from minidnn.runtime.operand import Operand

Shape = tuple[int, int, int, int]

#: Input, weight, convolution.
CASES: list[tuple[Shape, Shape, dict[str, Any]]] = [
    ((2, 3, 23, 20), (24, 3, 7, 7), {"stride": (2, 2), "padding": ((3, 3), (3, 3))}),
    ((9, 21, 4, 4), (37, 21, 3, 3), {"padding": ((1, 1), (1, 1))}),
    ((3, 16, 15, 14), (24, 16, 1, 1), {}),
    ((4, 40, 7, 6), (150, 40, 1, 1), {"stride": (2, 2)}),
    (
        (2, 64, 9, 8),
        (32, 32, 3, 3),
        {"groups": 2, "stride": (2, 1), "dilation": (1, 2), "padding": ((0, 1), (2, 1))},
    ),
    ((1, 5, 3, 3), (7, 5, 5, 5), {"dilation": (2, 2), "padding": ((4, 4), (4, 4))}),
    # Depthwise.
    ((3, 40, 17, 15), (40, 1, 3, 3), {"groups": 40, "padding": ((1, 1), (1, 1))}),
    ((2, 5, 14, 9), (5, 1, 5, 5), {"groups": 5, "stride": (2, 2), "padding": ((2, 1), (2, 2))}),
    ((1, 600, 9, 8), (600, 1, 7, 2), {"groups": 600, "padding": ((3, 3), (4, 4))}),
    (
        (2, 16, 4, 30),
        (16, 1, 2, 3),
        {"groups": 16, "stride": (3, 1), "dilation": (2, 4), "padding": ((0, 5), (9, 0))},
    ),
]


#: What else the kernels of bfloat16 tell apart: rows and columns that a stride leaves out, chunks
#: of an image and of several, parts of a batch, many channels, taps of a row of few.
MORE: list[tuple[Shape, Shape, dict[str, Any]]] = [
    ((5, 32, 40, 37), (16, 32, 3, 3), {"padding": ((1, 1), (1, 1))}),
    ((33, 300, 3, 3), (290, 300, 1, 1), {}),
    ((2, 1, 70, 61), (5, 1, 5, 3), {"stride": (1, 3), "dilation": (3, 2)}),
    ((3, 96, 11, 12), (64, 48, 3, 5), {"groups": 2, "stride": (3, 2), "padding": ((2, 0), (0, 3))}),
    ((2, 4, 9, 9), (300, 4, 3, 3), {"padding": ((1, 1), (1, 1))}),
    ((1, 18, 1, 200), (33, 18, 1, 7), {"dilation": (1, 9)}),
    ((2, 16, 3, 1500), (16, 16, 2, 2), {}),
]
BFLOAT16 = why_no_bfloat16(AVX512)


def gradient_of(
    x: Shape, weight: Shape, options: dict[str, Any]
) -> tuple[OperatorLayer, tuple[tuple[int, ...], ...]]:
    """The gradient of a convolution for its weight, and the shapes of its operands."""
    op = ops.Conv2d(**options)
    (output,) = op.infer(TensorType(x), TensorType(weight))
    return OperatorLayer(ops.Conv2dWeightGradient(op, weight[2:])), (x, output.shape)


@pytest.mark.skipif(BFLOAT16 is not None, reason=str(BFLOAT16))
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("x", "weight", "options"), CASES + MORE, ids=str)
def test_bfloat16_as_float64_for_any_number_of_threads(
    x: Shape, weight: Shape, options: dict[str, Any], kind: str
) -> None:
    layer, shapes = gradient_of(x, weight, options)
    random = np.random.default_rng(0)
    given = [
        rounded_to("bfloat16", random.standard_normal(shape).astype(np.float32)) for shape in shapes
    ]
    right = md.compile(layer, shapes, device="reference", precision="float64")
    found, *others = (
        md.compile(
            layer, shapes, threads=n, isa="avx512", device="cpu", precision="bfloat16", guarded=True
        )
        for n in (1, 2, 3)
    )
    assert [node.op for node in found.graph.nodes if node.op == layer.op]
    expected = right(*given)
    for special in (False, True):
        if special:
            given[0][0, 0, -1, 0] = np.nan
            given[0][-1, -1, 0, -1] = np.inf
            given[1][0, 1, 0, 0], given[1][-1, 2, -1, -1] = np.inf, -np.inf
            expected = right(*given)
        result = found(*given)
        for other in others:
            np.testing.assert_array_equal(other(*given), result)
        for test in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(test(result), test(expected))
        finite = np.isfinite(expected)
        most = np.abs(expected[finite]).max(initial=1.0)
        np.testing.assert_allclose(result[finite], expected[finite], 2**-8, 2e-6 * most)


@pytest.mark.parametrize(("x", "weight", "options"), CASES, ids=str)
@pytest.mark.together
def test_as_float64_for_any_number_of_threads(
    x: Shape, weight: Shape, options: dict[str, Any], isa: Isa
) -> None:
    layer, shapes = gradient_of(x, weight, options)
    random = np.random.default_rng(0)
    given = [random.standard_normal(shape, np.float32) for shape in shapes]
    right = md.compile(layer, shapes, device="reference", precision="float64")
    exes = [md.compile(layer, shapes, threads=n, isa=isa.name, device="cpu") for n in (1, 2, 3)]
    assert [node.op for node in exes[0].graph.nodes if node.op == layer.op]
    found, *others = (exe(*given) for exe in exes)
    for other in others:
        np.testing.assert_array_equal(other, found)
    expected = right(*given)
    np.testing.assert_allclose(found, expected, 0, 1e-6 * np.abs(expected).max())
    given[0][0, 0, -1, 0] = np.nan
    given[1][0, 1, 0, 0], given[1][-1, 2, -1, -1] = np.inf, -np.inf
    found, expected = exes[1](*given), right(*given)
    for test in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(test(found), test(expected))


DEPTHWISE: list[tuple[Shape, Shape, dict[str, Any]]] = [
    ((3, 40, 17, 15), (40, 1, 3, 3), {"groups": 40, "stride": (2, 2), "padding": ((1, 1), (1, 1))}),
    ((2, 5, 14, 9), (5, 1, 5, 5), {"groups": 5, "stride": (2, 1), "padding": ((2, 1), (2, 2))}),
    ((1, 33, 9, 30), (33, 1, 2, 3), {"groups": 33, "stride": (1, 3), "dilation": (2, 4)}),
    ((2, 17, 8, 8), (17, 1, 1, 1), {"groups": 17, "stride": (3, 3)}),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("x", "weight", "options"), DEPTHWISE, ids=str)
def test_for_the_input_of_a_depthwise_convolution(
    x: Shape, weight: Shape, options: dict[str, Any], dtype: str, isa: Isa
) -> None:
    if dtype == "bfloat16" and (BFLOAT16 is not None or isa is not AVX512):
        pytest.skip(BFLOAT16 or f"{isa.name} has no bfloat16")
    op = ops.Conv2d(**options)
    (output,) = op.infer(TensorType(x), TensorType(weight))
    layer = OperatorLayer(ops.Conv2dInputGradient(op, x[2:]))
    shapes = (output.shape, weight)
    random = np.random.default_rng(0)
    given = [rounded_to(dtype, random.standard_normal(shape, np.float32)) for shape in shapes]
    right = md.compile(layer, shapes, device="reference", precision="float64")
    exe = md.compile(
        *(layer, shapes), threads=2, isa=isa.name, device="cpu", precision=dtype, guarded=True
    )
    assert [node.op for node in exe.graph.nodes if node.op == layer.op]
    for special in (False, True):
        if special:
            given[0][0, 1, 0, 0], given[0][-1, 2, -1, -1] = np.inf, np.nan
            given[1][3, 0, -1, 0] = -np.inf
        found, expected = exe(*given), right(*given)
        for test in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(test(found), test(expected))
        finite = np.isfinite(expected)
        tolerance = 1e-6 if dtype == "float32" else 2**-8
        np.testing.assert_allclose(found[finite], expected[finite], tolerance, 1e-5)


@pytest.mark.skipif(BFLOAT16 is not None, reason=str(BFLOAT16))
def test_few_channels_in_bfloat16_between_guard_pages() -> None:
    """Neither behind its operands nor before them is anything read."""
    op = ops.Conv2d(padding=((1, 1), (2, 2)))
    layer = ops.Conv2dWeightGradient(op, (3, 5))
    x, gradient = Tensor(3, 9, 8, 1, 216, "bfloat16"), Tensor(8, 9, 8, 16, 1152, "bfloat16")
    staged = print_pixel_products(layer, 2, x, gradient, AVX512_BF16)
    for guard in (Guard.END, Guard.START):
        buffers = [AlignedMemory(2 * size, guard) for size in (2 * 216, 2 * 1152, 8 * 3 * 15)]
        for buffer, size in zip(buffers[:2], (2 * 216, 2 * 1152), strict=True):
            buffer.array("u2", (size,))[:] = 0
        work = AlignedMemory(max(64, staged.workspace_bytes), guard)
        for each in staged.stages:
            kept = [p() if callable(p) else None for p in each.pointers]
            pointers = [
                made.ctypes.data
                if made is not None
                else work.address + p.offset
                if isinstance(p, Workspace)
                else buffers[int(str(p))].address
                for p, made in zip(each.pointers, kept, strict=True)
            ]
            (kernel,) = compile_kernels([each.source], AVX512_BF16)
            region = BoundKernel(kernel, tuple(map(Operand, range(len(pointers)))), each.tasks)
            pool = shared_pool(2)
            NativeProgram([region], len(pointers), pool=pool, scratch_bytes=each.scratch_bytes).run(
                pointers
            )
        assert not buffers[2].array("u2", (360,)).any()
        assert all(buffer.stray_write() is None for buffer in (*buffers, work))
