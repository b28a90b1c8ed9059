"""Loading the native runner, which is compiled once with the C compiler."""

from __future__ import annotations

import ctypes
import platform
from ctypes import POINTER, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

from ..._forks import ForkLock
from ...cache import (
    CacheStore,
    building_allowed,
    building_forbidden,
    digest,
    one_at_a_time,
    root,
    temporary_folder,
    why_not_used,
)
from ...errors import CompileError
from .identity import BUILD_LOCK, CompilerIdentity, known_compilers, remember
from .library import NativeFunction, SharedObject, load
from .process import Command, run
from .toolchain import CCompiler, find_cc

SOURCES = Path(__file__).parent / "runner"
FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-fPIC", "-shared", "-pthread")
BUILD_SECONDS = 60.0
ABI = 1
MAX_OPERANDS = 1024
"""Of a member of a group, whose addresses a thread keeps on its stack."""


class OperandStruct(ctypes.Structure):
    """``md_operand``."""

    _fields_ = (
        ("offset", c_int64),
        ("item_stride", c_int64),
        ("thread_stride", c_int64),
        ("slot", c_int32),
        ("unused", c_int32),
    )


class RegionStruct(ctypes.Structure):
    """``md_region``."""

    _fields_ = (
        ("kernel", c_void_p),
        ("first_operand", c_int32),
        ("operands", c_int32),
        ("tasks", c_int32),
        ("grain", c_int32),
        ("members", c_int32),
        ("unused", c_int32),
    )


class ProgramStruct(ctypes.Structure):
    """``md_program``."""

    _fields_ = (
        ("regions", c_void_p),
        ("operands", c_void_p),
        ("region_count", c_int32),
        ("operand_count", c_int32),
        ("slot_count", c_int32),
        ("unused", c_int32),
        ("scratch_bytes", c_int64),
    )


class MemoryStruct(ctypes.Structure):
    """``md_memory``."""

    _fields_ = (
        ("mapping", c_void_p),
        ("mapped", c_size_t),
        ("data", c_void_p),
        ("size", c_size_t),
    )


_SIGNATURES = {
    "md_abi": (c_int, [c_int64 * 3]),
    "md_pool_new": (c_void_p, [c_int, c_int64, c_void_p]),
    "md_pool_stop": (None, [c_void_p]),
    "md_pool_free": (None, [c_void_p]),
    "md_pool_alive": (c_int, [c_void_p]),
    "md_pool_rest": (None, [c_void_p]),
    "md_context_new": (c_void_p, [POINTER(ProgramStruct), c_int, c_int]),
    "md_context_free": (None, [c_void_p]),
    "md_run": (None, [c_void_p, POINTER(ProgramStruct), c_void_p, c_void_p, POINTER(c_double)]),
    "md_memory_new": (c_int, [POINTER(MemoryStruct), c_size_t, c_size_t, c_int]),
    "md_memory_check": (c_int64, [POINTER(MemoryStruct)]),
    "md_memory_free": (None, [POINTER(MemoryStruct)]),
    "md_memory_release": (None, []),
}

_lock = ForkLock()
_runners: dict[tuple[str, ...], SharedObject] = {}


def runner(extra_flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The loaded runner, built when the cache has none.

    Args:
        extra_flags: for tests, for example ``-DMD_NO_FUTEX``.

    Raises:
        CompileError: it does not compile or load, or compiling is forbidden.
        DeviceError: there is no C compiler.
    """
    return _library(extra_flags).handle


def runner_kernel(name: str) -> NativeFunction:
    """A function of the runner that is a kernel; raises what :func:`runner` raises."""
    return _library(()).kernel(name)


def _library(extra_flags: tuple[str, ...]) -> SharedObject:
    with _lock:
        if extra_flags not in _runners:
            library = _cached(extra_flags) or _built(extra_flags)
            _declare(library.handle)
            _runners[extra_flags] = library
        return _runners[extra_flags]


def why_not_cached() -> str | None:
    """Why the runner cannot be had without a C compiler; None if it can."""
    if () in _runners or any(_store().path(key) is not None for key in _keys(())):
        return None
    refused = why_not_used()
    return (
        f"the cache {root()}{f' ({refused})' if refused else ''} has no native runner of this "
        "version of minidnn"
    )


def _cached(extra_flags: tuple[str, ...]) -> SharedObject | None:
    """The runner, if the cache has it."""
    for key in _keys(extra_flags):
        if (library := _store().use(key, load)) is not None:
            return library
    return None


def _built(extra_flags: tuple[str, ...]) -> SharedObject:
    building_allowed("the native runner")
    with one_at_a_time(BUILD_LOCK, "compiles", BUILD_SECONDS):
        if (library := _cached(extra_flags)) is not None:
            return library
        compiler = find_cc()
        remember(_identity(compiler))
        with temporary_folder() as folder:
            target = folder / "runner.so"
            files = [str(path) for path in _sources() if path.suffix == ".c"]
            argv = (*compiler.argv, *FLAGS, *extra_flags, "-o", str(target), *files)
            ended = run(Command(argv, "the native runner", BUILD_SECONDS, folder))
            if not ended.ok:
                raise CompileError(
                    f"the C compiler {compiler.argv[0]} {ended.describe()} on the native "
                    f"runner: {ended.output.strip()[:4000]}"
                )
            key = _key(extra_flags, _identity(compiler))
            path = _store().put_file(key, target, label="runner")
        library = _store().use(key, load)
        if library is None:
            raise CompileError(f"{path} was removed or damaged as soon as it was compiled")
        return library


def _keys(extra_flags: tuple[str, ...]) -> list[str]:
    """What the runner may be called in the cache: as this machine's compiler makes it, or, where
    compiling is forbidden, as any made it that filled the cache."""
    if building_forbidden():
        return [_key(extra_flags, identity) for identity in known_compilers("cc")]
    return [_key(extra_flags, _identity(find_cc()))]


def _key(extra_flags: tuple[str, ...], compiler: CompilerIdentity) -> str:
    texts = [(path.name, path.read_bytes()) for path in _sources()]
    flags = (*FLAGS, *extra_flags)
    return digest("runner", texts, flags, compiler.banner, compiler.arguments, platform.machine())


def _identity(compiler: CCompiler) -> CompilerIdentity:
    return CompilerIdentity("cc", compiler.banner, compiler.argv[1:])


def _sources() -> list[Path]:
    return sorted(SOURCES.glob("*.[ch]"))


def _store() -> CacheStore:
    return CacheStore("runner", ".so", 64 << 20)


def _declare(library: ctypes.CDLL) -> None:
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    sizes = (c_int64 * 3)()
    abi = library.md_abi(sizes)
    mine = [ctypes.sizeof(kind) for kind in (OperandStruct, RegionStruct, ProgramStruct)]
    if abi != ABI or list(sizes) != mine:
        raise CompileError(
            f"the native runner has ABI {abi} and structures of {list(sizes)} bytes; "
            f"native.py has {ABI} and {mine}"
        )
