"""What every printed ISPC file begins with, and the rules a printer keeps.

**Fused multiply-add.**  Units are compiled with ``--opt=disable-fma`` and without ``fast-math``:
``a * b + c`` is then two roundings everywhere, for uniform and for varying operands.  A fused one
is written ``md_fma(a, b, c)``.  ISPC (1.26, 1.28) has no ``fma`` in its library; the prelude calls
LLVM's ``llvm.fma`` intrinsic, which names a width, so the prelude belongs to one ISA.  LLVM folds
a negated operand into the instruction (``md_fma(-a, b, c)`` is one ``vfnmadd``), which rounds the
same.  ``tests/cpu/test_fma.py`` holds this by behaviour and by disassembly.

**Kernels.**  ``MD_KERNEL(name)`` opens the definition of a kernel that the runner can call; inside,
``md_pointers[i]`` is operand ``i``, tasks are ``md_begin`` to ``md_end`` (not included), and
``md_scratch`` is memory of this thread, not initialised, aligned to 64 bytes.

**Functions** beside ISPC's own are those of :mod:`..codegen.functions`.  They stand in every unit:
parsing them takes 3 ms, and those that a unit does not call leave no code.
"""

from __future__ import annotations

from ...codegen.dialect import ISPC
from ...codegen.functions import FUNCTIONS
from ..isa import Isa

_PRELUDE = """\
static inline float md_fma(float a, float b, float c) {{
  return @llvm.fma.v{n}f32(a, b, c);
}}
static inline uniform float md_fma(uniform float a, uniform float b, uniform float c) {{
  return @llvm.fma.f32(a, b, c);
}}
static inline double md_fma(double a, double b, double c) {{
  return @llvm.fma.v{n}f64(a, b, c);
}}
static inline uniform double md_fma(uniform double a, uniform double b, uniform double c) {{
  return @llvm.fma.f64(a, b, c);
}}
#define MD_KERNEL(name) __attribute__((external_only)) export void name( \\
    uniform int8 * uniform * uniform md_pointers, uniform int32 md_begin, uniform int32 md_end, \\
    uniform int8 * uniform md_scratch)
#define MD_IN(type, i) ((const uniform type * uniform)md_pointers[i])
#define MD_OUT(type, i) ((uniform type * uniform)md_pointers[i])
// a > b ? a : b is one instruction, which gives b if either is NaN: only a needs a look. The NaN
// is all ones because a comparison's mask is, so on AVX2 the outer choice is a bitwise or.
static inline float md_max(float a, float b) {{
  float m = a > b ? a : b;
  return a != a ? floatbits(0xffffffff) : m;
}}
static inline float md_min(float a, float b) {{
  float m = a < b ? a : b;
  return a != a ? floatbits(0xffffffff) : m;
}}
// bfloat16 is the upper half of a float: to the nearest, ties to even, and NaN stays NaN.
static inline unsigned int md_upper(float a) {{
  const unsigned int bits = intbits(a);
  const unsigned int up = bits + 0x7fff + ((bits >> 16) & 1);
  return a != a ? (bits | 0x400000) : up;
}}
static inline unsigned int16 md_narrow(float a) {{ return (unsigned int16)(md_upper(a) >> 16); }}
static inline float md_round(float a) {{ return floatbits(md_upper(a) & 0xffff0000); }}
static inline float md_wide(unsigned int16 a) {{ return floatbits((unsigned int)a << 16); }}
static inline uniform float md_wide(uniform unsigned int16 a) {{
  return floatbits((uniform unsigned int)a << 16);
}}

"""


def prelude(isa: Isa) -> str:
    """The first lines of a unit for ``isa``."""
    return _PRELUDE.format(n=isa.lanes) + ISPC.fill(FUNCTIONS)
