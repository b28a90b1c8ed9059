"""Fills the ``.cu`` templates of this folder: kernels of batched products on tensor cores.

A template names its parameters between dollars (``$TILE$``) and includes ``fragments.cu``, the
functions that load operands to shared memory and issue matrix instructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ...codegen.kernel import KernelSource
from ..contraction.text import fill
from ..prelude import TYPES


def unravel(index: str, sizes: Sequence[int], pointers: Mapping[str, Sequence[int]]) -> str:
    """Statements that move pointers to the matrix of a batch whose number is ``index``.

    Args:
        index: the expression of that number, counted over all axes of the batch.
        sizes: the extents of the batch's axes.
        pointers: for each pointer's name, its strides in elements along these axes.
    """
    lines = [f"unsigned int rest = {index};"]
    for axis in reversed(range(len(sizes))):
        coordinate = f"rest % {sizes[axis]}u" if axis else "rest"
        for name, strides in pointers.items():
            if strides[axis] != 0:
                lines.append(f"{name} += ({coordinate}) * {strides[axis]}ll;")
        if axis:
            lines.append(f"rest /= {sizes[axis]}u;")
    return "\n  ".join(lines)


_PTX = {"float16": "f16", "bfloat16": "bf16"}
"""The names of element types in PTX instructions."""


def kernel_of(file: str, dtype: str, parts: Mapping[str, object]) -> KernelSource:
    """The kernel of a template, filled in for float16 or bfloat16, and named after the file and a
    digest of its text."""
    types = {"FRAGMENTS": template("fragments.cu"), "T": TYPES[dtype], "PTX": _PTX[dtype]}
    text = fill(template(file), {**parts, **types})
    return KernelSource.named(Path(file).stem, text, "$NAME$")


@cache
def template(file: str) -> str:
    """Returns the text of a file beside this one."""
    return Path(__file__).with_name(file).read_text().rstrip("\n")
