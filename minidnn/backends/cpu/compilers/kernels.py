"""Many small kernels to few files, each kernel found again whatever file it was compiled in.

Starting ISPC costs 180 ms and a kernel 50 to 100, so kernels are compiled several to a file, and
files in parallel.  Networks share kernels without sharing files: an index entry for each kernel
says which compiled file has it, and only kernels without one are compiled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ....cache import CacheStore, building_allowed, digest
from ....runtime.cores import usable_cores
from ...codegen.kernel import KernelSource, by_name, in_groups
from ..isa import Isa
from .compiler import FLAGS, Unit, compile_units, unit_store
from .identity import ispc_banners
from .library import NativeFunction, SharedObject, load
from .prelude import prelude
from .toolchain import find_ispc

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
