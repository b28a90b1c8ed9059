"""What this machine is, and what it can do: the roofline of ``explain`` and of the cost model.

What can be told without measuring is found here; rates are measured by :mod:`.rates`.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from ...runtime.cores import usable_cores
from .isa import usable_isas

SYSTEM_CPU = Path("/sys/devices/system/cpu/cpu0")


@dataclass(frozen=True)
class CacheSizes:
    """Bytes: of a core's first and second level, of the whole last one (0: not known)."""

    l1: int
    l2: int
    l3: int


@dataclass(frozen=True)
class Rates:
    """What was measured, with ``threads`` threads unless another number is named.

    Attributes:
        flops: fp32 operations a second by fused multiply-adds from registers (one is two), as
            pairs of ISA name and rate.
        flops_one: the same on one thread.
        copy: bytes a second written plus read while copying more than the caches hold.
        read: bytes a second read from memory.
        l2: bytes a second that all threads together read from their second-level caches.
        products, products_one: the same as ``flops`` and ``flops_one``, by products of bfloat16.
        disturbed: other processes held the cores all the time; the rates are too low.
    """

    threads: int
    flops: tuple[tuple[str, float], ...]
    flops_one: tuple[tuple[str, float], ...]
    copy: float
    read: float
    l2: float
    products: tuple[tuple[str, float], ...] = ()
    products_one: tuple[tuple[str, float], ...] = ()
    disturbed: bool = False

    def peak(self, isa: str, threads: int | None = None) -> float:
        """Operations a second with ``threads`` threads (all when None)."""
        every, one = dict(self.flops + self.products), dict(self.flops_one + self.products_one)
        if threads is None or threads >= self.threads:
            return every[isa]
        return min(one[isa] * threads, every[isa])


@dataclass(frozen=True)
class Machine:
    """A machine: its processor's name, usable cores, ISA names (the best first), caches."""

    processor: str
    cores: int
    isas: tuple[str, ...]
    caches: CacheSizes

    def line(self) -> str:
        """``AMD EPYC, 2 cores, avx512 avx2, caches 48 KiB + 1024 KiB a core, 32 MiB``."""
        kib = f"{self.caches.l1 >> 10} KiB + {self.caches.l2 >> 10} KiB a core"
        isas = " ".join(self.isas) or "no usable ISA"
        l3 = f", {self.caches.l3 >> 20} MiB shared" if self.caches.l3 else ""
        return f"{self.processor}, {self.cores} cores, {isas}, caches {kib}{l3}"


def describe_machine() -> Machine:
    """What the system says about itself; nothing is measured."""
    return Machine(
        _processor_name(),
        usable_cores(),
        tuple(isa.name for isa in usable_isas()),
        CacheSizes(_cache(1), _cache(2), _cache(3)),
    )


def _processor_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    # The name alone does not tell models apart on virtual machines ("AMD EPYC").
    fields = dict(re.findall(r"(?m)^(model name|cpu family|model|stepping)\s*: (.*)$", text))
    name = fields.get("model name", platform.processor() or platform.machine())
    numbers = [fields.get(key) for key in ("cpu family", "model", "stepping")]
    return f"{name} ({'/'.join(n for n in numbers if n)})" if any(numbers) else name


def _cache(level: int) -> int:
    """Bytes of the first core's data cache of that level."""
    for folder in sorted((SYSTEM_CPU / "cache").glob("index*")):
        try:
            if (folder / "type").read_text().strip() == "Instruction":
                continue
            if int((folder / "level").read_text()) != level:
                continue
            match = re.fullmatch(r"(\d+)([KMG]?)", (folder / "size").read_text().strip())
        except (OSError, ValueError):
            continue
        if match:
            return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
    return 0
