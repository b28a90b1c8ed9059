"""Integer contractions on NCHW tensors, with exact sums in int32: those that are not computed on
blocks of channels (:func:`why_not_in_blocks`).

A first kernel packs four int8 channels of each pixel into a word, with the padding that windows
read, so that one VNNI instruction adds four products to the sum of each lane.  Where a processor
lacks VNNI, ISPC computes the same sums exactly from other instructions.  Elements that are wider
than 8 bits are multiplied one by one.

Lanes are pixels of a convolution, whose words are contiguous, or features of a linear layer
(:mod:`.integer_kernel`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from ....fusion.region import FusedContraction, Parts, parts_of, why_not_point_by_point
from ....fusion.stacks import reads_otherwise
from ....graph.ir import Constant, Graph, Node, Value
from ....graph.operator import Contraction, is_integer_product
from ....graph.operators import Conv2d, Linear
from ....graph.types import INT8_DTYPES
from ...codegen.code import Code
from ...codegen.kernel import KernelSource
from ..execution.packing import first_terms
from ..isa import Isa
from ..stage import PrintedContraction, Stage, Workspace
from ..tensor import ELEMENTS, STORED
from .integer_kernel import MOST_EXACT, PACKED_WORDS, IntegerKernel, IntegerLinear, word_weights


def why_not_integer(parts: Parts) -> str | None:
    """Why there is no kernel for an integer contraction; None if there is one."""
    if not isinstance(parts.node.op, (Conv2d, Linear)):
        return f"{parts.node.op.name} is no convolution or linear layer"
    if not all(isinstance(value, Constant) for value in (*parts.node.inputs[1:], *parts.vectors)):
        return "its weights are computed, and int8 weights must be constants"
    if parts.prologue:
        return "its int8 input is packed without a prologue"
    return None


def why_not_in_blocks(parts: Parts, isa: Isa) -> str | None:
    """Why an integer contraction is not computed on blocks of channels, as those of floats are;
    None if it is."""
    x, weight = (value.type for value in parts.node.inputs[:2])
    op = parts.node.op
    if not isa.int8_products:
        return f"{isa.name} has no instructions for it"
    if x.dtype not in INT8_DTYPES or weight.dtype != "int8":
        return "it multiplies more than int8"
    if any(value.dtype not in ELEMENTS for value in (parts.result, *parts.others)):
        return f"its result is {parts.result.dtype}"
    if not isinstance(op, Conv2d) or op.groups == 1:
        return None
    outputs, inputs, *taps = weight.shape
    if outputs // op.groups >= isa.lanes and inputs % isa.lanes == 0:
        return None
    if inputs * prod(taps) > MOST_EXACT:
        return "its groups have few channels, and their sums more digits than float32"
    return "its groups have few channels, and a bias" if parts.node.inputs[2:] else None


def why_not_epilogue(contraction: Node, node: Node) -> str | None:
    """Why ``node`` cannot be the epilogue of an integer contraction; None if it can."""
    if (reason := why_not_point_by_point(contraction, node)) is not None:
        return reason
    if node.output.dtype not in ("float32", *INT8_DTYPES):
        return f"it gives {node.output.dtype}"
    if any(value.dtype not in STORED for value in node.inputs):
        return "it reads what no kernel reads"
    if not all(isinstance(value, Constant) for value in node.inputs[len(node.tensors) :]):
        return "its vectors are computed"
    return reads_otherwise(node)


def multiplies_int8(graph: Graph) -> bool:
    """Whether a graph has integer contractions, for which there are special instructions."""
    contractions = (n for n in graph.nodes if isinstance(n.op, (Contraction, FusedContraction)))
    nodes = (parts_of(node).node for node in contractions)
    return any(is_integer_product(*(value.type for value in node.inputs)) for node in nodes)


def print_integer(parts: Parts, isa: Isa, any_size: bool = False) -> PrintedContraction:
    """Prints the kernels of an integer contraction by a constant weight on contiguous NCHW tensors;
    with ``any_size`` those for any number of rows and pixels."""
    if isinstance(parts.node.op, Linear):
        return IntegerLinear(parts, isa, any_size).print()
    return IntegerConvolution(parts, isa, any_size).print()


_CHUNK = 960
"""Pixels of a chunk, about: their sums for a tile's channels stay in the first-level cache."""


