"""Tiles, blocks and packing are chosen as they should be; reasons are told."""

from __future__ import annotations

import math

import numpy as np
import pytest

from minidnn.backends.cpu.contraction import why_unsupported
from minidnn.backends.cpu.contraction.scheme import choose_tile, split_vectors, step_cycles
from minidnn.backends.cpu.isa import AVX2, AVX512, Isa
from minidnn.backends.cpu.stage import PrintedContraction
from minidnn.fusion.operations import operation_of
from minidnn.fusion.region import Parts
from minidnn.graph.ir import Constant, Node, Value
from minidnn.graph.operators import Add, Conv2d, Linear, MaxPool2d, ReLU, ScaleShift
from minidnn.graph.types import TensorType

from .cases import CASES
from .harness import Case, build


@pytest.mark.sampled(3)
@pytest.mark.parametrize("isa", [AVX2, AVX512], ids=lambda isa: isa.name)
@pytest.mark.parametrize("out", [(1, 1), (1, 49), (7, 7), (14, 14), (35, 35), (3, 5), (1, 5000)])
@pytest.mark.parametrize("blocks", [1, 2, 3, 7, 16, 63])
def test_tiles_fit_the_registers_and_keep_them_busy(isa, out, blocks: int) -> None:
    tile = choose_tile(out, blocks, 1024, isa)
    pixels = tile.rows * tile.columns
    assert pixels * tile.vectors + tile.vectors + 1 <= isa.registers
    assert tile.wide * tile.vectors + tile.narrow * (tile.vectors - 1) == blocks
    assert tile.rows <= out[0] and tile.columns <= out[1]
    assert tile.rows == 1 or tile.columns == out[1]
    # No tile is far from the two multiply-adds a cycle that the arithmetic takes, where there
    # are enough pixels and channels for it.
    if out[0] * out[1] * blocks >= 100 and blocks > 1:
        assert pixels * tile.vectors / 2 / step_cycles(pixels, tile.vectors) > 0.8


@pytest.mark.parametrize("vectors", [1, 2, 3, 4])
def test_vectors_split_evenly(vectors: int) -> None:
    for blocks in range(vectors, 40):
        wide, narrow = split_vectors(blocks, vectors)
        assert wide * vectors + narrow * (vectors - 1) == blocks
        assert narrow < vectors


def whole_text(case: Case, isa: Isa) -> str:
    """The text of a case's kernel, with the functions that it shares with others."""
    source = build(case, isa).kernel.stages[0].source
    return "".join((*source.shared, source.text))


def test_direct_reads_are_not_packed() -> None:
    packed = {case.name: "conv_pack" in whole_text(case, AVX512) for case in CASES}
    for name in ("1x1", "1x1-stride", "1x1-tails", "3x3-valid", "1x1-planar", "linear"):
        assert not packed[name], name
    for name in ("3x3", "1x1-prologue", "1x1-padded", "depthwise", "stem-7x7", "groups-uneven"):
        assert packed[name], name


