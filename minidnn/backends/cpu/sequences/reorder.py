"""Prints what moves planes of any size between NCHW and blocks of channels: positions are
transposed in registers, where reading or writing them one by one takes twice the time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....graph.types import TensorType
from ...codegen.code import Code
from ...codegen.kernel import KernelSource
from ..tensor import Tensor
from .transpose import Move

POSITIONS = 256
"""Of a task: rows of so many fit the first-level cache."""


@dataclass(frozen=True)
class ReorderKernel:
    """A printed move; its pointers are the source, the result, and the sizes."""

    source: KernelSource
    tasks: int
    scratch_bytes: int
    sizes: np.ndarray


def is_reorder(source: Tensor, result: Tensor, lanes: int, channel: int) -> bool:
    """Whether :func:`print_reorder` moves planes between these, from a channel of the result on."""
    ends = {source.block, result.block} == {1, lanes}
    return ends and channel % result.block == 0 and source.rows * source.columns > 1


def print_reorder(
    type: TensorType, source: Tensor, result: Tensor, lanes: int, channel: int
) -> ReorderKernel:
    """The kernel that moves a value to where it lies otherwise, from ``channel`` on."""
    batch, channels, *plane = type.plane
    blocks, parts = -(-channels // lanes), -(-plane[0] * plane[1] // POSITIONS)
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
            code.line(f"const uniform int64 begin = item % parts * {POSITIONS};")
            code.line("const uniform int64 block = item / parts % blocks;")
            code.line("const uniform int64 image = item / parts / blocks;")
            code.line(
                f"const uniform int size = (uniform int)min(positions - begin, {POSITIONS}ll);"
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
            given = ["(uniform int)positions", "0" if full else "own", "size", "rows", "seen"]
            loop, at = "for (uniform int j = 0; j < size; j++)", f"[j * {lanes} + programIndex]"
            if source.block != 1:
                with code.block(loop):
                    code.line(f"rows{at} = {element.load(f'x{at}')};")
                code.line(f"{move.name}({', '.join(['y', *given])});")
            else:
                code.line(f"{move.name}({', '.join(['x', *given])});")
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
    scratch = 4 * lanes * (1 + POSITIONS)
    sizes = np.array([*numbers.values()], np.int64)
    return ReorderKernel(kernel, batch * blocks * parts, scratch, sizes)
