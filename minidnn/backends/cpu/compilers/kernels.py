"""Many small kernels to few files, each kernel found again whatever file it was compiled in.

Starting ISPC costs 180 ms and a kernel 50 to 100, so kernels are compiled several to a file, and
files in parallel.  Networks share kernels without sharing files: an index entry for each kernel
says which compiled file has it, and only kernels without one are compiled.

Every printed ISPC file begins with the prelude; these are the rules a printer keeps.

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

import json
from collections.abc import Mapping, Sequence

from ....cache import CacheStore, building_allowed, digest
from ....runtime.cores import usable_cores
from ...codegen.dialect import ISPC
from ...codegen.functions import FUNCTIONS
from ...codegen.kernel import KernelSource, by_name, in_groups
from ..isa import Isa
from .compiler import FLAGS, Unit, compile_units, unit_store
from .library import NativeFunction, SharedObject, load
from .toolchain import find_ispc, ispc_banners

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


MOST_PER_FILE = 16
LEAST_PER_FILE = 2
"""As many files as cores, within these bounds: with fewer kernels in a file starting ISPC
dominates, with more the cores end at different times."""

INDEX_BYTES = 32 << 20


def compile_kernels(
    sources: Sequence[KernelSource], isa: Isa, *, jobs: int | None = None
) -> list[NativeFunction]:
    """The compiled kernels, in the order of ``sources``; what is cached is not compiled.

    Raises:
        ValueError: two kernels of one name have different texts.
        CompileError, DeviceError: as :func:`.compiler.compile_units`.
    """
    unique = by_name(sources)
    index, head = CacheStore("ispc_index", ".json", INDEX_BYTES), prelude(isa)
    ready: dict[str, NativeFunction] = {}
    for banner in ispc_banners():
        left = [source for name, source in unique.items() if name not in ready]
        ready |= _cached({s.name: _key(s, head, isa, banner) for s in left}, index)
    missing = [source for name, source in unique.items() if name not in ready]
    if missing:
        names = ", ".join(source.name for source in missing)
        building_allowed(
            f"{len(missing)} kernel{'s' * (len(missing) > 1)} for {isa.name} ({names})"
        )
        files = group(missing, head, isa, jobs or usable_cores())
        libraries = compile_units([unit for unit, _ in files], jobs=jobs)
        for (unit, members), library in zip(files, libraries, strict=True):
            banner = find_ispc().banner
            entry = json.dumps({"unit": unit.key(banner)}).encode()
            for source in members:
                ready[source.name] = library.kernel(source.name)
                index.put(_key(source, head, isa, banner), entry, label=source.name)
    return [ready[source.name] for source in sources]


def _cached(keys: Mapping[str, str], index: CacheStore) -> dict[str, NativeFunction]:
    """The kernels that are there of those with these names and keys."""
    units, libraries = unit_store(), dict[str, SharedObject | None]()
    ready = {}
    for name, key in keys.items():
        if (known := index.read(key)) is not None:
            unit = json.loads(known)["unit"]
            if unit not in libraries:
                libraries[unit] = units.use(unit, load)
            if (library := libraries[unit]) is not None:
                ready[name] = library.kernel(name)
    return ready


def group(
    sources: Sequence[KernelSource], head: str, isa: Isa, jobs: int
) -> list[tuple[Unit, list[KernelSource]]]:
    """Distributes kernels over files of about equal length, for ``jobs`` compilers at once.

    Equal arguments give equal files, in every process.
    """
    least, most = -(-len(sources) // MOST_PER_FILE), -(-len(sources) // LEAST_PER_FILE)
    count = min(most, max(least, jobs))
    files = []
    for part in in_groups(sources, count):
        shared = dict.fromkeys(piece for source in part for piece in source.shared)
        text = head + "\n".join((*shared, *(source.text for source in part)))
        beside = "\n".join(dict.fromkeys(piece for source in part for piece in source.beside))
        files.append((Unit(f"kernels_{digest(text)[:8]}", text, isa, beside=beside), part))
    return files


def _key(source: KernelSource, head: str, isa: Isa, banner: str) -> str:
    target = (isa.target, FLAGS, banner)
    pieces = (*source.beside, *source.shared)
    return digest("ispc kernel", head, source.name, source.text, *target, *pieces)
