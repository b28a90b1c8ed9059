"""Kernels of batches for tensor cores, from files that name what they leave open in dollars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ...codegen.kernel import KernelSource
from ..contraction.text import fill
from ..prelude import TYPES


def unravel(index: str, sizes: Sequence[int], pointers: Mapping[str, Sequence[int]]) -> str:
    """Moves pointers, of each of which so many elements lie between neighbours along each axis of a
    batch, to the matrices of a number."""
    lines = [f"unsigned int rest = {index};"]
    for axis in reversed(range(len(sizes))):
        place = f"rest % {sizes[axis]}u" if axis else "rest"
        for name, steps in pointers.items():
            if steps[axis] != 0:
                lines.append(f"{name} += ({place}) * {steps[axis]}ll;")
        if axis:
            lines.append(f"rest /= {sizes[axis]}u;")
    return "\n  ".join(lines)


_PTX = {"float16": "f16", "bfloat16": "bf16"}


def kernel_of(file: Path, dtype: str, parts: Mapping[str, object]) -> KernelSource:
    """The kernel of a file, of halves: filled in, and named after the file and its own text."""
    shared = Path(__file__).with_name("fragments.cu")
    types = {"FRAGMENTS": _template(shared), "T": TYPES[dtype], "PTX": _PTX[dtype]}
    text = fill(_template(file), {**parts, **types})
    return KernelSource.named(file.stem, text, "$NAME$")


@cache
def _template(file: Path) -> str:
    return file.read_text().rstrip("\n")
