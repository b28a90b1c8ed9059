"""Binding to NVRTC, CUDA's compiler as a library: source text in, a cubin for one architecture out.

NVRTC needs no GPU and no driver.  It is searched for in this order: the environment variable
``MINIDNN_NVRTC`` (a file), the wheel ``nvidia-cuda-nvrtc`` (CUDA 13) or ``nvidia-cuda-nvrtc-cu12``,
the dynamic loader's own search path, ``$CUDA_PATH`` and ``$CUDA_HOME``.  It is loaded on first use.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from minidnn._cached_property import cached_property

from ...errors import CompileError, DeviceError

ENVIRONMENT = "MINIDNN_NVRTC"
NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
OLDEST = (12, 4)

OPTIONS = ("-fmad=false", "-std=c++17", "-diag-suppress=177", "--ptxas-options=-v")
"""The compiler options of every unit, beside its architecture; fast math is never among them."""


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of a kernel, as the assembler (ptxas) reports them.

    Attributes:
        registers: of a thread.
        stack_bytes: the stack frame of a thread.
        spill_bytes: stores and loads of spilled registers.
        shared_bytes: static shared memory of a block.
    """

    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int


UNKNOWN = Resources(0, 0, 0, 0)
"""The resources of a kernel from a stored program, which does not record them."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A cubin, and the resources of each of its kernels, by name."""

    cubin: bytes
    resources: dict[str, Resources]


class Nvrtc:
    """A loaded NVRTC."""

    def __init__(self, dll: Any, path: str) -> None:
        self._dll = dll
        self.path = path
        dll.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(dll.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
        self.version = (major.value, minor.value)

    def compile(self, text: str, arch: str, name: str = "unit") -> Compiled:
        """Compiles a unit for ``arch`` ("sm_90"); ``name`` is the unit's name in messages.

        CompileError with the compiler's messages if the text is not valid.
        """
        program = ctypes.c_void_p()
        dll = self._dll
        source, title = text.encode(), f"{name}.cu".encode()
        status = dll.nvrtcCreateProgram(ctypes.byref(program), source, title, 0, None, None)
        self._check(status, "nvrtcCreateProgram")
        try:
            options = [option.encode() for option in (f"-arch={arch}", *OPTIONS, *self._no_cache)]
            array = (ctypes.c_char_p * len(options))(*options)
            status = dll.nvrtcCompileProgram(program, len(options), array)
            log = self._bytes(program, "ProgramLog").decode(errors="replace").rstrip("\0")
            if status:
                reason = dll.nvrtcGetErrorString(status).decode()
                raise CompileError(
                    f"NVRTC {self.path} on {name} (target {arch}, {len(text.splitlines())} "
                    f"lines): {reason}\n{log.strip()[:8000]}"
                )
            return Compiled(self._bytes(program, "CUBIN"), read_resources(log))
        finally:
            dll.nvrtcDestroyProgram(ctypes.byref(program))

    @cached_property
    def _no_cache(self) -> tuple[str, ...]:
        """The option that turns off NVRTC's own cache, in releases that have one: a result from
        there has no assembler's log, which the kernels' resources are read from."""
        option, program = "-no-cache", ctypes.c_void_p()
        dll = self._dll
        status = dll.nvrtcCreateProgram(ctypes.byref(program), b"", b"probe.cu", 0, None, None)
        self._check(status, "nvrtcCreateProgram")
        try:
            status = dll.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(option.encode()))
        finally:
            dll.nvrtcDestroyProgram(ctypes.byref(program))
        return () if status else (option,)

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        function = f"nvrtcGet{what}"
        self._check(getattr(self._dll, f"{function}Size")(program, ctypes.byref(size)), function)
        buffer = ctypes.create_string_buffer(max(1, size.value))
        self._check(getattr(self._dll, function)(program, buffer), function)
        return buffer.raw[: size.value]

    def _check(self, status: int, function: str) -> None:
        if status:
            reason = self._dll.nvrtcGetErrorString(status).decode()
            raise DeviceError(f"{function} of {self.path} failed: {reason}")


def read_resources(log: str) -> dict[str, Resources]:
    """The resources of each kernel in an assembler's log."""
    resources: dict[str, Resources] = {}
    for section in log.split("Compiling entry function '")[1:]:
        name = section[: section.index("'")]

        def number(pattern: str, text: str = section) -> int:
            match = re.search(pattern, text)
            return int(match[1]) if match else 0

        resources[name] = Resources(
            number(r"Used (\d+) registers"),
            number(r"(\d+) bytes stack frame"),
            number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
            number(r"(\d+) bytes smem"),
        )
    return resources


@cache
def load() -> Nvrtc:
    """Loads NVRTC; DeviceError with the places that were searched if there is none."""
    tried = []
    for origin, path in _candidates():
        if os.sep in path and not Path(path).exists():
            tried.append(f"{origin}: {path} does not exist")
            continue
        try:
            dll = _open(path)
        except OSError as error:
            tried.append(f"{origin}: {path} cannot be loaded ({error})")
            continue
        nvrtc = Nvrtc(dll, path)
        if nvrtc.version >= OLDEST:
            return nvrtc
        tried.append(f"{origin}: {path} is version {nvrtc.version[0]}.{nvrtc.version[1]}")
    searched = "".join(f"\n  {line}" for line in tried)
    oldest = ".".join(map(str, OLDEST))
    raise DeviceError(
        f"no NVRTC {oldest} or newer was found; install it with 'pip install nvidia-cuda-nvrtc', "
        f"or set {ENVIRONMENT} to the path of {NAMES[0]}. Looked at:{searched}"
    )


def _open(path: str) -> ctypes.CDLL:
    """Opens the library, after that of its built-in functions.

    NVRTC opens the latter by name when it compiles, and not every release searches its own folder
    (13.5 does; 13.0, which PyTorch requires, does not).
    """
    if os.sep in path:
        for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")):
            # If this fails, NVRTC itself reports what it lacks.
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(builtins))
    return ctypes.CDLL(path)


def why_unusable() -> str | None:
    """Why nothing can be compiled; None if it can."""
    try:
        load()
    except DeviceError as error:
        return str(error)
    return None


def _candidates() -> Iterator[tuple[str, str]]:
    """The places where NVRTC may be, as pairs (origin, path or bare name), best first."""
    if os.environ.get(ENVIRONMENT):
        yield f"environment variable {ENVIRONMENT}", os.environ[ENVIRONMENT]
        return
    for package in ("nvidia.cu13", "nvidia.cuda_nvrtc"):
        for folder in _wheel_folders(package):
            for name in NAMES:
                if (folder / "lib" / name).exists():
                    yield f"wheel {package}", str(folder / "lib" / name)
    for name in NAMES:
        yield "system", name
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if os.environ.get(variable):
            for name in NAMES:
                yield (
                    f"environment variable {variable}",
                    str(Path(os.environ[variable]) / "lib64" / name),
                )


def _wheel_folders(package: str) -> Sequence[Path]:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return ()
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else ()
