"""What printed expressions may rely on: special values and rounding, the same on both ISAs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from minidnn.backends.cpu.execution.program import BoundKernel, NativeProgram, Pool
from minidnn.backends.cpu.isa import Isa
from minidnn.runtime.operand import Operand

from .conftest import Build

Array = np.ndarray
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-40, 3e38, 2.5], np.float32)

KERNELS = """
MD_KERNEL(varying_NUMBER) {
  for (uniform int i = 0; i < 112; i += programCount) {
    float a = MD_IN(float, 0)[i + programIndex];
    float b = MD_IN(float, 1)[i + programIndex];
    MD_OUT(float, 2)[i + programIndex] = EXPRESSION;
  }
}
MD_KERNEL(uniform_NUMBER) {
  for (uniform int i = 0; i < 112; i++) {
    uniform float a = MD_IN(float, 0)[i];
    uniform float b = MD_IN(float, 1)[i];
    MD_OUT(float, 2)[i] = EXPRESSION;
  }
}
"""

CASES: dict[str, Callable[[Array, Array], Array]] = {
    "(a > b ? a : b)": lambda a, b: np.where(a > b, a, b),
    "(a < 0.0f ? 0.0f : a)": lambda a, b: np.where(a < 0, np.float32(0), a),
    "(a > b || a != a ? a : b)": lambda a, b: np.where((a > b) | np.isnan(a), a, b),
    "a / b": lambda a, b: a / b,
    "sqrt(a)": lambda a, b: np.sqrt(a),
    "a * b - a": lambda a, b: a * b - a,
}


@pytest.mark.parametrize("expression", list(CASES))
def test_bits(expression: str, isa: Isa, build: Build) -> None:
    a, b = (grid.ravel() for grid in np.meshgrid(SPECIAL, SPECIAL))
    a, b = np.pad(a, (0, 12)), np.pad(b, (0, 12))
    with np.errstate(all="ignore"):
        expected = CASES[expression](a, b)
    texts = (
        KERNELS.replace("NUMBER", str(number)).replace("EXPRESSION", each)
        for number, each in enumerate(CASES)
    )
    library = build("".join(texts), isa)  # in the cache for all but the first
    for name in (f"{kind}_{list(CASES).index(expression)}" for kind in ("varying", "uniform")):
        out = np.full(112, 7, np.float32)
        region = BoundKernel(library.kernel(name), tuple(map(Operand, range(3))), 1)
        NativeProgram([region], 3, pool=Pool(1)).run([x.ctypes.data for x in (a, b, out)])
        np.testing.assert_array_equal(out, expected, err_msg=name)
        numbers = ~np.isnan(expected)  # equal zeros may differ in sign
        np.testing.assert_array_equal(np.signbit(out)[numbers], np.signbit(expected)[numbers])
