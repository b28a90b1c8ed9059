"""Scalar functions in CUDA: the text of :mod:`..cpu.math`, in this dialect.

So an element-wise operator has the same bits on both devices, and the same bounds
(:data:`..cpu.math.BOUNDS`).  CUDA's own ``expf`` and the like differ from release to release, and
some of them lose NaN or flush denormal numbers.
"""

from __future__ import annotations

import re

from ..cpu.math import MATH as ISPC_MATH

_WORDS = {
    "static inline": "static __device__ inline",
    "abs(": "fabsf(",
    "floor(": "floorf(",
}


def _translate(text: str) -> str:
    # Maxima and minima are single instructions here: they stand in the dialect.
    _, _, functions = text.partition("// Added to a float")
    functions = "// Added to a float" + functions
    for word, ours in _WORDS.items():
        functions = functions.replace(word, ours)
    # ISPC writes float64 constants with a d.
    return re.sub(r"\b(0x[0-9a-f.]+p[+-]?\d+|\d+\.\d*)d\b", r"\1", functions)


MATH = _translate(ISPC_MATH)
