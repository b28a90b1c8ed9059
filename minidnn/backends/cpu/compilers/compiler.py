"""ISPC source in, loaded shared objects out: in parallel, cached by content.

A unit becomes one shared object (linking takes 5 ms, loading 0.1 ms, starting ISPC 180 ms: so
few units, and no further linking of several into one).  Its key covers source, target, options,
and ISPC's version.  A floating-point multiply and add are never contracted
(``--opt=disable-fma``): see :mod:`.kernels` for how a fused one is written.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....cache import CacheStore, building_allowed, digest, one_at_a_time, temporary_folder
from ....errors import CompileError, DeviceError
from ....runtime.cores import usable_cores
from ..isa import Isa
from .library import SharedObject, load
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
"""What every unit is compiled with; no ``fast-math``, ever (it reorders and drops NaN)."""

C_FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-fPIC")
"""What C beside a unit is compiled with; functions say themselves which instructions they use."""

COMPILE_SECONDS = 120.0
"""A unit that takes longer is killed (``MINIDNN_COMPILE_TIMEOUT``): the largest takes about 5."""

CACHE_BYTES = 1 << 30

MOST_COLUMNS = 200
"""Of a source line that a message quotes."""

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
        """What the unit is called in the cache when the ISPC with this banner compiled it."""
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
    """Compiles what is not cached, and loads all.

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
    ready = _cached(units)
    if len(ready) < len(set(units)):
        left = {unit for unit in units if unit not in ready}
        names = ", ".join(sorted(unit.name for unit in left))
        building_allowed(f"{len(left)} ISPC file{'s' * (len(left) > 1)} ({names})")
        with one_at_a_time(BUILD_LOCK, "compiles", limit):
            # Another process may have built the same while this one waited for its turn.
            ready |= _cached([unit for unit in units if unit not in ready])
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


def _cached(units: Sequence[Unit]) -> dict[Unit, SharedObject]:
    """Those that are there, loaded before the cache may drop them."""
    store = unit_store()
    ready: dict[Unit, SharedObject] = {}
    for banner in ispc_banners():
        for unit in units:
            if unit not in ready and (found := store.use(unit.key(banner), load)) is not None:
                ready[unit] = found
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
            made = _link(objects, missing, compiler, timeout, jobs)
            return {
                missing[key]: _placed(store, key, path, missing[key].name)
                for key, path in made.items()
            }
    except OSError as error:
        raise CompileError(
            f"compiling {names} failed: {error}; the temporary folder is "
            f"{tempfile.gettempdir()} (set TMPDIR to another)"
        ) from error


def _placed(store: CacheStore, key: str, made: Path, name: str) -> SharedObject:
    path = store.put_file(key, made, label=name)
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
    last = run_all(commands, jobs)[-1]
    if not last.ok:
        raise CompileError(
            f"linking {missing[last.command.name].name} with {compiler.argv[0]} "
            f"{last.describe()}: {last.output.strip()[-2000:]}"
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
    found = re.findall(rf"(?m)^{re.escape(unit.name)}:(\d+):\d+: (?:Error|.*[Ee]rror)", output)
    near = sorted(
        {
            number
            for at in found[:3]
            for number in range(int(at) - 2, int(at) + 3)
            if 1 <= number <= len(lines)
        }
    )
    return "\n".join(f"{number:6}| {_cut(lines[number - 1])}" for number in near)


def _cut(line: str) -> str:
    """A line as far as one reads it: generated ones may have thousands of characters."""
    return line if len(line) <= MOST_COLUMNS else f"{line[:MOST_COLUMNS]} ..."
