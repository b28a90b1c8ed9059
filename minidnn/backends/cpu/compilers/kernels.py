"""Compiles many small kernels in few files, and finds each again whatever file it is in.

ISPC source goes in, and loaded shared objects come out: in parallel, cached by content.  Starting
ISPC costs 180 ms, a kernel 50 to 100, linking 5 and loading 0.1.  So kernels are compiled several
to a file, whose key covers source, target, options and ISPC's version, and files are not linked any
further.  Networks share kernels without sharing files: an index entry for each kernel says which
compiled file has it, and only kernels without one are compiled.

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

**Functions** beside ISPC's own are those of :mod:`...codegen.functions`.  They stand in every unit:
parsing them takes 3 ms, and those that a unit does not call leave no code.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ....cache import CacheStore, building_allowed, digest, one_at_a_time, temporary_folder
from ....errors import CompileError, DeviceError
from ....runtime.cores import usable_cores
from ...codegen.dialect import ISPC
from ...codegen.functions import FUNCTIONS
from ...codegen.kernel import KernelSource, by_name, in_groups
from ..isa import Isa
from .library import NativeFunction, SharedObject, load
from .process import Command, Finished, Watch, run_all, terminal_progress
from .toolchain import (
    BUILD_LOCK,
    CCompiler,
    CompilerIdentity,
    Ispc,
    find_cc,
    find_ispc,
    ispc_banners,
    remember,
)

FLAGS = (
    "-O3",
    "--pic",
    "--opt=disable-fma",
    "--enable-llvm-intrinsics",
    "--wno-perf",
    "--error-limit=8",
)
"""Options for every unit; no ``fast-math``, ever (it reorders and drops NaN)."""

C_FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-fPIC")
"""Options for the C of a unit; its functions declare themselves which instructions they use."""

COMPILE_SECONDS = 120.0
"""A unit that takes longer is killed (``MINIDNN_COMPILE_TIMEOUT``): the largest takes about 5."""

CACHE_BYTES = 1 << 30

MOST_COLUMNS = 200
"""The most characters of a source line that a message quotes."""

_KEY_VERSION = 1


@dataclass(frozen=True)
class Unit:
    """One ISPC source file: its name (for messages), text, ISA, further options, and C that is
    compiled into the same library."""

    name: str
    source: str
    isa: Isa
    options: tuple[str, ...] = ()
    beside: str = ""

    def key(self, banner: str) -> str:
        """The unit's key in the cache if the ISPC with this banner compiles it."""
        options = (*FLAGS, *self.options)
        beside = (self.beside, C_FLAGS) if self.beside else ()
        target = (self.isa.target, options, banner)
        return digest("ispc unit", _KEY_VERSION, self.source, *target, *beside)


def unit_store() -> CacheStore:
    return CacheStore("ispc", ".so", CACHE_BYTES)


def compile_units(
    units: Sequence[Unit],
    *,
    timeout: float | None = None,
    jobs: int | None = None,
    progress: Watch | None = None,
) -> list[SharedObject]:
    """Compiles the units that are not cached, and loads all.

    Args:
        units: equal ones are compiled once.
        timeout: seconds a unit may take before its compiler is killed; by default
            ``MINIDNN_COMPILE_TIMEOUT`` or :data:`COMPILE_SECONDS`.
        jobs: compilers that run at once; by default as many as there are usable cores.
        progress: called with how many units are done; by default a bar on a terminal.

    Returns:
        The library of each unit, in the order of ``units``.

    Raises:
        CompileError: a unit has an error (ISPC's message and the lines are quoted), its compiler
            hung, was killed or failed, or compiling is forbidden.
        DeviceError: there is no usable ISPC or C compiler, or ISPC lacks the target.
    """
    limit = compile_seconds() if timeout is None else timeout
    ready = _cached_units(units)
    if len(ready) < len(set(units)):
        uncached = {unit for unit in units if unit not in ready}
        names = ", ".join(sorted(unit.name for unit in uncached))
        building_allowed(f"{len(uncached)} ISPC file{'s' * (len(uncached) > 1)} ({names})")
        with one_at_a_time(BUILD_LOCK, "compiles", limit):
            # Another process may have built the same while this one waited for its turn.
            ready |= _cached_units([unit for unit in units if unit not in ready])
            missing = list(dict.fromkeys(unit for unit in units if unit not in ready))
            if missing:
                watch = progress or terminal_progress()
                ready |= _build(missing, limit, jobs or usable_cores(), watch)
    return [ready[unit] for unit in units]


def compile_seconds() -> float:
    """The limit for one unit.

    Raises:
        DeviceError: ``MINIDNN_COMPILE_TIMEOUT`` is not a positive number.
    """
    text = os.environ.get("MINIDNN_COMPILE_TIMEOUT", "")
    try:
        seconds = float(text) if text else COMPILE_SECONDS
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise DeviceError(
            f"MINIDNN_COMPILE_TIMEOUT={text} is not a positive number of seconds, such as 60"
        )
    return seconds


def _cached_units(units: Sequence[Unit]) -> dict[Unit, SharedObject]:
    """The units that the cache has, loaded before it may drop them."""
    store = unit_store()
    ready: dict[Unit, SharedObject] = {}
    for banner in ispc_banners():
        for unit in units:
            if unit not in ready and (library := store.use(unit.key(banner), load)) is not None:
                ready[unit] = library
    return ready


