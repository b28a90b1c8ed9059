"""Transposition between NCHW and channels in lanes: functions that printed kernels call, and the
kernels that do nothing else.

Tiles of as many positions as a register has lanes are transposed in registers by butterflies of
shuffles.  Where fewer positions are left, the last tile overlaps the one before it; only rows
shorter than a tile are masked.  Where all planes have the same alignment, all tiles but the first
and the last are aligned: no cache line is touched twice, and stores can bypass the caches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....graph.types import TensorType
from ...codegen.code import Code
from ...codegen.kernel import KernelSource
from ..operators.kernels import Shaped
from ..tensor import Element, Tensor

LINE = 16
"""Floats of a cache line."""

MANY_TILES = 8
"""With fewer tiles, alignment does not pay: it may take one more tile."""


@dataclass(frozen=True)
class Move:
    """A function that moves positions of planes of any size, so that kernels share it.

    Attributes:
        kind: "load", "store", or "stream" for a store that bypasses the caches.
        alike: whether all planes have the same alignment within a vector.
        full: whether all lanes are channels.
        element: the dtype in NCHW.
    """

    kind: str
    alike: bool
    full: bool
    element: Element

    @classmethod
    def of(cls, kind: str, plane: int, lanes: int, full: bool, element: Element) -> Move:
        """The function for planes of ``plane`` elements; "stream" is for whole cache lines alone,
        otherwise it becomes "store"."""
        if kind == "stream" and plane % LINE:
            kind = "store"
        return cls(kind, plane % lanes == 0, full, element)

    @property
    def name(self) -> str:
        parts = ("md", self.kind, *(["alike"] * self.alike), *(["part"] * (not self.full)))
        dtype = self.element.dtype
        return "_".join((*parts, *([dtype] * (dtype != "float32"))))

    def text(self, lanes: int) -> str:
        code = Code()
        (print_load if self.kind == "load" else print_store)(code, self, lanes)
        return str(code)


def _tiles(pointer: str, move: Move, lanes: int) -> str:
    """The head of the loop over tiles of the planes at a pointer; ``p`` is the first position of a
    tile before it is clamped to the plane."""
    begin, element = "0", move.element
    if move.alike:
        shift = element.bytes.bit_length() - 1
        misalignment = f"(uniform int)(((uniform int64){pointer} >> {shift}) & {lanes - 1})"
        begin = f"n < {MANY_TILES * lanes} ? 0 : -{misalignment}"
    return f"for (uniform int p = {begin}; p < n; p += {lanes})"


def print_load(code: Code, move: Move, lanes: int) -> None:
    """Prints ``name(x, plane, channels, n, y, seen)``, which transposes ``n`` positions of a block
    of channels from NCHW planes at ``x``, ``plane`` elements apart, to ``y``, and records the
    largest magnitude of each lane in ``seen``.

    Lanes past ``channels`` get the last channel's elements; with ``full`` there are none.
    """
    element = move.element
    head = (
        f"static noinline unmasked void {move.name}({element.constant_pointer} x, "
        "uniform int plane, uniform int channels, uniform int n, uniform float * uniform y, "
        "uniform unsigned int * uniform seen)"
    )

    def address(lane: int) -> str:
        if move.full or lane == 0:
            return element.load(f"{_plane_at('x', lane)}[programIndex]")
        return element.load(f"x[min({lane}, channels - 1) * plane + q + programIndex]")

    with code.block(head):
        _indices(code, lanes)
        code.line("unsigned int most = seen[programIndex];")
        with code.block(f"if (n >= {lanes})"), code.block(_tiles("x", move, lanes)):
            code.line(f"uniform int q = clamp(p, 0, n - {lanes});")
            _planes(code, element.constant_pointer, "x", lanes)
            code.lines(f"float a{i} = {address(i)};" for i in range(lanes))
            _check(code, lanes)
            names = _transpose(code, lanes)
            code.lines(f"y[(q + {i}) * {lanes} + programIndex] = {names[i]};" for i in range(lanes))
        with code.block("else"):
            code.line("uniform int q = 0;")
            _planes(code, element.constant_pointer, "x", lanes)
            for i in range(lanes):
                code.line(f"float a{i} = 0.0f; if (programIndex < n) a{i} = {address(i)};")
            _check(code, lanes)
            names = _transpose(code, lanes)
            for i in range(lanes):
                code.line(f"if ({i} < n) y[{i * lanes} + programIndex] = {names[i]};")
        code.line("seen[programIndex] = most;")


def print_store(code: Code, move: Move, lanes: int) -> None:
    """Prints ``name(y, plane, channels, n, x, seen)``, which transposes ``n`` positions at ``x`` to
    the channels' NCHW planes at ``y``, ``plane`` elements apart.

    A "stream", for float32 alone, writes whole cache lines by non-temporal stores.  A processor has
    few write-combining buffers, and loses much when one is flushed half full: so a line of several
    vectors is written at once, before the lines of other planes are begun.
    """
    element, full = move.element, move.full
    head = (
        f"static noinline unmasked void {move.name}({element.pointer} y, "
        "uniform int plane, uniform int channels, uniform int n, const uniform float * uniform x, "
        "const uniform unsigned int * uniform seen)"
    )

    def tile(at: str) -> list[str]:
        code.lines(f"float a{i} = x[({at} + {i}) * {lanes} + programIndex];" for i in range(lanes))
        return _transpose(code, lanes)

    def stores(names: list[str], mask: str) -> None:
        for i in range(lanes):
            test = f"if ({i} < channels) " if not full and i else ""
            place = f"{_plane_at('y', i)}[programIndex]"
            code.line(f"{test}{mask}{element.store(place, names[i])}")

    def streamed() -> None:
        for part in range(LINE // lanes):
            code.lines(f"float line{part}_{i};" for i in range(lanes))
            with code.block(""):
                names = tile(f"q + {part * lanes}")
                code.lines(f"line{part}_{i} = {names[i]};" for i in range(lanes))
        for i in range(lanes):
            with code.block(f"if ({i} < channels)" if not full and i else ""):
                for part in range(LINE // lanes):
                    at = f"{_plane_at('y', i)} + {part * lanes}"
                    code.line(f"streaming_store({at}, line{part}_{i});")
        code.line(f"p += {LINE - lanes};")

    with code.block(head):
        _indices(code, lanes)
        with code.block(f"if (n >= {lanes})"), code.block(_tiles("y", move, lanes)):
            code.line(f"uniform int q = clamp(p, 0, n - {lanes});")
            _planes(code, element.pointer, "y", lanes)
            if move.kind == "stream":
                # Not lines that the first or the last tile, clamped to the plane, writes too.
                code.line(f"const uniform int after = n - q - {LINE};")
                begins = f"((uniform int64)(y + q) & {4 * LINE - 1}) == 0"
                alone = [f"({where} == 0 || {where} >= {lanes})" for where in ("q", "after")]
                with code.block(f"if ({' && '.join((begins, *alone))})"):
                    streamed()
                with code.block("else"):
                    stores(tile("q"), "")
            else:
                stores(tile("q"), "")
        with code.block("else"):
            code.line("uniform int q = 0;")
            _planes(code, element.pointer, "y", lanes)
            for i in range(lanes):
                code.line(f"float a{i} = x[min({i}, n - 1) * {lanes} + programIndex];")
            stores(_transpose(code, lanes), "if (programIndex < n) ")


def _planes(code: Code, type: str, pointer: str, lanes: int) -> None:
    """Declares pointers to position ``q`` of every fourth plane."""
    code.line(f"{type} {pointer}0 = {pointer} + q;")
    for lane in range(4, lanes, 4):
        code.line(f"{type} {pointer}{lane} = {pointer}{lane - 4} + 4 * (uniform int64)plane;")


def _plane_at(pointer: str, lane: int) -> str:
    """The address of position ``q`` of a plane.  The three planes after a declared pointer need no
    pointers of their own, as an x86 address may add one, two or four times a register."""
    offset = f" + {lane % 4} * (uniform int64)plane" if lane % 4 else ""
    return f"({pointer}{lane // 4 * 4}{offset})"


def _check(code: Code, lanes: int) -> None:
    """Updates the largest magnitudes by the elements that were loaded."""
    for i in range(lanes):
        code.line(f"most = max(most, (intbits(a{i}) & 0x7fffffffu));")


def _indices(code: Code, lanes: int) -> None:
    """Declares the lane indices of each shuffle of two registers.

    On AVX-512 LLVM combines shuffles with constant indices into ten times as many instructions, so
    indices are made to look variable: the sign bit of ``seen``, which is always zero, is xored in.
    """
    if lanes == 16:
        code.line("const uniform int zero = seen[0] >> 31;")
    step = lanes // 2
    while step:
        low = [lane if not lane & step else lanes + (lane ^ step) for lane in range(lanes)]
        high = [lanes + lane if lane & step else lane | step for lane in range(lanes)]
        for name, indices in (("low", low), ("high", high)):
            text = ", ".join(map(str, indices))
            if lanes == 16:
                code.line(f"const varying int {name}{step}_c = {{{text}}};")
                code.line(f"const int {name}{step} = {name}{step}_c ^ zero;")
            else:
                code.line(f"const varying int {name}{step} = {{{text}}};")
        step //= 2


def _shuffle(lanes: int, first: str, second: str, indices: str) -> str:
    if lanes == 16:
        return f"@llvm.x86.avx512.vpermi2var.ps.512({first}, {indices}, {second})"
    return f"shuffle({first}, {second}, {indices})"


def _transpose(code: Code, lanes: int) -> list[str]:
    """Transposes registers a0, a1, ...; returns the names of the result."""
    names = [f"a{i}" for i in range(lanes)]
    step = lanes // 2
    while step:
        following = list(names)
        for i in range(lanes):
            if i & step:
                continue
            first, second = names[i], names[i | step]
            for number, which in ((i, "low"), (i | step, "high")):
                following[number] = f"s{step}_{number}"
                shuffled = _shuffle(lanes, first, second, f"{which}{step}")
                code.line(f"float {following[number]} = {shuffled};")
        names = following
        step //= 2
    return names


_POSITIONS = 256
"""Positions of a task: rows of so many fit the L1 cache."""


def is_reorder(source: Tensor, result: Tensor, lanes: int, channel: int) -> bool:
    """Whether :func:`print_reorder` moves a value between these layouts, from ``channel`` of the
    result on."""
    is_transposed = {source.block, result.block} == {1, lanes}
    return is_transposed and channel % result.block == 0 and source.rows * source.columns > 1


def print_reorder(
    type: TensorType, source: Tensor, result: Tensor, lanes: int, channel: int
) -> Shaped:
    """The kernel that copies a value from NCHW to blocked channels or back, from ``channel`` of the
    result on; its pointers are the source, the result, and the sizes."""
    batch, channels, *plane = type.plane
    blocks, parts = -(-channels // lanes), -(-plane[0] * plane[1] // _POSITIONS)
    full, end = channels % lanes == 0, channel + channels
    padding = -end % lanes if end == result.channels else 0
    numbers = {
        **{"positions": plane[0] * plane[1], "parts": parts, "blocks": blocks},
        **{"channels": channels, "padding": padding},
        **{"from_image": source.image, "from_block": source.plane * lanes // source.block},
        **{"to_image": result.image, "to_block": result.plane * lanes // result.block},
        **{"to_offset": channel // result.block * result.plane},
    }
    code, element = Code(), source.element
    move = Move("load" if source.block == 1 else "store", False, full, element)
    with code.block("MD_KERNEL($)"):
        code.line("const uniform int64 * uniform n = MD_IN(int64, 2);")
        code.lines(f"const uniform int64 {name} = n[{i}];" for i, name in enumerate(numbers))
        words = "uniform unsigned int * uniform"
        code.line(f"{words} seen = ({words})md_scratch;")
        code.line(f"uniform float * uniform rows = (uniform float * uniform)md_scratch + {lanes};")
        code.line("seen[programIndex] = 0;")
        with code.block("for (uniform int64 item = md_begin; item < md_end; item++)"):
            code.line(f"const uniform int64 begin = item % parts * {_POSITIONS};")
            code.line("const uniform int64 block = item / parts % blocks;")
            code.line("const uniform int64 image = item / parts / blocks;")
            code.line(
                f"const uniform int size = (uniform int)min(positions - begin, {_POSITIONS}ll);"
            )
            code.line(f"const uniform int64 left = channels - block * {lanes};")
            code.line(f"const uniform int own = (uniform int)min(left, {lanes}ll);")
            base = "image * {0}_image + block * {0}_block + begin * {1}"
            code.line(
                f"{element.constant_pointer} x = MD_IN({element.type}, 0) + "
                f"{base.format('from', source.block)};"
            )
            code.line(
                f"{element.pointer} y = MD_OUT({element.type}, 1) + to_offset + "
                f"{base.format('to', result.block)};"
            )
            arguments = ["(uniform int)positions", "0" if full else "own", "size", "rows", "seen"]
            loop, at = "for (uniform int j = 0; j < size; j++)", f"[j * {lanes} + programIndex]"
            if source.block != 1:
                with code.block(loop):
                    code.line(f"rows{at} = {element.load(f'x{at}')};")
                code.line(f"{move.name}({', '.join(['y', *arguments])});")
            else:
                code.line(f"{move.name}({', '.join(['x', *arguments])});")
                if full and element.dtype == "float32":
                    # This writes lines of memory without reading them.
                    code.line(f"memcpy(y, rows, size * {4 * lanes});")
                else:
                    code.line(f"const uniform int64 filled = min(left + padding, {lanes}ll);")
                    kept = f"(programIndex < own ? rows{at} : 0.0f)"
                    with code.block(loop):
                        stored = element.store(f"y{at}", kept)
                        code.line(f"if (programIndex < filled) {stored}")
    kernel = KernelSource.named("reorder", str(code), "$", shared=(move.text(lanes),))
    scratch = 4 * lanes * (1 + _POSITIONS)
    sizes = np.array([*numbers.values()], np.int64)
    return Shaped(kernel, sizes, batch * blocks * parts, scratch_bytes=scratch)
