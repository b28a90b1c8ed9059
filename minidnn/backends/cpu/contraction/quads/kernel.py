"""Prints the kernel around products of quads."""

from __future__ import annotations

from functools import partial

from .....fusion.contraction import Parts
from ....codegen.kernel import KernelSource
from ..dots.kernel import DotKernel, grain_of, offsets_of
from ..epilogue import Epilogue
from ..numbers import Numbers
from ..stage import Pointer, PrintedContraction, Stage
from ..weights import packed_outputs
from .pack import QuadPacker
from .scheme import QuadScheme
from .weights import packed_quads, starts


def print_quads(parts: Parts, scheme: QuadScheme, threads: int) -> PrintedContraction:
    """The kernel that follows ``scheme``."""
    numbers = Numbers()
    epilogue = Epilogue(parts, scheme, numbers, sums=_Kernel.sums)
    printer = _Kernel(scheme, QuadPacker(parts, scheme, numbers), epilogue, numbers)
    printer.print()
    pointers: list[Pointer] = [
        *range(len(parts.others) + 2),
        packed_quads(parts.node.inputs[1], scheme),
        partial(starts, parts, scheme),
        partial(offsets_of, scheme),
        *(packed_outputs([v], scheme) for v in epilogue.vectors),
    ]
    products = [scheme.products(v, p) for v in printer.vectors for p in printer.pixels]
    pieces = dict.fromkeys(piece for each in products for piece in each.pieces)
    stage = Stage(
        KernelSource.named("quads", str(printer.code), beside=tuple(pieces)),
        (*pointers, numbers.pack),
        scheme.tasks,
        grain_of(scheme, threads),
        scheme.scratch_bytes,
    )
    return PrintedContraction("products of quads", (stage,))


class _Kernel(DotKernel):
    sums = "int32"
    tiles = ("md_begin_byte_tiles", "md_end_byte_tiles")