@pytest.mark.parametrize("isa", [AVX2, AVX512], ids=lambda isa: isa.name)
def test_lanes_read_their_group_from_the_vector_that_has_it(isa: Isa) -> None:
    """Where groups of as many outputs as inputs fill vectors that lie in memory; else each lane's
    inputs are copied for it."""

    def reads(width: int, outputs: int, layouts: str = "bb") -> tuple[bool, bool]:
        """Whether lanes shuffle vectors, and whether inputs are copied lane by lane."""
        op = Conv2d(padding=((1, 1), (1, 1)), groups=12)
        shape = (1, 12 * width, 9, 9)
        case = Case("groups", shape, 12 * outputs, (3, 3), op, layouts=layouts)
        text = whole_text(case, isa)
        return "shuffle(" in text, "const bool real" in text

    assert reads(1, 1) == (False, False), "a vector of channels is one of outputs"
    assert reads(2, 2) == reads(4, 4) == (True, False)
    assert reads(8, 8) == (isa.lanes > 8, False)
    assert reads(3, 3) == reads(2, 4) == reads(1, 2) == reads(4, 4, "pb") == (False, True)
    assert reads(16, 16) == (False, False)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("threads", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(
    ("name", "shape", "outputs", "kernel"),
    [
        ("3x3@7", (1, 512, 7, 7), 512, 3),
        ("1x1@7", (1, 2048, 7, 7), 512, 1),
        ("3x3@56", (1, 64, 56, 56), 64, 3),
        ("3x3@14", (1, 256, 14, 14), 256, 3),
    ],
)
def test_one_image_keeps_all_threads_busy(name, shape, outputs, kernel, threads: int) -> None:
    pad = kernel // 2
    op = Conv2d(padding=((pad, pad), (pad, pad)))
    case = Case(name, shape, outputs, (kernel, kernel), op)
    printed: PrintedContraction = build(case, AVX512, threads).kernel
    (stage,) = printed.stages
    calls = math.ceil(stage.tasks / stage.grain)
    assert calls / (threads * math.ceil(calls / threads)) > 0.8
    assert stage.scratch_bytes <= 1 << 20


def test_weights_are_packed_only_when_asked_for() -> None:
    calls = []

    def data() -> np.ndarray:
        calls.append(1)
        return np.ones((8, 4, 1, 1), np.float32)

    x = Value(TensorType((1, 4, 2, 2)), "x")
    node = Node(Conv2d(), [x, Constant(TensorType((8, 4, 1, 1)), "w", data)], "conv")
    from minidnn.backends.cpu.contraction import print_contraction
    from minidnn.backends.cpu.tensor import Tensor

    tensors = Tensor(4, 2, 2, 8, 32), Tensor(8, 2, 2, 8, 32)
    printed = print_contraction(Parts(node), 1, tensors[0], (), tensors[1], AVX2)
    assert not calls
    weights, bias, _ = (make() for make in printed.constants)
    assert (weights.size, bias.size) == (32, 8)
    assert len(calls) == 1


def parts_with(*after: Node, op: Conv2d | Linear | None = None, dtype: str = "float32") -> Parts:
    x = Value(TensorType((2, 4, 6, 6), dtype), "x")
    weight = Constant(TensorType((4, 4, 1, 1), dtype), "w", np.ones((4, 4, 1, 1)))
    return Parts(Node(op or Conv2d(), [x, weight], "conv"))


def test_reasons() -> None:
    plain = parts_with()
    assert why_unsupported(plain) is None
    assert why_unsupported(parts_with(dtype="float64")) == (
        "an operand is float64; valid are float32, bfloat16"
    )
    x = Value(TensorType((2, 4, 6, 6)), "x")
    weight = Value(TensorType((4, 4, 1, 1)), "w")
    assert why_unsupported(Parts(Node(Conv2d(), [x, weight], "conv"))) is None
    pooled = Node(MaxPool2d((2, 2), (2, 2)), [plain.node.output], "pool")
    reason = why_unsupported(Parts(plain.node, (), (operation_of(pooled, 0),)))
    assert reason == "pool is not computed element by element"
    wide = Value(TensorType((2, 2, 4, 6, 6)), "z")
    added = Node(Add(), [plain.node.output, wide], "add")
    reason = why_unsupported(Parts(plain.node, (), (operation_of(added, 0),)))
    assert reason == "add has another shape than the contraction's result"
    relu = Node(ReLU(), [plain.node.output], "relu")
    assert why_unsupported(Parts(relu)) == "ReLU is no convolution or linear layer"


def test_reasons_of_linear_layers() -> None:
    x = Value(TensorType((2, 3, 4)), "x")
    weight = Constant(TensorType((5, 4)), "w", np.ones((5, 4), np.float32))
    node = Node(Linear(), [x, weight], "fc")
    vector = Constant(TensorType((3,)), "v", np.ones(3, np.float32))
    scaled = Node(ScaleShift(), [node.output, vector, vector], "bn")
    assert why_unsupported(Parts(node, (), (operation_of(scaled, 0),))) == (
        "the channels of a vector are not the features of a linear layer of rank 3"
    )
    added = Node(Add(), [node.output, Value(TensorType((1, 3, 5)), "z")], "add")
    assert why_unsupported(Parts(node, (), (operation_of(added, 0),))) == (
        "z repeats over rows of a linear layer of rank 3"
    )
    added = Node(Add(), [node.output, Value(TensorType((5,)), "z")], "add")
    assert "z" in str(why_unsupported(Parts(node, (), (operation_of(added, 0),))))
