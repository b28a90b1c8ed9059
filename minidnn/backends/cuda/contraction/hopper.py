"""Hopper's instructions as functions, for kernels with ``wgmma``."""

from __future__ import annotations

from .text import fill, template

ARCH = "sm_90"
"""The one architecture that has ``wgmma``."""


def hopper_text(dtype: str, width: int) -> str:
    """The functions of ``hopper.cu`` for products of ``dtype`` by ``width`` columns at once."""
    count = width // 2
    parts = {
        "N": width,
        "PTX": "f16" if dtype == "float16" else "bf16",
        "RESULTS": ", ".join(f"%{i}" for i in range(count)),
        "OPERANDS": ", ".join(f'"+f"(c[{i}])' for i in range(count)),
        "A": count,
        "A1": count + 1,
        "A2": count + 2,
        "A3": count + 3,
        "B": count + 1,
        "B4": count + 4,
        "ADD": count + 2,
        "ADD4": count + 5,
    }
    return fill(template("hopper.cu"), parts)