@dataclass(frozen=True)
class PackedPlanes:
    """The layout of packed pixels: for each phase of the strides a plane of ``rows`` rows with a
    stride of ``pitch`` words, so that the pixels that neighbouring windows read at a tap are
    contiguous."""

    size: tuple[int, int]
    out: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pads: tuple[int, int]

    @property
    def rows(self) -> int:
        return self.out[0] + (self.kernel[0] - 1) * self.dilation[0] // self.stride[0]

    @property
    def pitch(self) -> int:
        return self.out[1] + (self.kernel[1] - 1) * self.dilation[1] // self.stride[1]

    @property
    def words(self) -> int:
        """Words of all phases, for one word of channels."""
        return self.phases * self.rows * self.pitch

    @property
    def phases(self) -> int:
        return prod(self.stride)

    def offsets(self) -> list[int]:
        """The offset of each tap's pixels, in words."""
        (sy, sx), (dy, dx) = self.stride, self.dilation
        offsets = []
        for ky in range(self.kernel[0]):
            for kx in range(self.kernel[1]):
                phase = ky * dy % sy * sx + kx * dx % sx
                row = phase * self.rows + ky * dy // sy
                offsets.append(row * self.pitch + kx * dx // sx)
        return offsets


class IntegerConvolution(IntegerKernel):
    """Prints the kernels of an integer convolution: one packs planes of words, one multiplies.

    A task computes ``tile`` output channels of a chunk of pixels, in register tiles of
    ``tile_vectors`` vectors of pixels.
    """

    def __init__(self, parts: Parts, isa: Isa, any_size: bool) -> None:
        super().__init__(parts, isa)
        op, weight = self.op, self.weight
        assert isinstance(op, Conv2d)
        self.batch, _, *size = self.x.shape
        self.groups = op.groups
        self.outputs, self.inputs, *kernel = weight.shape
        self.outputs //= self.groups
        out = parts.node.output.shape[2:]
        pads = (op.padding[0][0], op.padding[1][0])
        stride = op.stride
        pointwise = kernel == [1, 1] and stride == (1, 1) and list(out) == size
        if pointwise:
            size, out, pads = [1, prod(size)], (1, prod(size)), (0, 0)
        self.planes = PackedPlanes(
            (size[0], size[1]),
            (out[0], out[1]),
            (kernel[0], kernel[1]),
            stride,
            op.dilation,
            pads,
        )
        self.steps = -(-self.inputs // self.unit)
        most_outputs = 8 if self.lanes == 16 else 4
        self.tile = min(most_outputs, self.outputs)
        self.tiles = -(-self.outputs // self.tile)
        self.wide = 3
        # A chunk has whole rows, or a part of the only row.
        planes = self.planes
        self.flat = pointwise if any_size else planes.out[0] == 1
        if self.flat:
            self.chunk_rows, pixels = 1, min(planes.out[1], _CHUNK)
            self.chunks = -(-planes.out[1] // pixels)
        else:
            self.chunk_rows = max(1, min(planes.out[0], _CHUNK // planes.pitch))
            self.chunks = -(-planes.out[0] // self.chunk_rows)
            self.chunk_rows = -(-planes.out[0] // self.chunks)
            pixels = self.chunk_rows * planes.pitch
        self.pixels = pixels
        self.chunk_vectors = -(-pixels // self.lanes)
        full_tiles, remainder = divmod(self.chunk_vectors, self.wide)
        #: Vectors of pixels of each kind of register tile, in the order in which it covers a chunk.
        self.tile_vectors = [self.wide, 1] if any_size else [self.wide] * (full_tiles > 0)
        if remainder and not any_size:
            self.tile_vectors.append(remainder)

    def print(self) -> PrintedContraction:
        slack = (self.wide + 1) * self.lanes + self.chunk_rows * self.planes.pitch
        words = self.batch * self.groups * self.steps * self.planes.words + slack
        scratch = self.tile * self.chunk_vectors * self.lanes * 4
        tasks = self.batch * self.groups * self.chunks * self.tiles
        header = [*self.numbers().values(), *self.planes.offsets()]
        numbers = np.array(header, np.int64).astype(np.int32)
        order = self.groups, self.tile
        weights = partial(_weights, self.weight, self.inputs, self.unit, *order)
        starts = partial(_starts, self.parts.node.inputs[1:], self.zero, *order)
        compute = Stage(
            KernelSource.named("whole_conv", self.compute_text()),
            tuple(self.operands(weights, starts, numbers)),
            tasks,
            1,
            scratch,
        )
        packed = self.batch * self.groups * self.steps
        pack = Stage(
            KernelSource.named("whole_pack", self.pack_text()),
            (0, Workspace(0), lambda: numbers),
            packed,
            max(1, min(packed // 8, PACKED_WORDS // max(1, self.planes.words))),
        )
        return PrintedContraction("whole", (pack, compute), 4 * words)

    def numbers(self) -> dict[str, int]:
        """The sizes that the kernels read, by their names."""
        planes = self.planes
        return {
            **{"groups": self.groups, "steps": self.steps, "inputs": self.inputs},
            **{"words": planes.words, "rows": planes.rows, "pitch": planes.pitch},
            **{"height": planes.size[0], "width": planes.size[1]},
            **{"out_rows": planes.out[0], "out_columns": planes.out[1]},
            **{"down": planes.stride[0], "across": planes.stride[1]},
            **{"above": planes.pads[0], "left": planes.pads[1]},
            **{"outputs": self.outputs, "tiles": self.tiles, "chunks": self.chunks},
            **{"chunk_rows": self.chunk_rows, "chunk_pixels": self.pixels},
            **{"chunk_vectors": self.chunk_vectors, "taps": prod(planes.kernel)},
            "tile_words": self.steps * prod(planes.kernel) * self.tile,
            "zero_word": self.zero_word(),
        }

    def _declare(self, code: Code, at: int) -> None:
        names = list(self.numbers())
        code.line(f"const uniform int32 * uniform numbers = MD_IN(int32, {at});")
        code.lines(f"const uniform int32 {name} = numbers[{i}];" for i, name in enumerate(names))
        code.line(f"const uniform int32 * uniform offsets = numbers + {len(names)};")

    def pack_text(self) -> str:
        code, kind = Code(), STORED[self.x.dtype]
        strided = self.planes.stride[1] > 1
        with code.block("MD_KERNEL(@)"):
            self._declare(code, 2)
            code.line("uniform unsigned int32 * uniform packed = MD_OUT(unsigned int32, 1);")
            with code.block("for (uniform int t = md_begin; t < md_end; t++)"):
                code.line("const uniform int step = t % steps;")
                code.line("const uniform int64 group = t / steps;")
                code.line(
                    "uniform unsigned int32 * uniform to = packed + (uniform int64)t * words;"
                )
                code.line("const uniform int64 plane = (uniform int64)height * width;")
                code.line(
                    f"const uniform {kind} * uniform x = MD_IN({kind}, 0) + "
                    f"(group * inputs + step * {self.unit}) * plane;"
                )
                # Weights of channels past the last one are zero: they read the first one.
                for i in range(self.unit):
                    plane_index = f"step * {self.unit} + {i} < inputs ? {i} : 0"
                    code.line(f"const uniform {kind} * uniform c{i} = x + ({plane_index}) * plane;")
                with (
                    code.block("for (uniform int py = 0; py < down; py++)"),
                    code.block("for (uniform int px = 0; px < across; px++)"),
                    code.block("for (uniform int q = 0; q < rows; q++)"),
                ):
                    self._pack_row(code, strided)
                    code.line("to += pitch;")
        return str(code)

    def _pack_row(self, code: Code, strided: bool) -> None:
        code.line("const uniform int r = q * down + py - above;")
        code.line("const uniform bool inside = r >= 0 && r < height;")
        # The first column that is inside the image, and the one after the last.
        code.line("const uniform int shift = px - left;")
        code.line("uniform int first = max(0, (across - 1 - shift) / across);")
        code.line("first = shift >= 0 ? 0 : min(first, pitch);")
        code.line("uniform int last = (width - shift + across - 1) / across;")
        code.line("last = inside ? max(first, min(last, pitch)) : first;")
        code.line("const uniform int64 row = (uniform int64)(inside ? r : 0) * width;")
        code.line("foreach (i = 0 ... first) to[i] = zero_word;")
        # In a gather of strided bytes, masked lanes read the first byte, which must be in bounds.
        at = "max(i * across + shift, 0)" if strided else "i + shift"
        rows = [f"row{i}" for i in range(self.unit)]
        for i, name in enumerate(rows):
            kind = STORED[self.x.dtype]
            code.line(f"const uniform {kind} * uniform {name} = c{i} + row;")
        with code.block("foreach (i = first ... last)"):
            code.line(f"to[i] = {self.packed_word(rows, at)};")
        code.line("foreach (i = last ... pitch) to[i] = zero_word;")

    def compute_text(self) -> str:
        code = Code()
        for vectors in self.tile_vectors:
            self._tile_text(code, vectors)
        with code.block("MD_KERNEL(@)"):
            code.line("const uniform unsigned int32 * uniform packed = MD_IN(unsigned int32, 0);")
            code.line("const uniform int32 * uniform weights = MD_IN(int32, 1);")
            code.line("const uniform int32 * uniform starts = MD_IN(int32, 2);")
            self._declare(code, 3)
            self.pointers(code)
            code.line("uniform int32 * uniform sums = (uniform int32 * uniform)md_scratch;")
            with code.block("for (uniform int t = md_begin; t < md_end; t++)"):
                self._task(code)
        return str(code)

    def _task(self, code: Code) -> None:
        lanes, flat = self.lanes, self.flat
        code.line("const uniform int tile = t % tiles;")
        code.line("const uniform int chunk = t / tiles % chunks;")
        code.line("const uniform int64 image = t / tiles / chunks;")
        code.line("const uniform int group = image % groups;")
        code.line("const uniform int at = group * tiles + tile;")
        code.line("const uniform int32 * uniform w = weights + (uniform int64)at * tile_words;")
        code.line(f"const uniform int32 * uniform b = starts + at * {self.tile};")
        begin = "chunk * chunk_pixels" if flat else "chunk * chunk_rows * pitch"
        code.line(
            f"const uniform unsigned int32 * uniform x = packed + image * steps * words + {begin};"
        )
        code.line(f"const uniform int size = chunk_vectors * {lanes};")
        arguments = "size, steps, words, taps, offsets"
        code.line("uniform int v = 0;")
        for vectors in self.tile_vectors:
            with code.block(f"for (; v + {vectors} <= chunk_vectors; v += {vectors})"):
                step = f"v * {lanes}"
                code.line(f"@_tile{vectors}(x + {step}, w, b, sums + {step}, {arguments});")
        code.line("const uniform int64 plane = (uniform int64)out_rows * out_columns;")
        with code.block(f"for (uniform int o = 0; o < {self.tile}; o++)"):
            code.line(f"const uniform int channel = group * outputs + tile * {self.tile} + o;")
            code.line(f"if (tile * {self.tile} + o >= outputs) break;")
            code.line("const uniform int32 * uniform s = sums + o * size;")
            code.line(
                "const uniform int64 to = (image / groups * groups * outputs + channel) * plane;"
            )
            if flat:
                code.line("const uniform int from = chunk * chunk_pixels;")
                code.line("const uniform int count = min(chunk_pixels, out_columns - from);")
                self.places(code, "to + from")
                with code.block("foreach (i = 0 ... count)"):
                    code.line("const int32 sum = s[i];")
                    self.finish(code, "sum", "i", "channel")
                return
            code.line("const uniform int r0 = chunk * chunk_rows;")
            code.line("const uniform int r1 = min(r0 + chunk_rows, out_rows);")
            with code.block("for (uniform int r = r0; r < r1; r++)"):
                self.places(code, "to + (uniform int64)r * out_columns")
                code.line("const uniform int32 * uniform row = s + (r - r0) * pitch;")
                with code.block("foreach (i = 0 ... out_columns)"):
                    code.line("const int32 sum = row[i];")
                    self.finish(code, "sum", "i", "channel")

    def _tile_text(self, code: Code, vectors: int) -> None:
        """Prints the function of a register tile: the sums of some vectors of pixels for the output
        channels of a task."""
        parameters = [
            *(f"const uniform {kind} * uniform {name}" for kind, name in _TILE_POINTERS),
            "uniform int32 * uniform sums",
            *(f"uniform int {name}" for name in ("size", "steps", "words", "taps")),
            "const uniform int32 * uniform offsets",
        ]
        head = f"static noinline unmasked void @_tile{vectors}({', '.join(parameters)})"
        names = [(o, v) for o in range(self.tile) for v in range(vectors)]
        with code.block(head):
            for o, v in names:
                code.line(f"int32 a{o}_{v} = b[{o}];")
            code.line("#pragma nounroll")
            with code.block("for (uniform int step = 0; step < steps; step++)"):
                code.line("#pragma nounroll")
                with code.block("for (uniform int tap = 0; tap < taps; tap++)"):
                    code.line("const uniform unsigned int32 * uniform p = x + offsets[tap];")
                    for v in range(vectors):
                        at = f"p[{v * self.lanes} + programIndex]"
                        code.line(f"const unsigned int32 x{v} = {at};")
                    for o in range(self.tile):
                        code.line(f"const unsigned int32 w{o} = (unsigned int32)w[{o}];")
                        for v in range(vectors):
                            code.line(self.product(f"a{o}_{v}", f"x{v}", f"w{o}"))
                    code.line(f"w += {self.tile};")
                code.line("x += words;")
            for o, v in names:
                at = f"sums[{o} * size + {v * self.lanes} + programIndex]"
                code.line(f"{at} = a{o}_{v};")


_TILE_POINTERS = (("unsigned int32", "x"), ("int32", "w"), ("int32", "b"))


def _weights(weight: Value, inputs: int, unit: int, groups: int, tile: int) -> np.ndarray:
    """The weights in the order in which the kernel reads them, [group][tile][step][tap][output of
    the tile]."""
    words = word_weights(weight, inputs, unit)
    words = words.reshape(groups, -1, *words.shape[1:])
    words = np.pad(words, ((0, 0), (0, -words.shape[1] % tile), (0, 0), (0, 0)))
    words = words.reshape(groups, -1, tile, *words.shape[2:])
    return np.ascontiguousarray(words.transpose(0, 1, 3, 4, 2)).reshape(-1)


def _starts(values: Sequence[Value], zero: int, groups: int, tile: int) -> np.ndarray:
    start = first_terms(values, zero).reshape(groups, -1)
    return np.pad(start, ((0, 0), (0, -start.shape[1] % tile))).reshape(-1)
