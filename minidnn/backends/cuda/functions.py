"""Compiles kernels, caches and loads them, and launches them on addresses.

Many small kernels are compiled to few units (cubins).  Networks share kernels without sharing
units: an index entry for each kernel names the cached unit that has it, and the kernel's resources.
Only kernels without an entry are compiled.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

from ...cache import CacheStore, building_allowed, digest
from ...gpu import cupy
from ...runtime.cores import usable_cores
from ..codegen.kernel import KernelSource, by_name, in_groups
from .kernels import Launch
from .nvrtc import OPTIONS, Nvrtc, Resources, load
from .prelude import prelude

_LEAST_PER_UNIT = 2
"""Kernels of a unit, on average, at least."""
_UNIT_BYTES = 512 << 20
_INDEX_BYTES = 32 << 20
"""Bytes that units, and index entries, may take on disk."""


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A compiled kernel: the cubin that has it, its symbol there, and its resources.

    It holds the cubin's bytes instead of a path, since the cache may drop the file while other
    kernels are still compiled.
    """

    cubin: bytes = field(repr=False)
    name: str
    resources: Resources


def compile_kernels(
    sources: Sequence[KernelSource], arch: str, *, jobs: int | None = None
) -> list[CompiledKernel]:
    """Returns the compiled kernels in the order of ``sources``, from the cache where it has them.

    ``arch`` is an architecture such as "sm_90", ``jobs`` the most compilers that run at once.

    Raises:
        ValueError: two kernels of one name have different texts.
        CompileError: a text is not valid.
        DeviceError: there is no NVRTC.
    """
    unique = by_name(sources)
    nvrtc = load()
    head = prelude()
    units = CacheStore("cubin", ".cubin", _UNIT_BYTES)
    index = CacheStore("cubin_index", ".json", _INDEX_BYTES)
    keys = {
        name: digest("cuda kernel", head, name, source.text, arch, OPTIONS, nvrtc.version)
        for name, source in unique.items()
    }
    ready: dict[str, CompiledKernel] = {}
    read = cache(units.read)  # a unit has many kernels
    for name, key in keys.items():
        if (entry := index.read(key)) is not None:
            known = json.loads(entry)
            if (cubin := read(known["unit"])) is not None:
                ready[name] = CompiledKernel(cubin, name, Resources(**known["resources"]))
    missing = [source for name, source in unique.items() if name not in ready]
    if missing:
        names = ", ".join(source.name for source in missing)
        building_allowed(f"{len(missing)} CUDA kernel{'s' * (len(missing) > 1)} ({names})")
        for unit, kernels in _build(missing, head, arch, nvrtc, units, jobs or usable_cores()):
            for kernel in kernels:
                ready[kernel.name] = kernel
                text = json.dumps({"unit": unit, "resources": asdict(kernel.resources)})
                index.put(keys[kernel.name], text.encode(), label=kernel.name)
    return [ready[source.name] for source in sources]


def _build(
    sources: Sequence[KernelSource],
    head: str,
    arch: str,
    nvrtc: Nvrtc,
    units: CacheStore,
    jobs: int,
) -> list[tuple[str, list[CompiledKernel]]]:
    def build(members: list[KernelSource]) -> tuple[str, list[CompiledKernel]]:
        text = head + "\n".join(source.text for source in members)
        target = arch + "a" * members[0].specific
        key = digest("cubin", text, target, OPTIONS, nvrtc.version)
        compiled = nvrtc.compile(text, target, f"kernels_{key[:8]}")
        units.put(key, compiled.cubin)
        return key, [
            CompiledKernel(compiled.cubin, s.name, compiled.resources[s.name]) for s in members
        ]

    groups = [
        members
        for specific in (False, True)
        for members in group([s for s in sources if s.specific == specific], jobs)
    ]
    if len(groups) == 1:
        return [build(groups[0])]
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(build, groups))


