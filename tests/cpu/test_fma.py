"""Whether a multiply-add is fused stands in the source, never in the compiler's mood."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from minidnn.backends.cpu.compilers.kernels import FLAGS, prelude
from minidnn.backends.cpu.execution.program import BoundKernel, NativeProgram, Pool
from minidnn.backends.cpu.isa import Isa
from minidnn.runtime.operand import Operand

from .conftest import Build

# Each output has 16 elements: varying code writes a gang at a time, uniform code one by one.
TEXT = """
MD_KERNEL(plain_TYPE) {
  const uniform TYPE * uniform a = MD_IN(TYPE, 0), * uniform b = MD_IN(TYPE, 1);
  const uniform TYPE * uniform c = MD_IN(TYPE, 2);
  uniform TYPE * uniform varying_out = MD_OUT(TYPE, 3);
  uniform TYPE * uniform uniform_out = MD_OUT(TYPE, 4);
  for (uniform int i = 0; i < 16; i += programCount) {
    int at = i + programIndex;
    varying_out[at] = a[at] * b[at] + c[at];
  }
  for (uniform int i = 0; i < 16; i++) uniform_out[i] = a[i] * b[i] + c[i];
}
MD_KERNEL(fused_TYPE) {
  const uniform TYPE * uniform a = MD_IN(TYPE, 0), * uniform b = MD_IN(TYPE, 1);
  const uniform TYPE * uniform c = MD_IN(TYPE, 2);
  uniform TYPE * uniform varying_out = MD_OUT(TYPE, 3);
  uniform TYPE * uniform uniform_out = MD_OUT(TYPE, 4);
  for (uniform int i = 0; i < 16; i += programCount) {
    int at = i + programIndex;
    varying_out[at] = md_fma(a[at], b[at], c[at]);
  }
  for (uniform int i = 0; i < 16; i++) uniform_out[i] = md_fma(a[i], b[i], c[i]);
}
"""
# ISPC takes no second declarator with qualifiers of its own.
TEXT = TEXT.replace(", * uniform b =", ";\n  const uniform TYPE * uniform b =")


def source(kind: str) -> str:
    return TEXT.replace("TYPE", kind)


def exact_fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Correctly rounded a * b + c from exact fractions."""
    from fractions import Fraction

    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    if a.dtype == np.float64:
        return np.array([float(e) for e in exact])  # Fraction to float rounds correctly
    out = []
    for e in exact:
        near = np.float32(float(e))
        around = [
            np.nextafter(near, np.float32(-np.inf)),
            near,
            np.nextafter(near, np.float32(9e9)),
        ]
        out.append(min(around, key=lambda v: abs(Fraction(float(v)) - e)))
    return np.array(out, np.float32)


@pytest.mark.parametrize("kind", ["float", "double"])
def test_values(build: Build, isa: Isa, kind: str) -> None:
    dtype = {"float": np.float32, "double": np.float64}[kind]
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 16)).astype(dtype)
    c = (-(a * b)).astype(dtype)  # cancellation: only the rounding error is left
    separate, fused = (a * b + c).astype(dtype), exact_fma(a, b, c)
    assert (separate != fused).any() and not separate.any()
    library = build(source(kind), isa)
    for name, expected in (("plain", separate), ("fused", fused)):
        outs = np.full((2, 16), 7, dtype)
        region = BoundKernel(library.kernel(f"{name}_{kind}"), tuple(map(Operand, range(5))), 1)
        bases = [x.ctypes.data for x in (a, b, c, outs[0], outs[1])]
        NativeProgram([region], 5, pool=Pool(1)).run(bases)
        np.testing.assert_array_equal(outs, [expected, expected], err_msg=name)


@pytest.mark.parametrize("kind", ["float", "double"])
def test_instructions(isa: Isa, kind: str, tmp_path: Path, real_ispc: str) -> None:
    path = tmp_path / "fma.ispc"
    path.write_text(prelude(isa) + source(kind))
    command = [real_ispc, str(path), *FLAGS, f"--target={isa.target}", "--emit-asm", "-o", "-"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    bodies = dict(re.findall(rf"(?ms)^(plain|fused)_{kind}:(.*?)^\.Lfunc_end", text))
    letter = kind[0].replace("f", "s")
    assert not re.search("vfn?m(add|sub)", bodies["plain"])
    assert re.search(f"vmulp{letter}", bodies["plain"])
    assert re.search(f"vfmadd[0-9]+p{letter}", bodies["fused"])
    assert not re.search("call", bodies["fused"])


def test_no_fast_math() -> None:
    assert not any("fast" in flag for flag in FLAGS)
    assert "--opt=disable-fma" in FLAGS
