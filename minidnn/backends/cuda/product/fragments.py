"""Kernels for tensor cores from files that name what they leave open in dollars."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ...codegen.kernel import KernelSource
from ..contraction.text import fill
from ..prelude import TYPES

_PTX = {"float16": "f16", "bfloat16": "bf16"}
HALVES = tuple(_PTX)


def kernel_of(file: Path, dtype: str, parts: Mapping[str, object]) -> KernelSource:
    """The kernel of a file, of halves: filled in, and named after the file and its own text."""
    shared = Path(__file__).with_name("fragments.cu")
    types = {"FRAGMENTS": _template(shared), "T": TYPES[dtype], "PTX": _PTX[dtype]}
    text = fill(_template(file), {**parts, **types})
    return KernelSource.named(file.stem, text, "$NAME$")


@cache
def _template(file: Path) -> str:
    return file.read_text().rstrip("\n")