def group(sources: Sequence[KernelSource], jobs: int) -> list[list[KernelSource]]:
    """Distributes kernels over units of about equal source length, for ``jobs`` compilers at once.

    Equal arguments give equal units in every process.
    """
    count = min(len(sources), max(1, min(jobs, len(sources) // _LEAST_PER_UNIT)))
    return in_groups(sources, count)


Run = Callable[[], None]
"""Enqueues work on CuPy's current stream."""

_PLENTY = 48 << 10
"""Bytes of dynamic shared memory that a block may have without asking for more."""
_MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@dataclass(frozen=True)
class Loaded:
    """A launch whose kernel is loaded on a device."""

    launch: Launch
    kernel: CompiledKernel
    function: Any

    @property
    def resources(self) -> Resources:
        """The registers and memory of the kernel, as the assembler reports them."""
        return self.kernel.resources

    def bind(self, pointers: Sequence[int]) -> KernelRun:
        """Returns what launches the kernel with these pointers on CuPy's current stream."""
        return KernelRun(self, tuple(pointers))

    def describe(self) -> str:
        """One line on its registers, shared memory and occupancy."""
        shared = self.resources.shared_bytes + self.launch.shared_bytes
        return (
            f"{self.resources.registers} registers, {shared} bytes of shared memory, "
            f"{100 * self.occupancy:.0f}% occupancy"
        )

    @property
    def occupancy(self) -> float:
        """The fraction of a multiprocessor's threads that resident blocks of the kernel fill."""
        driver = cupy().cuda.driver
        threads = 1
        for size in self.launch.block:
            threads *= size
        blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(
            self.function.ptr, threads, self.launch.shared_bytes
        )
        device = cupy().cuda.Device()
        max_threads = device.attributes["MaxThreadsPerMultiProcessor"]
        return float(blocks * threads / max_threads)


@dataclass(frozen=True, eq=False, slots=True)
class KernelRun:
    """A generated kernel with its arguments: addresses and integers, 64 bits each."""

    loaded: Loaded
    arguments: tuple[int, ...]

    def __call__(self) -> None:
        launch = self.loaded.launch
        self.loaded.function(
            launch.grid, launch.block, self.arguments, shared_mem=launch.shared_bytes
        )


Load = Callable[[Sequence[Launch]], list[Loaded]]
"""Loads launches onto the current device, and compiles them where no cache has them."""


class LaunchLoader:
    """Loads launches, and keeps them.  Kernels of one call are compiled together; those that
    ``other``, the loader of another program, has are not loaded again."""

    def __init__(self, arch: str, other: LaunchLoader | None = None) -> None:
        self._arch = arch
        self._other = other
        self._known: dict[Launch, Loaded] = {}
        self._lock = threading.Lock()

    def __call__(self, launches: Sequence[Launch]) -> list[Loaded]:
        with self._lock:
            missing = list(dict.fromkeys(one for one in launches if one not in self._known))
            if missing:
                others = {} if self._other is None else self._other.there()
                for one in missing:
                    same = others.get(one.source.name)
                    if same is not None and one.shared_bytes <= same.launch.shared_bytes:
                        self._known[one] = replace(same, launch=one)
                missing = [one for one in missing if one not in self._known]
            if missing:
                loaded = load_launches(missing, self._arch)
                self._known.update(zip(missing, loaded, strict=True))
            return [self._known[one] for one in launches]

    def there(self) -> dict[str, Loaded]:
        """The loaded launches, by their kernels' names."""
        with self._lock:
            return {one.launch.source.name: one for one in self._known.values()}


def load_launches(launches: Sequence[Launch], arch: str) -> list[Loaded]:
    """Loads launches onto the current device; compiles their kernels where no cache has them."""
    kernels = compile_kernels([launch.source for launch in launches], arch)
    return load_compiled(list(zip(launches, kernels, strict=True)))


def load_compiled(compiled: Sequence[tuple[Launch, CompiledKernel]]) -> list[Loaded]:
    """Loads compiled kernels onto the current device, for these launches."""
    # Several launches may share a function, which has one limit.
    shared_limits: dict[str, int] = {}
    for launch, kernel in compiled:
        shared_limits[kernel.name] = max(shared_limits.get(kernel.name, 0), launch.shared_bytes)
    modules: dict[bytes, Any] = {}
    loaded = []
    for launch, kernel in compiled:
        if kernel.cubin not in modules:
            modules[kernel.cubin] = _module(kernel.cubin)
        function = modules[kernel.cubin].get_function(kernel.name)
        shared_bytes = shared_limits[kernel.name]
        if shared_bytes > _PLENTY:
            cupy().cuda.driver.funcSetAttribute(function.ptr, _MOST_SHARED, shared_bytes)
        loaded.append(Loaded(launch, kernel, function))
    return loaded


def _module(cubin: bytes) -> Any:
    module = cupy().cuda.function.Module()
    module.load(cubin)
    return module
