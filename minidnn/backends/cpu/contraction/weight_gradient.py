"""Prints the weight gradient of a convolution in float32.

Lanes are output channels.  A register tile has a few vectors of them for a few input channels of
one tap, and sums over a chunk of pixels (the K tile); the sums of chunks are added in the order of
the pixels.  A task computes all taps, for as many input channels as its sums fit the cache.  Where
there are few tasks, the chunks are split into parts (split-K), whose partial sums a second kernel
adds in order.  All this follows from shapes, so the bits are the same for every number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ....graph.operators import Conv2dWeightGradient
from ...codegen.code import Code
from ...codegen.kernel import KernelSource
from ..isa import Isa
from ..stage import Stage, Staged, Workspace
from ..tensor import Tensor
from .numbers import PARAMETER, Numbers

CHUNK = 128
"""Pixels of a chunk, about: their values stay in the first-level cache."""

SUMS_BYTES = 96 << 10
"""Bytes of a task's sums, at most: they stay in the second-level cache."""

MOST_INPUTS = 256
"""Input channels of a task, at most: their values in a chunk of pixels stay there, too."""

ENOUGH_TASKS = 32
"""So many tasks keep all threads busy: then there is no split-K."""


@dataclass(frozen=True)
class _Scheme:
    """How the sums are split among tasks and chunks.

    Attributes:
        vectors: vectors of output channels in a tile; ``wide`` tiles have as many, ``narrow`` ones
            one less.
        channels: input channels of a tile; a task computes ``own`` of these one after another.
        images, rows: images of a chunk, and rows of the gradient of each.
        parts: split-K: parts that the chunks of all images are split into.
    """

    lanes: int
    groups: int
    inputs: int
    outputs: int
    taps: int
    vectors: int
    wide: int
    narrow: int
    channels: int
    own: int
    images: int
    rows: int
    chunks_of_image: int
    chunks: int
    parts: int

    @property
    def across(self) -> int:
        """Tasks that share all input channels of a group."""
        return -(-self.inputs // (self.own * self.channels))

    @property
    def tasks(self) -> int:
        """Tasks of one part (of split-K)."""
        return self.groups * (self.wide + self.narrow) * self.across

    @property
    def sums(self) -> int:
        """Floats of a task's sums."""
        return self.own * self.taps * self.channels * self.vectors * self.lanes


def _scheme(op: Conv2dWeightGradient, x: Tensor, batch: int, gradient: Tensor, isa: Isa) -> _Scheme:
    groups, taps = op.convolution.groups, prod(op.kernel)
    inputs, outputs = x.channels // groups, gradient.channels // groups
    count = -(-outputs // isa.lanes)
    tiles = -(-count // 3)
    vectors = -(-count // tiles)
    narrow = tiles * vectors - count
    channels = min(isa.registers // 4, inputs) if x.block == 1 else isa.registers // 4
    tile = 4 * taps * channels * vectors * isa.lanes
    own = max(1, min(SUMS_BYTES // tile, MOST_INPUTS // channels, -(-inputs // channels)))
    across = -(-inputs // (own * channels))
    own = -(-inputs // (channels * across))
    pixels = gradient.rows * gradient.columns
    rows = min(gradient.rows, max(1, round(CHUNK / gradient.columns)))
    images = max(1, CHUNK // pixels) if rows == gradient.rows else 1
    chunks_of_image = -(-gradient.rows // rows)
    chunks = -(-batch // images) * chunks_of_image
    parts = min(chunks, -(-ENOUGH_TASKS // (groups * tiles * across)))
    return _Scheme(
        *(isa.lanes, groups, inputs, outputs, taps, vectors, tiles - narrow, narrow),
        *(channels, own, images, rows, chunks_of_image, chunks, parts),
    )


def print_weight_gradient(
    op: Conv2dWeightGradient, batch: int, x: Tensor, gradient: Tensor, isa: Isa
) -> Staged:
    """Prints the kernels; the pointers are the input, the gradient and the result.

    Args:
        batch: images.
        x, gradient: the layouts of the operands; that of the gradient has blocks of lanes.
    """
    if op.kernel == (1, 1) == op.convolution.stride and op.convolution.padding == ((0, 0), (0, 0)):
        x, gradient = _in_long_rows(x), _in_long_rows(gradient)
    scheme = _scheme(op, x, batch, gradient, isa)
    sums = _Sums(op, scheme, batch, x, gradient)
    destination: int | Workspace = 2 if scheme.parts == 1 else Workspace(0)
    scratch = 4 * (scheme.sums + scheme.vectors * scheme.lanes)
    text = sums.print()
    first = Stage(
        KernelSource.named("weight_gradient", text),
        (0, 1, destination, sums.numbers.pack),
        scheme.tasks * scheme.parts,
        1,
        scratch,
    )
    if scheme.parts == 1:
        return Staged((first,))
    reduction = _Sums(op, scheme, batch, x, gradient)
    text = reduction.print_partial_sum_reduction()
    second = Stage(
        KernelSource.named("reduce_weight_gradient", text),
        (Workspace(0), 2, reduction.numbers.pack),
        scheme.tasks,
        1,
        4 * scheme.sums,
    )
    return Staged((first, second), 4 * scheme.tasks * scheme.parts * scheme.sums)


def _in_long_rows(tensor: Tensor) -> Tensor:
    """The layout of the same pixels in rows of about a chunk."""
    pixels = tensor.rows * tensor.columns
    columns = max(n for n in range(1, min(CHUNK, pixels) + 1) if pixels % n == 0)
    if columns < tensor.columns:
        return tensor
    return Tensor(tensor.channels, pixels // columns, columns, tensor.block, tensor.image)


class _Sums:
    """Prints one of the kernels: that which sums over pixels, or that which adds partial sums."""

    def __init__(
        self, op: Conv2dWeightGradient, scheme: _Scheme, batch: int, x: Tensor, gradient: Tensor
    ) -> None:
        self.op, self.scheme, self.batch = op, scheme, batch
        self.x, self.gradient = x, gradient
        self.code, self.numbers = Code(), Numbers()

    def print(self) -> str:
        """Prints the kernel that sums over pixels."""
        scheme, code = self.scheme, self.code
        for vectors in self._widths():
            self._tile(vectors)
        self._print_task()
        if scheme.parts == 1:
            self._store()
        with code.block("MD_KERNEL(@)"):
            code.line(f"{PARAMETER} = MD_IN(int32, 3);")
            self._sum_tasks()
        return str(code)

    def _sum_tasks(self) -> None:
        scheme, code, number = self.scheme, self.code, self.numbers
        with number.declared(code):
            code.line("const uniform float * uniform x = MD_IN(float, 0);")
            code.line("const uniform float * uniform g = MD_IN(float, 1);")
            code.line("uniform float * uniform y = MD_OUT(float, 2);")
            code.line("uniform float * uniform scratch = (uniform float * uniform)md_scratch;")
            code.line(f"uniform float * uniform sums = scratch + {scheme.vectors * scheme.lanes};")
            with code.block("for (uniform int t = md_begin; t < md_end; t++)"):
                tasks, chunks = number("tasks", scheme.tasks), number("chunks", scheme.chunks)
                parts = number("parts", scheme.parts)
                size = number("sums_floats", scheme.sums)
                code.line(f"const uniform int part = t / {tasks};")
                if scheme.parts > 1:
                    code.line(f"sums = y + (uniform int64)t * {size};")
                code.line(f"const uniform int begin = (uniform int64){chunks} * part / {parts};")
                code.line(
                    f"const uniform int end = (uniform int64){chunks} * (part + 1) / {parts};"
                )
                code.line(f"foreach (i = 0 ... {size}) {{ sums[i] = 0.0f; }}")
                self._call_with_vectors(
                    f"t % {tasks}",
                    "@_task_{0}(numbers, x, g, scratch, sums, place, first, begin, end);",
                )
                if scheme.parts == 1:
                    code.line(f"@_store(numbers, sums, y, t % {tasks});")

    def print_partial_sum_reduction(self) -> str:
        """Prints the kernel that adds the partial sums of split-K."""
        code = self.code
        self._store()
        with code.block("MD_KERNEL(@)"):
            code.line(f"{PARAMETER} = MD_IN(int32, 2);")
            self._reduce_tasks()
        return str(code)

    def _reduce_tasks(self) -> None:
        scheme, code, number = self.scheme, self.code, self.numbers
        with number.declared(code):
            code.line("const uniform float * uniform given = MD_IN(float, 0);")
            code.line("uniform float * uniform sums = (uniform float * uniform)md_scratch;")
            size, tasks = number("sums_floats", scheme.sums), number("tasks", scheme.tasks)
            count = number("parts", scheme.parts)
            with code.block("for (uniform int t = md_begin; t < md_end; t++)"):
                code.line(f"const uniform float * uniform z = given + (uniform int64)t * {size};")
                with code.block(f"foreach (i = 0 ... {size})"):
                    code.line("float all = z[i];")
                    code.line(f"for (uniform int64 p = 1; p < {count}; p++)")
                    code.line(f"  all += z[p * {tasks} * {size} + i];")
                    code.line("sums[i] = all;")
                code.line("@_store(numbers, sums, MD_OUT(float, 1), t);")

    def _widths(self) -> list[int]:
        scheme = self.scheme
        return [scheme.vectors] + [scheme.vectors - 1] * (scheme.narrow > 0)

    def _call_with_vectors(self, task: str, call: str) -> None:
        """Prints ``place``, the index of a task among those with the same output channels,
        ``first``, its first vector of these, and the call for as many vectors as it has."""
        scheme, code, number = self.scheme, self.code, self.numbers
        tiles = number("tiles", scheme.wide + scheme.narrow)
        wide = number("wide", scheme.wide)
        code.line(f"const uniform int tile = ({task}) % {tiles}, place = ({task}) / {tiles};")
        code.line(f"const uniform int first = tile * {scheme.vectors} - max(tile - {wide}, 0);")
        if not scheme.narrow:
            code.line(call.format(scheme.vectors))
            return
        code.line(f"if (tile < {wide}) {call.format(scheme.vectors)}")
        code.line(f"else {call.format(scheme.vectors - 1)}")

    def _tile(self, vectors: int) -> None:
        """Prints a function that sums over a chunk of pixels for one tap, and adds it to ``s``."""
        scheme, code, number = self.scheme, self.code, self.numbers
        x, lanes = self.x, scheme.lanes
        names = [(k, v) for k in range(scheme.channels) for v in range(vectors)]
        head = (
            f"static noinline unmasked void @_tile_{vectors}({PARAMETER}, const uniform float * "
            "uniform x, const uniform float * uniform g, const uniform float * uniform z, "
            "uniform float * uniform s, uniform int images, uniform int rows, uniform int columns)"
        )
        with code.block(head), number.declared(code):
            for k, v in names:
                code.line(f"float a{k}_{v} = z[{v * lanes} + programIndex];")
            plane = number("g_plane", self.gradient.plane)
            g_image, x_image = number("g_image", self.gradient.image), number("x_image", x.image)
            g_row = number("g_row", self.gradient.columns * lanes)
            stride = self.op.convolution.stride
            x_row = number("x_row", x.columns * x.block * stride[0])
            x_step = number("x_step", x.block * stride[1])
            with code.block("for (uniform int n = 0; n < images; n++)"):
                code.line("const uniform float * uniform xr = x, * uniform gr = g;")
                with code.block("for (uniform int r = 0; r < rows; r++)"):
                    code.line("const uniform float * uniform xc = xr, * uniform gc = gr;")
                    code.line("#pragma nounroll")
                    with code.block("for (uniform int c = 0; c < columns; c++)"):
                        for v in range(vectors):
                            code.line(f"const float g{v} = gc[{v} * {plane} + programIndex];")
                        for k in range(scheme.channels):
                            at = f"{k} * {number('x_plane', x.plane)}" if x.block == 1 else str(k)
                            sums = " ".join(
                                f"a{k}_{v} = md_fma(x0, g{v}, a{k}_{v});" for v in range(vectors)
                            )
                            code.line(f"{{ const float x0 = xc[{at}]; {sums} }}")
                        code.line(f"xc += {x_step};")
                        code.line(f"gc += {lanes};")
                    code.line(f"xr += {x_row};")
                    code.line(f"gr += {g_row};")
                code.line(f"x += {x_image};")
                code.line(f"g += {g_image};")
            for k, v in names:
                offset = (k * scheme.vectors + v) * lanes
                code.line(f"s[{offset} + programIndex] += a{k}_{v};")

    def _print_task(self) -> None:
        for vectors in self._widths():
            head = (
                f"static noinline unmasked void @_task_{vectors}({PARAMETER}, "
                "const uniform float * uniform x, const uniform float * uniform g, "
                "uniform float * uniform z, uniform float * uniform sums, uniform int place, "
                "uniform int first, uniform int begin, uniform int end)"
            )
            with self.code.block(head), self.numbers.declared(self.code):
                self._chunks(vectors)

    def _chunks(self, vectors: int) -> None:
        """Prints the loops over the chunks and taps of a task; ``first`` is its first vector of
        output channels in its group."""
        scheme, code, number = self.scheme, self.code, self.numbers
        x, g = self.x, self.gradient
        across, own = number("across", scheme.across), number("own", scheme.own)
        inputs, channels = number("inputs", scheme.inputs), scheme.channels
        vectors_of_group = number("vectors_of_group", -(-scheme.outputs // scheme.lanes))
        code.line(f"const uniform int group = place / {across};")
        code.line(f"const uniform int from = place % {across} * {own} * {channels};")
        code.line(f"const uniform int left = ({inputs} - from + {channels - 1}) / {channels};")
        code.line(f"const uniform int tiles = min(left, {own});")
        code.line(f"const uniform int channel = group * {inputs} + from;")
        plane, g_plane = number("x_plane", x.plane), number("g_plane", g.plane)
        code.line(f"g += (uniform int64)(group * {vectors_of_group} + first) * {g_plane};")
        with code.block("for (uniform int chunk = begin; chunk < end; chunk++)"):
            chunks_of_image = number("chunks_of_image", scheme.chunks_of_image)
            images = number("images", scheme.images)
            rows, out_rows = number("rows", scheme.rows), number("out_rows", g.rows)
            code.line(f"const uniform int n = chunk / {chunks_of_image} * {images};")
            code.line(f"const uniform int many = min({images}, {number('batch', self.batch)} - n);")
            code.line(f"const uniform int y0 = chunk % {chunks_of_image} * {rows};")
            code.line(f"const uniform int y1 = min(y0 + {rows}, {out_rows});")
            g_image, x_image = number("g_image", g.image), number("x_image", x.image)
            code.line(f"const uniform float * uniform gn = g + (uniform int64)n * {g_image};")
            code.line(f"const uniform float * uniform xn = x + (uniform int64)n * {x_image};")
            down, wide = (number(f"kernel{a}", size) for a, size in enumerate(self.op.kernel))
            with code.block(f"for (uniform int ky = 0; ky < {down}; ky++)"):
                self._range("y", 0, x.rows, "y0", "y1")
                with code.block(f"for (uniform int kx = 0; kx < {wide}; kx++)"):
                    columns = number("out_columns", g.columns)
                    self._range("x", 1, x.columns, "0", columns)
                    self._padding(vectors, columns)
                    row = f"(y_from * {number('stride0', self._stride(0))} + y_at)"
                    column = f"(x_from * {number('stride1', self._stride(1))} + x_at)"
                    x_columns = number("x_columns", x.columns)
                    code.line(f"const uniform int pixel = {row} * {x_columns} + {column};")
                    with code.block("for (uniform int i = 0; i < tiles; i++)"):
                        code.line(f"const uniform int c = channel + i * {channels};")
                        block = x.block
                        code.line(
                            f"const uniform float * uniform xi = xn + (uniform int64)(c / {block})"
                            f" * {plane} + (c % {block} + pixel * {block});"
                        )
                        taps = number("taps", scheme.taps)
                        step = channels * scheme.vectors * scheme.lanes
                        lanes = scheme.lanes
                        code.line(
                            f"@_tile_{vectors}(numbers, xi, gn + (y_from * {columns} + x_from) * "
                            f"{lanes}, z, sums + ((i * {taps} + ky * {wide} + kx) * {step}), "
                            "many, y_to - y_from, x_to - x_from);"
                        )

    def _stride(self, axis: int) -> int:
        return self.op.convolution.stride[axis]

    def _range(self, name: str, axis: int, size: int, begin: str, end: str) -> None:
        """Prints the range of outputs for which a tap reads no padding, and the input position that
        the first of all outputs reads."""
        code, number, convolution = self.code, self.numbers, self.op.convolution
        stride = number(f"stride{axis}", convolution.stride[axis])
        dilation = number(f"dilation{axis}", convolution.dilation[axis])
        pad = number(f"padding{axis}", convolution.padding[axis][0])
        size_name = number(f"size{axis}", size)
        code.line(f"const uniform int {name}_at = k{name} * {dilation} - {pad};")
        before = f"max(0, {stride} - 1 - {name}_at) / {stride}"
        after = f"max(0, {size_name} + {stride} - 1 - {name}_at) / {stride}"
        code.line(f"const uniform int {name}_from = min(max({begin}, {before}), {end});")
        code.line(f"const uniform int {name}_to = max({name}_from, min({end}, {after}));")

    def _padding(self, vectors: int, columns: str) -> None:
        """Prints the first terms ``z`` of sums: products with padding, which are zero or NaN."""
        code, lanes = self.code, self.scheme.lanes
        for v in range(vectors):
            code.line(f"z[{v * lanes} + programIndex] = 0.0f;")
        plane = self.numbers("g_plane", self.gradient.plane)
        image = self.numbers("g_image", self.gradient.image)
        inside = "y_from == y0 && y_to == y1 && x_from == 0 && x_to == "
        code.line(f"const uniform bool inside = {inside}{columns};")
        images = "for (uniform int m = 0; m < (inside ? 0 : many); m++)"
        with code.block(images), code.block("for (uniform int r = y0; r < y1; r++)"):
            code.line("const uniform bool met = r >= y_from && r < y_to;")
            code.line(f"const uniform float * uniform gr = gn + m * {image} + ")
            code.line(f"  r * {columns} * {lanes};")
            with code.block(f"for (uniform int c = 0; c < {columns}; c++)"):
                code.line("if (met && c == x_from && x_to > x_from) c = x_to;")
                code.line(f"if (c >= {columns}) break;")
                for v in range(vectors):
                    at = f"gr[{v} * {plane} + c * {lanes} + programIndex]"
                    code.line(f"z[{v * lanes} + programIndex] += 0.0f * {at};")

    def _store(self) -> None:
        """Prints a function that stores a task's sums as gradient of the weight."""
        scheme, code, number = self.scheme, self.code, self.numbers
        lanes, channels = scheme.lanes, scheme.channels
        head = (
            f"static noinline unmasked void @_store({PARAMETER}, const uniform float * uniform "
            "sums, uniform float * uniform y, uniform int t)"
        )
        with code.block(head), number.declared(code):
            tiles = number("tiles", scheme.wide + scheme.narrow)
            wide = number("wide", scheme.wide)
            across, own = number("across", scheme.across), number("own", scheme.own)
            inputs, outputs = number("inputs", scheme.inputs), number("outputs", scheme.outputs)
            taps = number("taps", scheme.taps)
            code.line(f"const uniform int tile = t % {tiles}, place = t / {tiles};")
            code.line(
                f"const uniform int vectors = tile < {wide} ? {scheme.vectors} : "
                f"{scheme.vectors - 1};"
            )
            code.line(
                f"const uniform int first = (tile * {scheme.vectors} - "
                f"max(tile - {wide}, 0)) * {lanes};"
            )
            code.line(f"const uniform int group = place / {across};")
            code.line(f"const uniform int from = place % {across} * {own} * {channels};")
            code.line(f"const uniform int count = min({inputs} - from, {own} * {channels});")
            code.line(f"const uniform int last = min({outputs} - first, vectors * {lanes});")
            with code.block("for (uniform int o = 0; o < last; o++)"):
                code.line(
                    f"uniform float * uniform to = y + ((uniform int64)(group * {outputs} + "
                    f"first + o) * {inputs} + from) * {taps};"
                )
                with code.block("for (uniform int i = 0; i < count; i++)"):
                    step = channels * scheme.vectors * lanes
                    code.line(
                        f"const uniform float * uniform s = sums + (i / {channels} * {taps} *"
                        f" {step} + i % {channels} * {scheme.vectors * lanes} + o);"
                    )
                    code.line(
                        f"for (uniform int k = 0; k < {taps}; k++) "
                        f"to[i * {taps} + k] = s[k * {step}];"
                    )
