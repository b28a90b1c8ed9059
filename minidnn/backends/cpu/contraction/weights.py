"""Packs weights, biases and vectors over channels in the order in which kernels read them.

Constant weights are packed once, by functions of runner/weights.c, which are compiled for every
x86-64 processor; that is fast enough for them.  Weights that change from run to run are packed by
kernels that are printed here: these take the same arguments, and write the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from ....graph.ir import Value
from ...codegen.code import Code
from ...codegen.kernel import KernelSource
from ..execution.buffers import Array
from ..execution.packing import Packed, PackedVectors
from ..tensor import ELEMENTS
from .scheme import ResultScheme, Scheme, Tile

_TASK_FLOATS = 1 << 14
"""Weights that one task packs, about, as far as the input channels can be split so."""
_UNIT = 64
"""Input channels that are transposed at a time if there is one tap: their order stays the same."""


def packed_weights(weight: Value, scheme: Scheme) -> Packed:
    """Weights (O, I, KH, KW) or (O, I) as [group][group of vectors][term of the sum][lanes].

    Terms are in the order of the sum: steps of ``unit`` channels, in each the taps, then channels.
    Output channels that pad the last vector are zero.
    """
    problem = scheme.problem
    taps = problem.depth // problem.in_channels
    unit = _UNIT if taps == 1 else scheme.unit
    step = input_step(scheme.tile, scheme.lanes, problem.in_channels, taps, unit)
    numbers = [
        *outputs_numbers(scheme.outputs, problem.in_channels, scheme.lanes, scheme.tile),
        step,
    ]
    numbers += [taps, unit, 0]
    return Packed(
        "md_pack_weights",
        [weight],
        [np.array(numbers, np.int64)],
        scheme.groups * scheme.slots * problem.depth,
        scheme.groups * scheme.tile.groups * -(-problem.in_channels // step),
        kernel=print_packing(weight.dtype),
    )


def outputs_numbers(outputs: int, inputs: int, lanes: int, tile: Tile) -> list[int]:
    """The first numbers of ``shape`` in runner/weights.c: outputs and how tiles group them."""
    return [outputs, inputs, lanes, tile.vectors, tile.wide, tile.groups]


def input_step(tile: Tile, lanes: int, inputs: int, floats: int, unit: int) -> int:
    """Input channels that one packing task packs, a multiple of ``unit``; each has ``floats``
    packed weights for every output channel."""
    units = max(1, _TASK_FLOATS // (tile.vectors * lanes * floats * unit))
    return min(units * unit, -(-inputs // unit) * unit)


def packed_outputs(vectors: Sequence[Value], scheme: ResultScheme) -> PackedVectors:
    """A number per output channel, where zeros pad each group to whole vectors; all of them are
    zeros if there is no vector."""

    def pack(arrays: Sequence[Array]) -> Array:
        packed = np.zeros((scheme.groups, scheme.slots), arrays[0].dtype if arrays else np.float32)
        for vector in arrays:
            packed[:, : scheme.outputs] = vector.reshape(scheme.groups, scheme.outputs)
        return packed.reshape(-1)

    return PackedVectors(vectors, pack, ("outputs", scheme.groups, scheme.slots, scheme.outputs))


def packed_inputs(vector: Value, scheme: Scheme) -> PackedVectors:
    """A number per input channel, in the order in which :class:`.pack.Packer` reads them."""
    problem = scheme.problem
    recipe = (
        "inputs",
        scheme.packing,
        scheme.lanes,
        scheme.slots,
        problem.in_channels,
        problem.out_channels,
    )
    return PackedVectors([vector], lambda given: _pack_inputs(given[0], scheme), recipe)


def _pack_inputs(vector: Array, scheme: Scheme) -> Array:
    problem, lanes = scheme.problem, scheme.lanes
    if scheme.packing == "lanes":
        outputs = np.arange(scheme.slots) // problem.out_channels * problem.in_channels
        outputs[scheme.outputs :] = 0
        channels = outputs.reshape(-1, 1, lanes) + np.arange(problem.in_channels)[:, None]
        return np.ascontiguousarray(vector[channels].reshape(-1))
    return _pad_to_vectors(vector, lanes)


def packed_channels(vector: Value, lanes: int) -> PackedVectors:
    """A number per input channel, padded with zeros to whole vectors."""
    return PackedVectors([vector], lambda given: _pad_to_vectors(given[0], lanes))


def _pad_to_vectors(vector: Array, lanes: int) -> Array:
    packed = np.zeros(-(-len(vector) // lanes) * lanes, vector.dtype)
    packed[: len(vector)] = vector
    return packed


_SHAPE = (
    *("outputs", "inputs", "lanes", "vectors", "wide", "tile_groups", "step", "taps", "unit"),
    "local",
)
"""The names of the numbers of ``shape`` in runner/weights.c."""


PAIR_NUMBERS = (
    *("outputs", "lanes", "vectors", "wide", "tile_groups", "blocks", "step", "taps", "depth"),
    *("run", "real", "runs", "own_inputs", "next_input", "next_tap", "next_run", "own_outputs"),
)
"""The names of the numbers that the kernel of :func:`print_pair_packing` reads: ``depth`` weights
of an output, and the strides ``next_*`` of an input channel, a tap and a run among them.  Terms are
``runs`` of ``run`` terms, of which the first ``real`` are input channels.  Where groups are merged,
each has ``own_inputs`` of these and ``own_outputs`` outputs; else ``own_outputs`` is zero."""


_WORD = "*((const unsigned int32 * varying)(from + (place + at{})))"


@cache
def print_pair_packing() -> KernelSource:
    """Prints a kernel that packs bfloat16 weights like :func:`.dot_product.pack.packed_words`."""
    code = Code()
    with code.block("MD_KERNEL(@)"):
        _read_numbers(code, PAIR_NUMBERS)
        code.line("const uniform int64 pieces = (blocks + step - 1) / step;")
        with code.block("for (uniform int64 t = md_begin; t < md_end; t++)"):
            _part(code, "blocks")
            code.line("const uniform int64 group = t / pieces / tile_groups;")
            at = "((group * slots + first) * blocks + begin * width) * taps * 16"
            words = "uniform unsigned int32 * uniform"
            code.line(f"{words} to = MD_OUT(unsigned int32, 0) + {at};")
            with (
                code.block("for (uniform int64 block = begin; block < end; block++)"),
                code.block("for (uniform int64 tap = 0; tap < taps; tap++)"),
                code.block("for (uniform int64 word = 0; word < 16; word++, to += width)"),
            ):
                for i in range(2):
                    code.line(f"const uniform int64 term{i} = block * 32 + word * 2 + {i};")
                    code.line(f"const uniform int64 run{i} = term{i} / run, i{i} = term{i} % run;")
                    code.line(f"const uniform bool has{i} = i{i} < real && run{i} < runs;")
                    at = f"i{i} % own_inputs * next_input + tap * next_tap + run{i} * next_run"
                    code.line(f"const uniform int at{i} = has{i} ? (uniform int)({at}) : 0;")
                with code.block("for (uniform int64 lane = 0; lane < width; lane += programCount)"):
                    _lane(code, 2, "group * outputs", "depth", "bfloat16")
                    # Words of two weights are gathered, except where the second one may be past the
                    # last weight.
                    code.line("const uniform bool words = lowest + programCount < outputs;")
                    with code.block(
                        "if (words && has0 && has1 && next_input == 1 && own_outputs == 0)"
                    ):
                        code.line(f"to[lane + programIndex] = {_WORD.format(0)};")
                        code.line("continue;")
                    for i in range(2):
                        code.line(f"unsigned int32 n{i} = 0;")
                        with code.block(f"if (has{i})"):
                            code.line(f"if (words) n{i} = {_WORD.format(i)} & 0xffff;")
                            code.line(f"else n{i} = from[place + at{i}];")
                            code.line(f"n{i} = inside ? n{i} : 0;")
                            own = f"n{i} = output / own_outputs == i{i} / own_inputs ? n{i} : 0;"
                            code.line(f"if (own_outputs != 0) {own}")
                    code.line("to[lane + programIndex] = n0 | n1 << 16;")
    return KernelSource.named("pack_pairs", str(code))


@cache
def print_packing(dtype: str) -> KernelSource:
    """Prints a kernel that does what ``md_pack_weights`` does, for weights of any dtype."""
    code = Code()
    with code.block("MD_KERNEL(@)"):
        _begin(code)
        with code.block("for (uniform int64 t = md_begin; t < md_end; t++)"):
            _part(code, "inputs")
            code.line("const uniform int64 group = t / pieces / tile_groups;")
            code.line("const uniform int64 depth = inputs * taps;")
            with code.block("for (uniform int64 lane = 0; lane < width; lane += programCount)"):
                _lane(code, 2, "group * outputs", "depth", dtype)
                at = "(group * slots + first) * depth + lane"
                code.line(f"uniform float * uniform to = MD_OUT(float, 0) + {at};")
                with code.block("for (uniform int64 at = begin; at < end; at += unit)"):
                    code.line("const uniform int64 many = min(unit, inputs - at);")
                    with (
                        code.block("for (uniform int64 i = 0; i < many; i++)"),
                        code.block("for (uniform int64 tap = 0; tap < taps; tap++)"),
                    ):
                        weight = "from[place + (int)((at + i) * taps + tap)]"
                        code.line(f"const float x = {ELEMENTS[dtype].load(weight)};")
                        row = "(at * taps + tap * many + i) * width + programIndex"
                        code.line(f"to[{row}] = inside ? x : 0.0f;")
    return KernelSource.named("pack_weights", str(code))


def print_transforming(n: int) -> KernelSource:
    """Prints a kernel that does what ``md_pack_transformed_n`` does: it transforms weights for
    Winograd in float64, and rounds them once."""
    code = Code()
    with code.block("MD_KERNEL(@)"):
        _begin(code)
        code.line("const uniform double * uniform g = MD_IN(double, 2);")
        with code.block("for (uniform int64 t = md_begin; t < md_end; t++)"):
            _part(code, "inputs")
            code.line("const uniform int64 next = inputs * (local ? width : slots);")
            with code.block("for (uniform int64 lane = 0; lane < width; lane += programCount)"):
                _lane(code, 3, "0", "inputs * 9", "float32")
                at = f"first * inputs * (local ? {n * n} : 1) + lane"
                code.line(f"uniform float * uniform to = MD_OUT(float, 0) + {at};")
                with code.block("for (uniform int64 i = begin; i < end; i++)"):
                    _transform(code, n)
    return KernelSource.named("pack_transformed", str(code))


def _begin(code: Code) -> None:
    _read_numbers(code, _SHAPE)
    code.line("const uniform int64 pieces = (inputs + step - 1) / step;")


def _read_numbers(code: Code, names: Sequence[str]) -> None:
    code.line("const uniform int64 * uniform shape = MD_IN(int64, 1);")
    code.lines(f"const uniform int64 {name} = shape[{i}];" for i, name in enumerate(names))
    code.line("const uniform int64 slots = (outputs + lanes - 1) / lanes * lanes;")


def _part(code: Code, along: str) -> None:
    """Prints which part of the packed weights a task writes: ``part_of`` in runner/weights.c."""
    code.line("const uniform int64 tiles = t / pieces % tile_groups;")
    code.line("const uniform int64 narrow = max((uniform int64)0, tiles - wide);")
    code.line("const uniform int64 first = (tiles * vectors - narrow) * lanes;")
    code.line("const uniform int64 width = (vectors - (tiles >= wide ? 1 : 0)) * lanes;")
    code.line("const uniform int64 begin = t % pieces * step;")
    code.line(f"const uniform int64 end = min({along}, begin + step);")


def _lane(code: Code, weights: int, before: str, depth: str, dtype: str) -> None:
    """Prints where the weights of each lane's output begin; lanes past the last read the last."""
    code.line("const int64 output = first + lane + programIndex;")
    code.line("const bool inside = output < outputs;")
    code.line("const uniform int64 lowest = min(first + lane, outputs - 1);")
    element = ELEMENTS[dtype]
    code.line(
        f"{element.constant_pointer} from = MD_IN({element.type}, {weights}) + "
        f"({before} + lowest) * {depth};"
    )
    code.line(f"const int place = (int)((min(output, outputs - 1) - lowest) * ({depth}));")


def _transform(code: Code, n: int) -> None:
    for tap in range(9):
        code.line(f"const float x{tap} = from[place + (int)(i * 9 + {tap})];")
        code.line(f"const double t{tap} = inside ? (double)x{tap} : 0.0d;")
    code.line("uniform float * uniform y = to + i * width;")
    with code.block(f"for (uniform int row = 0; row < {n}; row++)"):
        for tap in range(3):
            a, b, c = (f"g[3 * row + {k}] * t{3 * k + tap}" for k in range(3))
            code.line(f"const double h{tap} = {a} + {b} + {c};")
        for column in range(n):
            a, b, c = (f"g[{3 * column + k}] * h{k}" for k in range(3))
            code.line(f"y[{column} * next + programIndex] = (float)({a} + {b} + {c});")
        code.line(f"y += {n} * next;")
