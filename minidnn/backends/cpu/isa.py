"""The instruction sets that kernels are printed and compiled for.

The ISA is always explicit: it is named in every compile call and is part of every cache key.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ...errors import DeviceError


@dataclass(frozen=True)
class Isa:
    """One instruction set.

    Attributes:
        name: ``"avx512"`` or ``"avx2"``.
        target: ISPC's name of it, with the number of program instances.
        lanes: fp32 lanes of a gang (ISPC's ``programCount``), one vector register.
        registers: vector registers that a kernel may use.
        flags: what Linux calls the features that a processor must have.
    """

    name: str
    target: str
    lanes: int
    registers: int
    flags: tuple[str, ...]


AVX512 = Isa(
    "avx512", "avx512skx-x16", 16, 32, ("avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl")
)
AVX2 = Isa("avx2", "avx2-i32x8", 8, 16, ("avx2", "fma", "f16c", "bmi1", "bmi2"))

ISAS: Mapping[str, Isa] = MappingProxyType({isa.name: isa for isa in (AVX512, AVX2)})
"""All known ones, the best first."""


def processor_flags() -> frozenset[str]:
    """The features of the first processor, in Linux's names; empty where they are not told."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def isa_named(name: str) -> Isa:
    """The ISA of that name, to price or print kernels for whatever processor.

    Raises:
        DeviceError: there is none of that name.
    """
    if not isinstance(name, str) or name not in ISAS:
        raise DeviceError(f"isa={name!r}; valid are {', '.join(map(repr, ISAS))}")
    return ISAS[name]


def usable_isa(name: str) -> Isa:
    """The ISA of that name, to run kernels: one that the processor lacks would end the process.

    Raises:
        DeviceError: there is none of that name, or this processor does not execute it.
    """
    isa = isa_named(name)
    usable = usable_isas()
    if isa not in usable:
        missing = sorted(set(isa.flags) - processor_flags())
        here = " and ".join(repr(other.name) for other in usable) or "none"
        raise DeviceError(
            f"isa={name!r}: this processor lacks {', '.join(missing)}; valid here: {here}"
        )
    return isa


def usable_isas() -> tuple[Isa, ...]:
    """The ISAs that this processor executes, the best first (none on another architecture)."""
    present = processor_flags()
    return tuple(isa for isa in ISAS.values() if present.issuperset(isa.flags))


def best_isa() -> Isa:
    """The best ISA that this processor executes.

    Raises:
        DeviceError: it executes none of them; says what it is.
    """
    usable = usable_isas()
    if not usable:
        raise DeviceError(
            f"the CPU backend needs an x86-64 processor with AVX2 and FMA or AVX-512; this is "
            f"{platform.machine()} on {sys.platform}"
            + ("" if processor_flags() else ", whose features cannot be read from /proc/cpuinfo")
            + "; use device='reference'"
        )
    return usable[0]