def _build(
    units: Sequence[Unit], timeout: float, jobs: int, watch: Watch
) -> dict[Unit, SharedObject]:
    names = ", ".join(unit.name for unit in units)
    ispc = find_ispc()
    for unit in units:
        ispc.require(unit.isa)
    compiler = find_cc()
    remember(CompilerIdentity("ispc", ispc.banner))
    store, missing = unit_store(), {unit.key(ispc.banner): unit for unit in units}
    try:
        with temporary_folder() as folder:
            objects = _compile(missing, folder, ispc, timeout, jobs, watch)
            libraries = _link(objects, missing, compiler, timeout, jobs)
            return {
                missing[key]: _placed(store, key, path, missing[key].name)
                for key, path in libraries.items()
            }
    except OSError as error:
        raise CompileError(
            f"compiling {names} failed: {error}; the temporary folder is "
            f"{tempfile.gettempdir()} (set TMPDIR to another)"
        ) from error


def _placed(store: CacheStore, key: str, built: Path, name: str) -> SharedObject:
    """Puts a library into the cache, and loads it from there."""
    path = store.put_file(key, built, label=name)
    library = store.use(key, load)
    if library is None:
        raise CompileError(f"{path} was removed or damaged as soon as it was compiled")
    return library


def _compile(
    missing: dict[str, Unit], folder: Path, ispc: Ispc, timeout: float, jobs: int, watch: Watch
) -> dict[str, Path]:
    # The longest first, so that no long one is left alone at the end.
    order = sorted(missing, key=lambda key: (-len(missing[key].source), key))
    commands = []
    for key in order:
        unit = missing[key]
        source = folder / f"{key[:16]}.ispc"
        source.write_text(unit.source)
        options = (*FLAGS, *unit.options, f"--target={unit.isa.target}")
        argv = (ispc.path, str(source), "-o", str(source.with_suffix(".o")), *options)
        commands.append(Command(argv, key, timeout, folder))
    count = 0

    def on_done(_: Finished) -> None:
        nonlocal count
        count += 1
        watch("compiling kernels", count, len(commands))

    watch("compiling kernels", 0, len(commands))
    ended = run_all(commands, jobs, on_done)
    if not ended[-1].ok:
        raise _compile_error(ended[-1], missing[ended[-1].command.name], ispc)
    objects = {key: folder / f"{key[:16]}.o" for key in missing}
    for key, path in objects.items():
        if not path.exists():
            raise CompileError(
                f"ISPC {ispc.path} ended without an error and without writing the object of "
                f"{missing[key].name}"
            )
    return objects


def _link(
    objects: dict[str, Path],
    missing: dict[str, Unit],
    compiler: CCompiler,
    timeout: float,
    jobs: int,
) -> dict[str, Path]:
    """Makes a shared object of each object file and the C beside it; ``-lm`` for the few functions
    ISPC calls."""
    results = {key: path.with_suffix(".so") for key, path in objects.items()}
    commands = []
    for key, path in objects.items():
        parts = [str(path)]
        if missing[key].beside:
            parts.append(str(path.with_suffix(".c")))
            path.with_suffix(".c").write_text(missing[key].beside)
            parts += C_FLAGS
        argv = (*compiler.argv, "-shared", "-o", str(results[key]), *parts, "-lm")
        commands.append(Command(argv, key, timeout, path.parent))
    ended = run_all(commands, jobs)[-1]
    if not ended.ok:
        raise CompileError(
            f"linking {missing[ended.command.name].name} with {compiler.argv[0]} "
            f"{ended.describe()}: {ended.output.strip()[-2000:]}"
        )
    return results


def _compile_error(ended: Finished, unit: Unit, ispc: Ispc) -> CompileError:
    what = (
        f"ISPC {ispc.path} {ended.describe()} on {unit.name} "
        f"(target {unit.isa.target}, {len(unit.source.splitlines())} lines)"
    )
    output = re.sub(r"(?m)^\S*?[0-9a-f]{16}\.ispc:", f"{unit.name}:", ended.output).strip()
    if not output:
        return CompileError(what)
    told = "\n".join(map(_cut, output[:8000].splitlines()))
    return CompileError(f"{what}:\n{told}\n{_excerpt(unit, output)}".rstrip())


def _excerpt(unit: Unit, output: str) -> str:
    """The source lines that the first errors are about, with two lines around each."""
    lines = unit.source.splitlines()
    errors = re.findall(rf"(?m)^{re.escape(unit.name)}:(\d+):\d+: (?:Error|.*[Ee]rror)", output)
    shown = sorted(
        {
            number
            for at in errors[:3]
            for number in range(int(at) - 2, int(at) + 3)
            if 1 <= number <= len(lines)
        }
    )
    return "\n".join(f"{number:6}| {_cut(lines[number - 1])}" for number in shown)


def _cut(line: str) -> str:
    """A line as far as one reads it: generated ones may have thousands of characters."""
    return line if len(line) <= MOST_COLUMNS else f"{line[:MOST_COLUMNS]} ..."


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
        CompileError, DeviceError: as :func:`compile_units`.
    """
    unique = by_name(sources)
    index, head = CacheStore("ispc_index", ".json", INDEX_BYTES), prelude(isa)
    ready: dict[str, NativeFunction] = {}
    for banner in ispc_banners():
        uncached = [source for name, source in unique.items() if name not in ready]
        ready |= _cached({s.name: _key(s, head, isa, banner) for s in uncached}, index)
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
    """The cached kernels among those with these names and keys."""
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
