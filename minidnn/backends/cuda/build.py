"""Many small kernels to few cubins, each kernel found again whatever unit it was compiled in.

Networks share kernels without sharing units: an index entry for each kernel says which compiled
unit has it and what it takes, and only kernels without one are compiled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache

from ...cache import CacheStore, building_allowed, digest
from ...runtime.cores import usable_cores
from ..codegen.kernel import KernelSource, by_name, in_groups
from .nvrtc import OPTIONS, Nvrtc, Resources, load
from .prelude import prelude

LEAST_PER_UNIT = 2
CACHE_BYTES = 512 << 20
INDEX_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A compiled kernel: its unit, its name in it, and what it takes.

    The unit is held, not its file, which the cache may drop while others are still compiled.
    """

    cubin: bytes = field(repr=False)
    name: str
    resources: Resources


def cubin_store() -> CacheStore:
    """Compiled units."""
    return CacheStore("cubin", ".cubin", CACHE_BYTES)


def compile_kernels(
    sources: Sequence[KernelSource], arch: str, *, jobs: int | None = None
) -> list[CompiledKernel]:
    """The compiled kernels, in the order of ``sources``; what is cached is not compiled.

    ``arch`` is "sm_90" and the like.

    Raises:
        ValueError: two kernels of one name have different texts.
        CompileError: a text is not valid.
        DeviceError: there is no NVRTC.
    """
    unique = by_name(sources)
    nvrtc = load()
    head = prelude()
    units, index = cubin_store(), CacheStore("cubin_index", ".json", INDEX_BYTES)
    keys = {s.name: _key(s, head, arch, nvrtc) for s in unique.values()}
    ready: dict[str, CompiledKernel] = {}
    read = cache(units.read)  # many kernels lie in one unit
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
    """Distributes kernels over units of about equal length, for ``jobs`` compilers at once.

    Equal arguments give equal units, in every process.
    """
    count = min(len(sources), max(1, min(jobs, len(sources) // LEAST_PER_UNIT)))
    return in_groups(sources, count)


def _key(source: KernelSource, head: str, arch: str, nvrtc: Nvrtc) -> str:
    ingredients = (head, source.name, source.text, arch, OPTIONS, nvrtc.version)
    return digest("cuda kernel", *ingredients)
