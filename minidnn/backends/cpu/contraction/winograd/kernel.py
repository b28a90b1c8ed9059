"""Prints the kernels of a Winograd convolution: one for everything (local), or three (transform
inputs, multiply, transform products back)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .....fusion.region import Parts
from .....graph.ir import Value
from ....codegen.code import Code
from ....codegen.kernel import KernelSource
from ...execution.packing import Packed
from ...stage import Pointer, PrintedContraction, Stage, Workspace
from ..epilogue import Epilogue
from ..numbers import PARAMETER, Numbers
from ..scheme import LINE_FLOATS
from ..tile import print_tile, tile_name
from ..weights import input_step, outputs_numbers, packed_outputs, print_transforming
from .functions import print_into, print_load, print_out, print_store
from .scheme import WinogradScheme


def transformed_weights(weight: Value, scheme: WinogradScheme) -> Packed:
    """Weights (O, I, 3, 3), transformed in float64, in the order in which kernels read them.

    The layout is [group of vectors of outputs][matrix][input][lanes of the group] for the local
    kernel, whose tasks compute one group after another, and [matrix][group][input][lanes] where a
    task computes a matrix.  Output channels that pad the last vector are zero.
    """
    problem, lanes, tile = scheme.problem, scheme.lanes, scheme.tile
    step = input_step(tile, lanes, problem.in_channels, scheme.matrices, 1)
    numbers = [*outputs_numbers(problem.out_channels, problem.in_channels, lanes, tile), step]
    numbers += [9, 1, scheme.local]
    return Packed(
        f"md_pack_transformed_{scheme.transform.inputs}",
        [weight],
        [np.array(numbers, np.int64), np.ascontiguousarray(scheme.transform.weights)],
        scheme.matrices * scheme.output_blocks * lanes * problem.in_channels,
        tile.groups * -(-problem.in_channels // step),
        kernel=print_transforming(scheme.transform.inputs),
    )


_POINTER = "const uniform float * uniform"
GRAIN = 4
"""Tasks of one call of a kernel that transforms: each task takes some microseconds."""


def print_winograd(parts: Parts, scheme: WinogradScheme) -> PrintedContraction:
    """Prints the kernels of a scheme, in the order in which they run."""
    if scheme.local:
        stages: tuple[Stage, ...] = (_Local(parts, scheme).stage(),)
    else:
        stages = (
            _Into(parts, scheme).stage(),
            _Products(parts, scheme).stage(),
            _Out(parts, scheme).stage(),
        )
    return PrintedContraction(scheme.transform.name, stages, scheme.workspace_bytes)


class _Printer:
    """Prints one kernel: its functions, its pointers by name, its tasks.

    Subclasses define what a task does.
    """

    def __init__(self, parts: Parts, scheme: WinogradScheme) -> None:
        self.parts = parts
        self.scheme = scheme
        self.code = Code()
        self.numbers = Numbers()
        self.epilogue = Epilogue(parts, scheme.result, self.numbers)
        self.products = Epilogue(None, scheme.product, self.numbers, "m_")

    #: The name of the pointer that the kernel writes to.
    written = "y"

    def pointers(self) -> dict[str, Pointer]:
        raise NotImplementedError

    def functions(self) -> None:
        raise NotImplementedError

    def task(self) -> None:
        raise NotImplementedError

    def counts(self) -> tuple[int, int, int]:
        """Tasks, grain, bytes of scratch."""
        raise NotImplementedError

    def stage(self) -> Stage:
        code = self.code
        self.functions()
        pointers = self.pointers()
        with code.block("MD_KERNEL(@)"):
            for i, name in enumerate(pointers):
                if name == self.written:
                    code.line(f"uniform float * uniform {name} = MD_OUT(float, {i});")
                else:
                    code.line(f"{_POINTER} {name} = MD_IN(float, {i});")
            code.line(f"{PARAMETER} = MD_IN(int32, {len(pointers)});")
            loop = "for (uniform int t = md_begin; t < md_end; t++)"
            with self.numbers.declared(code), code.block(loop):
                self.task()
            if self.written == "y" and self.epilogue.streams:
                code.line("memory_barrier();")
        tasks, grain, scratch = self.counts()
        return Stage(
            KernelSource.named("conv", str(code)),
            (*pointers.values(), self.numbers.pack),
            tasks,
            grain,
            scratch,
        )

    def results(self) -> dict[str, Pointer]:
        """The pointers of a kernel that computes results: further tensors, and the result."""
        others = range(len(self.parts.others))
        pointers: dict[str, Pointer] = {f"z{i}": 1 + i for i in others}
        pointers["y"] = 1 + len(others)
        return pointers

    def vectors(self) -> dict[str, Pointer]:
        """The bias and the vectors of the epilogue."""
        result = self.scheme.result
        pointers: dict[str, Pointer] = {"bias": packed_outputs(self.parts.node.inputs[2:], result)}
        for i, value in enumerate(self.epilogue.vectors):
            pointers[f"e{i}"] = packed_outputs([value], result)
        return pointers

    def weights(self) -> Pointer:
        return transformed_weights(self.parts.node.inputs[1], self.scheme)

    def clear(self) -> None:
        """Prints a loop that fills the row of zeros."""
        size = self.scheme.zeros_bytes // 4
        with self.code.block(f"for (uniform int i = 0; i < {size}; i += programCount)"):
            self.code.line("zeros[i + programIndex] = 0.0f;")

    def tiles(self) -> None:
        """Prints the functions of the register tiles of the matrix products."""
        tile = self.scheme.tile
        for count, vectors in self.widths():
            if count:
                print_tile(
                    self.code,
                    self.scheme.product,
                    self.products,
                    self.numbers,
                    tile.rows,
                    tile.columns,
                    vectors,
                    bias=False,
                )

    def widths(self) -> Sequence[tuple[int, int]]:
        tile = self.scheme.tile
        return ((tile.wide, tile.vectors), (tile.narrow, tile.vectors - 1))

    def multiply(self, vectors: int, count: str, first: str) -> None:
        """Prints the product of ``count`` tiles at ``vx`` with the weights ``ws``, into ``mx``."""
        code, scheme = self.code, self.scheme
        columns = scheme.tile.columns
        width = vectors * scheme.lanes
        depth = self.numbers("depth", scheme.problem.in_channels)
        code.line(f"{_POINTER} ahead = ws + {depth} * {width};")
        code.line(f"{_POINTER} asked = ahead + {depth} * {width};")
        prefetched = scheme.product.steps * scheme.product.lines_per_iteration * LINE_FLOATS
        shift = self.numbers("ahead_shift", prefetched if scheme.product.tiles > 1 else 0)
        with code.block(f"for (uniform int c = 0; c < {count}; c += {columns})"):
            at = f"c * {scheme.lanes}"
            name = tile_name(1, columns, vectors)
            code.line(f"{_POINTER} later = ahead < asked ? ahead : NULL;")
            code.line(f"{name}(numbers, vx + {at}, ws, later, kept, mx + {at}, {first}, 0);")
            code.line(f"ahead += {shift};")


class _Local(_Printer):
    """Prints the local kernel; a task computes a chunk of tiles, all in its thread's scratch."""

    def counts(self) -> tuple[int, int, int]:
        return self.scheme.chunks, 1, self.scheme.scratch_bytes

    def pointers(self) -> dict[str, Pointer]:
        return {"x": 0, **self.results(), "weights": self.weights(), **self.vectors()}

    def functions(self) -> None:
        code, scheme, numbers = self.code, self.scheme, self.numbers
        for border in (False, True):
            print_into(code, scheme, numbers, border)
        self.tiles()
        for partial in (False, True):
            print_out(code, scheme, numbers, self.epilogue, partial)

    def task(self) -> None:
        code, numbers, scheme = self.code, self.numbers, self.scheme
        chunk = numbers("chunk", scheme.chunk)
        tiles = numbers("tiles", scheme.count)
        code.line(f"const uniform int begin = t * {chunk};")
        code.line(f"const uniform int count = min({chunk}, {tiles} - begin);")
        self._scratch()
        self.clear()
        self._places()
        self._into()
        self._groups()

    def _scratch(self) -> None:
        scheme, code = self.scheme, self.code
        offset_bytes = 0
        arrays = (("vs", scheme.source_bytes), ("ms", scheme.product_bytes))
        for name, size in (*arrays, ("zeros", scheme.zeros_bytes), ("kept", scheme.kept_bytes)):
            offset = self.numbers(f"{name}_offset", offset_bytes // 4)
            code.line(
                f"uniform float * uniform {name} = (uniform float * uniform)md_scratch + {offset};"
            )
            offset_bytes += size
        offset = self.numbers("places_offset", offset_bytes // 4)
        code.line(
            f"uniform int32 * uniform places = (uniform int32 * uniform)md_scratch + {offset};"
        )

    def _places(self) -> None:
        """Prints image, row and column of each tile, computed once for all blocks of channels."""
        code = self.code
        per_image = self.numbers("tiles_of_image", self.scheme.tiles[0] * self.scheme.tiles[1])
        across = self.numbers("tiles_across", self.scheme.tiles[1])
        with code.block("for (uniform int q = 0; q < count; q++)"):
            code.line("const uniform int tile = begin + q;")
            code.line(f"const uniform int within = tile % {per_image};")
            code.line(f"places[3 * q] = tile / {per_image};")
            code.line(f"places[3 * q + 1] = within / {across};")
            code.line(f"places[3 * q + 2] = within % {across};")

    def _into(self) -> None:
        code, scheme, numbers = self.code, self.scheme, self.numbers
        blocks = numbers("input_blocks", scheme.input_blocks)
        plane = numbers("v_plane", scheme.plane)
        with (
            code.block(f"for (uniform int b = 0; b < {blocks}; b++)"),
            code.block("for (uniform int q = 0; q < count; q++)"),
        ):
            code.line(f"uniform float * uniform v = vs + b * {plane} + q * {scheme.lanes};")
            at = ("places[3 * q]", "places[3 * q + 1]", "places[3 * q + 2]")
            # Prefetches the same tile of the next block of channels.
            later = numbers("x_plane", scheme.problem.source.plane)
            print_load(code, scheme, numbers, *at, later)

    def _groups(self) -> None:
        """Prints the products of each group of channels, transformed back before the next group."""
        code, lanes = self.code, self.scheme.lanes
        depth = self.numbers("depth", self.scheme.problem.in_channels)
        code.line(f"{_POINTER} ws = weights;")
        for i, (count, vectors) in enumerate(self.widths()):
            if not count:
                continue
            groups = self.numbers(("wide", "narrow")[i], count)
            before = "0"
            if i and self.scheme.tile.wide:
                wide = self.numbers("wide", self.scheme.tile.wide)
                before = f"{wide} * {self.scheme.tile.vectors}"
            with code.block(f"for (uniform int g = 0; g < {groups}; g++)"):
                code.line(f"{_POINTER} vx = vs;")
                code.line("uniform float * uniform mx = ms;")
                with code.block(f"for (uniform int k = 0; k < {self.scheme.matrices}; k++)"):
                    self.multiply(vectors, "count", "0")
                    code.line(f"ws += {depth} * {vectors * lanes};")
                    code.line(f"vx += {self.numbers('v_matrix', self.scheme.source_matrix)};")
                    code.line(f"mx += {self.numbers('m_matrix', self.scheme.product_matrix)};")
                self._out(vectors, before)

    def _out(self, vectors: int, before: str) -> None:
        code, lanes = self.code, self.scheme.lanes
        plane = self.numbers("m_plane", self.scheme.plane)
        with code.block(f"for (uniform int v = 0; v < {vectors}; v++)"):
            code.line(f"const uniform int first = ({before} + g * {vectors} + v) * {lanes};")
            with code.block("for (uniform int q = 0; q < count; q++)"):
                code.line(f"{_POINTER} products = ms + v * {plane} + q * {lanes};")
                print_store(
                    code,
                    self.scheme,
                    self.numbers,
                    self.epilogue,
                    "places[3 * q]",
                    "places[3 * q + 1]",
                    "places[3 * q + 2]",
                )


class _Into(_Printer):
    """Prints the kernel that transforms inputs; a task is a row of tiles of a block of channels."""

    written = "vs"

    def counts(self) -> tuple[int, int, int]:
        scheme = self.scheme
        rows = scheme.problem.batch * scheme.tiles[0]
        return rows * scheme.input_blocks, GRAIN, scheme.zeros_bytes

    def pointers(self) -> dict[str, Pointer]:
        return {"x": 0, "vs": Workspace(0)}

    def functions(self) -> None:
        for border in (False, True):
            print_into(self.code, self.scheme, self.numbers, border)

    def task(self) -> None:
        code, scheme, numbers = self.code, self.scheme, self.numbers
        code.line("uniform float * uniform zeros = (uniform float * uniform)md_scratch;")
        self.clear()
        down = numbers("tiles_down", scheme.tiles[0])
        across = numbers("tiles_across", scheme.tiles[1])
        rows = numbers("tile_rows", scheme.problem.batch * scheme.tiles[0])
        plane = numbers("v_plane", scheme.plane)
        code.line(f"const uniform int b = t / {rows};")
        code.line(f"const uniform int line = t % {rows};")
        code.line(f"const uniform int image = line / {down};")
        code.line(f"const uniform int row = line % {down};")
        with code.block(f"for (uniform int column = 0; column < {across}; column++)"):
            code.line(
                f"uniform float * uniform v = vs + (uniform int64)b * {plane} + "
                f"(line * {across} + column) * {scheme.lanes};"
            )
            # Prefetches the tile below.
            later = f"{scheme.transform.outputs} * {numbers('x_row', scheme.problem.source.row)}"
            print_load(code, scheme, numbers, "image", "row", "column", later)


class _Products(_Printer):
    """Prints the kernel that multiplies; a task computes one matrix product, or some groups of its
    output channels."""

    written = "ms"

    def counts(self) -> tuple[int, int, int]:
        return self.scheme.matrices * self.scheme.parts, 1, self.scheme.kept_bytes

    def pointers(self) -> dict[str, Pointer]:
        return {
            "vs": Workspace(0),
            "ms": Workspace(self.scheme.source_bytes),
            "weights": self.weights(),
        }

    def functions(self) -> None:
        self.tiles()

    def task(self) -> None:
        code, scheme, numbers = self.code, self.scheme, self.numbers
        tile, lanes = scheme.tile, scheme.lanes
        code.line("uniform float * uniform kept = (uniform float * uniform)md_scratch;")
        parts = numbers("parts", scheme.parts)
        groups = numbers("groups", tile.groups)
        depth = numbers("depth", scheme.problem.in_channels)
        matrix = numbers(
            "matrix_weights", scheme.output_blocks * lanes * scheme.problem.in_channels
        )
        code.line(f"const uniform int64 k = t / {parts};")
        code.line(f"const uniform int part = t % {parts};")
        code.line(f"{_POINTER} vx = vs + k * {numbers('v_matrix', scheme.source_matrix)};")
        code.line(
            f"uniform float * uniform mx = ms + k * {numbers('m_matrix', scheme.product_matrix)};"
        )
        code.line(f"const uniform int last = (part + 1) * {groups} / {parts};")
        with code.block(f"for (uniform int g = part * {groups} / {parts}; g < last; g++)"):
            count = numbers("tiles", scheme.count)
            if tile.narrow and tile.wide:
                wide = numbers("wide", tile.wide)
                slot = f"g < {wide} ? g * {tile.vectors} : g * {tile.vectors - 1} + {wide}"
            else:
                slot = f"g * {tile.vectors}"
            code.line(f"const uniform int slot = ({slot}) * {lanes};")
            code.line(f"{_POINTER} ws = weights + k * {matrix} + (uniform int64)slot * {depth};")
            if not (tile.narrow and tile.wide):
                self.multiply(tile.vectors, count, "slot")
                return
            with code.block(f"if (g < {wide})"):
                self.multiply(tile.vectors, count, "slot")
            with code.block("else"):
                self.multiply(tile.vectors - 1, count, "slot")


class _Out(_Printer):
    """Prints the kernel that transforms products back; a task is a row of tiles of a block of
    channels."""

    def counts(self) -> tuple[int, int, int]:
        scheme = self.scheme
        return scheme.problem.batch * scheme.tiles[0] * scheme.output_blocks, GRAIN, 0

    def pointers(self) -> dict[str, Pointer]:
        products = Workspace(self.scheme.source_bytes)
        return {"ms": products, **self.results(), **self.vectors()}

    def functions(self) -> None:
        for partial in (False, True):
            print_out(self.code, self.scheme, self.numbers, self.epilogue, partial)

    def task(self) -> None:
        code, scheme, numbers = self.code, self.scheme, self.numbers
        lanes = scheme.lanes
        rows = numbers("tile_rows", scheme.problem.batch * scheme.tiles[0])
        down = numbers("tiles_down", scheme.tiles[0])
        across = numbers("tiles_across", scheme.tiles[1])
        plane = numbers("m_plane", scheme.plane)
        code.line(f"const uniform int b = t / {rows};")
        code.line(f"const uniform int line = t % {rows};")
        code.line(f"const uniform int image = line / {down};")
        code.line(f"const uniform int row = line % {down};")
        code.line(f"const uniform int first = b * {lanes};")
        with code.block(f"for (uniform int column = 0; column < {across}; column++)"):
            code.line(
                f"{_POINTER} products = ms + (uniform int64)b * {plane} + "
                f"(line * {across} + column) * {lanes};"
            )
            print_store(code, scheme, numbers, self.epilogue, "image", "row", "column")
