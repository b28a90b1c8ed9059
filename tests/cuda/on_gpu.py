r"""A plugin: what the emulator runs in CI, a GPU runs.

The emulator's tests are small, and there is one for every kernel of ours that has threads share
memory; those are marked ``race``.  With this plugin each launches its kernels on the GPU and
nothing else does (no cuDNN, nothing of CuPy's), so that compute-sanitizer has little to watch.
``--part k/n`` runs every n-th of them, as workers of pytest-xdist hang under that tool:

    for k in 0 1 2 3 4 5 6 7; do
      compute-sanitizer --tool racecheck --error-exitcode 9 \
        python -m pytest -p tests.cuda.on_gpu -m race --part $k/8 tests/cuda &
    done; wait
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.machine import machine_of

from .emulator.run import Emulated, parameters_of

_MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_ALIGNED = 256


class OnGpu:
    """Kernels with the emulator's face.  Each is compiled and loaded when it is first launched:
    tools that change code change all of a module."""

    def __init__(
        self, sources: Sequence[KernelSource], folder: Path, *, busy: bool = False
    ) -> None:
        pass

    def launch(
        self, launch: Launch, arguments: Sequence[np.ndarray], backwards: bool = False
    ) -> None:
        """Runs a kernel on copies of arrays, which are carried back.  The GPU's threads have no
        order that could be turned: ``backwards`` is just another run."""
        import cupy

        driver, runtime = cupy.cuda.driver, cupy.cuda.runtime
        pointers = ["*" in parameter for parameter in parameters_of(launch.source)]
        copies = _copies([a for a, pointer in zip(arguments, pointers, strict=True) if pointer])
        given = [
            copies[id(_whole(a))].address(a) if pointer else a[0]
            for a, pointer in zip(arguments, pointers, strict=True)
        ]
        function = function_of(launch.source)
        driver.funcSetAttribute(function.ptr, _MOST_SHARED, launch.shared_bytes)
        function(launch.grid, launch.block, given, shared_mem=launch.shared_bytes)
        runtime.deviceSynchronize()
        for copy in copies.values():
            copy.back()


@cache
def function_of(source: KernelSource) -> Any:
    """A kernel, loaded by itself."""
    import cupy

    (kernel,) = compile_kernels([source], machine_of(0).arch)
    module = cupy.cuda.function.Module()
    module.load(kernel.cubin)
    return module.get_function(kernel.name)


class _Copy:
    """The bytes between two addresses of the host, in an allocation of their own."""

    def __init__(self, begin: int, end: int) -> None:
        import cupy

        self._begin, self._bytes = begin, end - begin
        # As far from an aligned address as on the host.
        self._shift = begin % _ALIGNED
        self._memory = cupy.cuda.Memory(self._shift + self._bytes)
        self._copy(self._memory.ptr + self._shift, begin)

    def address(self, array: np.ndarray) -> int:
        """Where an array of the host lies."""
        return int(self._memory.ptr) + self._shift + array.ctypes.data - self._begin

    def back(self) -> None:
        self._copy(self._begin, self._memory.ptr + self._shift)

    def _copy(self, to: int, source: int) -> None:
        import cupy

        default = 4  # cudaMemcpyDefault: addresses say where they are
        cupy.cuda.runtime.memcpy(to, source, self._bytes, default)


def _copies(arrays: Sequence[np.ndarray]) -> dict[int, _Copy]:
    """By the array whose memory others are parts of: those that lie in one stay side by side."""
    ends: dict[int, tuple[int, int]] = {}
    for array in arrays:
        assert array.flags.c_contiguous, "a kernel takes an array by its address"
        key, begin = id(_whole(array)), array.ctypes.data
        low, high = ends.get(key, (begin, begin))
        ends[key] = min(low, begin), max(high, begin + array.nbytes)
    return {key: _Copy(*span) for key, span in ends.items()}


def _whole(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="0/1", help="K/N: every N-th test, from the K-th on")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first, count = map(int, config.getoption("part").split("/"))
    items[:] = items[first::count]


def pytest_configure(config: pytest.Config) -> None:
    Emulated.__init__ = OnGpu.__init__  # type: ignore[assignment, method-assign]
    Emulated.launch = OnGpu.launch  # type: ignore[assignment, method-assign]
