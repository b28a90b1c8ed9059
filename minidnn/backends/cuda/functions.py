"""Compiled kernels on a device: loaded, and launched on addresses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...gpu.cupy import cupy
from .build import CompiledKernel, compile_kernels
from .kernels import Launch
from .nvrtc import Resources

Run = Callable[[], None]
"""Starts work on CuPy's current stream."""

_PLENTY = 48 << 10
_MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@dataclass(frozen=True)
class Loaded:
    """A launch whose kernel is on the device."""

    launch: Launch
    kernel: CompiledKernel
    function: Any

    @property
    def resources(self) -> Resources:
        """What the kernel takes, as the assembler says."""
        return self.kernel.resources

    def bind(self, pointers: Sequence[int]) -> KernelRun:
        """Launches with these pointers on CuPy's current stream."""
        return KernelRun(self, tuple(pointers))

    def describe(self) -> str:
        """What it takes of a multiprocessor."""
        shared = self.resources.shared_bytes + self.launch.shared_bytes
        return (
            f"{self.resources.registers} registers, {shared} bytes of shared memory, "
            f"{100 * self.occupancy:.0f}% occupancy"
        )

    @property
    def occupancy(self) -> float:
        """The part of a multiprocessor's threads that its blocks can fill."""
        driver = cupy().cuda.driver
        threads = 1
        for size in self.launch.block:
            threads *= size
        blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(
            self.function.ptr, threads, self.launch.shared_bytes
        )
        device = cupy().cuda.Device()
        most = device.attributes["MaxThreadsPerMultiProcessor"]
        return float(blocks * threads / most)


@dataclass(frozen=True, eq=False, slots=True)
class KernelRun:
    """A kernel of ours with its arguments: addresses and whole numbers, 64 bits each."""

    loaded: Loaded
    arguments: tuple[int, ...]

    def __call__(self) -> None:
        launch = self.loaded.launch
        self.loaded.function(
            launch.grid, launch.block, self.arguments, shared_mem=launch.shared_bytes
        )


class LaunchLoader:
    """Gives loaded launches, those that are asked for at once compiled together; what an ``other``
    has loaded is not loaded again."""

    def __init__(self, arch: str, other: LaunchLoader | None = None) -> None:
        self._arch = arch
        self._other = other
        self._known: dict[Launch, Loaded] = {}
        self._lock = threading.Lock()

    def __call__(self, launches: Sequence[Launch]) -> list[Loaded]:
        with self._lock:
            missing = list(dict.fromkeys(one for one in launches if one not in self._known))
            if missing:
                there = {} if self._other is None else self._other.there()
                for one in missing:
                    same = there.get(one.source.name)
                    if same is not None and one.shared_bytes <= same.launch.shared_bytes:
                        self._known[one] = replace(same, launch=one)
                missing = [one for one in missing if one not in self._known]
            if missing:
                loaded = load_launches(missing, self._arch)
                self._known.update(zip(missing, loaded, strict=True))
            return [self._known[one] for one in launches]

    def there(self) -> dict[str, Loaded]:
        """What is loaded, by the kernels' names."""
        with self._lock:
            return {one.launch.source.name: one for one in self._known.values()}


def load_launches(launches: Sequence[Launch], arch: str) -> list[Loaded]:
    """The launches on the current device, their kernels compiled where no cache has them."""
    kernels = compile_kernels([launch.source for launch in launches], arch)
    return load_compiled(list(zip(launches, kernels, strict=True)))


def load_compiled(compiled: Sequence[tuple[Launch, CompiledKernel]]) -> list[Loaded]:
    """The launches of compiled kernels on the current device."""
    most: dict[str, int] = {}  # the limit is a function's, which several launches may share
    for launch, kernel in compiled:
        most[kernel.name] = max(most.get(kernel.name, 0), launch.shared_bytes)
    modules: dict[bytes, Any] = {}
    loaded = []
    for launch, kernel in compiled:
        if kernel.cubin not in modules:
            modules[kernel.cubin] = _module(kernel.cubin)
        function = modules[kernel.cubin].get_function(kernel.name)
        shared_bytes = most[kernel.name]
        if shared_bytes > _PLENTY:
            cupy().cuda.driver.funcSetAttribute(function.ptr, _MOST_SHARED, shared_bytes)
        loaded.append(Loaded(launch, kernel, function))
    return loaded


def _module(cubin: bytes) -> Any:
    module = cupy().cuda.function.Module()
    module.load(cubin)
    return module
