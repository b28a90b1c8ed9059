"""Bindings of the native runner, a library in C (``runner/``): its structures and functions."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p

from ...._forks import ForkLock
from ....errors import CompileError
from ..compilers.library import NativeFunction, SharedObject

ABI = 1
MAX_OPERANDS = 1024
"""The most operands of a kernel in a group: a thread keeps their addresses on its stack."""


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
    return runner_library(extra_flags).handle


def runner_kernel(name: str) -> NativeFunction:
    """A function of the runner that is a kernel; raises what :func:`runner` raises."""
    return runner_library().kernel(name)


def runner_library(extra_flags: tuple[str, ...] = ()) -> SharedObject:
    """The library of :func:`runner`."""
    with _lock:
        if extra_flags not in _runners:
            # A process that loads compiled networks needs none of what builds.
            from ..compilers.build_runner import built_runner, cached_runner

            library = cached_runner(extra_flags) or built_runner(extra_flags)
            _declare(library.handle)
            _runners[extra_flags] = library
        return _runners[extra_flags]


def use_runner(library: SharedObject) -> None:
    """Makes a library the runner of this process, if it has none yet.

    Raises:
        CompileError: the library's structures differ from those of this module.
    """
    with _lock:
        if () not in _runners:
            _declare(library.handle)
            _runners[()] = library


def why_no_runner() -> str | None:
    """Why the runner cannot be had without a C compiler; None if it can."""
    from ..compilers.build_runner import why_not_cached

    return None if () in _runners else why_not_cached()


def _declare(library: ctypes.CDLL) -> None:
    """Declares the functions of a runner, and checks its ABI."""
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    sizes = (c_int64 * 3)()
    abi = library.md_abi(sizes)
    expected = [ctypes.sizeof(kind) for kind in (OperandStruct, RegionStruct, ProgramStruct)]
    if abi != ABI or list(sizes) != expected:
        raise CompileError(
            f"the native runner has ABI {abi} and structures of {list(sizes)} bytes; "
            f"native.py has {ABI} and {expected}"
        )
