"""The instruction sets (ISAs) that kernels are printed and compiled for.

The ISA is always explicit: it is named in every compile call and is part of every cache key.  A
base ISA computes in float32; its extensions add dot products of bfloat16 or int8.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ...errors import DeviceError


@dataclass(frozen=True)
class Isa:
    """One instruction set.

    Attributes:
        name: ``"avx512"``, ``"avx2"``, or the name of an extension of one of them.
        target: ISPC's ``--target``, with the number of program instances.
        lanes: fp32 lanes of a gang (ISPC's ``programCount``), one vector register.
        registers: vector registers that a kernel may use.
        flags: the features that a processor must have, in Linux's names.
        extends: the name of the base ISA that this one extends; "" for a base ISA.
    """

    name: str
    target: str
    lanes: int
    registers: int
    flags: tuple[str, ...]
    #: Its dot products of bfloat16: on "vectors" or on the "tiles" of AMX; "" for none.
    bfloat16_products: str = ""
    extends: str = ""
    #: Its dot products of int8 for kernels on blocks of channels: on "vectors" (VNNI) or on the
    #: "tiles" of AMX; "" for none.
    int8_products: str = ""


AVX512 = Isa(
    "avx512", "avx512skx-x16", 16, 32, ("avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl")
)
AVX2 = Isa("avx2", "avx2-i32x8", 8, 16, ("avx2", "fma", "f16c", "bmi1", "bmi2"))

AVX512_BF16 = replace(
    AVX512,
    name="avx512_bf16",
    flags=(*AVX512.flags, "avx512_bf16"),
    bfloat16_products="vectors",
    extends="avx512",
)
AMX_BF16 = replace(
    AVX512_BF16,
    name="amx_bf16",
    flags=(*AVX512_BF16.flags, "amx_tile", "amx_bf16"),
    bfloat16_products="tiles",
)

AVX512_VNNI = replace(
    AVX512,
    name="avx512_vnni",
    target="avx512icl-x16",
    flags=(
        *AVX512.flags,
        *("avx512_vnni", "avx512ifma", "avx512vbmi", "avx512_vbmi2", "avx512_bitalg"),
        *("avx512_vpopcntdq", "gfni", "vaes", "vpclmulqdq"),
    ),
    extends="avx512",
    int8_products="vectors",
)
AMX_INT8 = replace(
    AVX512_VNNI,
    name="amx_int8",
    flags=(*AVX512_VNNI.flags, "amx_tile", "amx_int8"),
    int8_products="tiles",
)
AVX2_VNNI = replace(
    AVX2,
    name="avx2_vnni",
    target="avx2vnni-i32x8",
    flags=(*AVX2.flags, "avx_vnni"),
    extends="avx2",
)

INT8_ISAS: Mapping[str, tuple[Isa, ...]] = MappingProxyType(
    {"avx512": (AMX_INT8, AVX512_VNNI), "avx2": (AVX2_VNNI,)}
)
"""By the name of a base ISA, its extensions with dot products of int8, the best first."""

ISAS: Mapping[str, Isa] = MappingProxyType({isa.name: isa for isa in (AVX512, AVX2)})
"""The base ISAs by name, the best first."""

BFLOAT16_ISAS: Mapping[str, tuple[Isa, ...]] = MappingProxyType({"avx512": (AMX_BF16, AVX512_BF16)})
"""By the name of a base ISA, its extensions with dot products of bfloat16, the best first."""


def processor_flags() -> frozenset[str]:
    """The features of the first processor, in Linux's names; empty where they cannot be read."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def isa_named(name: str) -> Isa:
    """The base ISA of that name, to price or print kernels for any processor.

    Raises:
        DeviceError: there is none of that name.
    """
    if not isinstance(name, str) or name not in ISAS:
        raise DeviceError(f"isa={name!r}; valid are {', '.join(map(repr, ISAS))}")
    return ISAS[name]


def any_isa_named(name: str) -> Isa:
    """The ISA of that name, which may be a base ISA or an extension."""
    extended = (*BFLOAT16_ISAS.values(), *INT8_ISAS.values())
    isas = (*ISAS.values(), *(isa for extensions in extended for isa in extensions))
    return {isa.name: isa for isa in isas}[name]


def usable_isa(name: str) -> Isa:
    """The base ISA of that name, to run kernels: executing one that the processor lacks would end
    the process.

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


def bfloat16_isa(isa: Isa) -> Isa:
    """The best extension of an ISA with dot products of bfloat16 on this processor.

    Raises:
        DeviceError: the ISA has no such extension, or the processor lacks it.
    """
    reason = why_no_bfloat16(isa)
    if reason is not None:
        raise DeviceError(f"precision='bfloat16' on device 'cpu': {reason}; valid is 'float32'")
    return next(i for i in BFLOAT16_ISAS[isa.name] if is_usable(i))


def is_usable(isa: Isa) -> bool:
    """Whether this processor executes an ISA, and the system lets this process do so."""
    if not processor_flags().issuperset(isa.flags):
        return False
    return "tiles" not in (isa.bfloat16_products, isa.int8_products) or _tiles_permitted()


@cache
def _tiles_permitted() -> bool:
    """Asks Linux for permission to use AMX's tile registers; returns whether it is granted.  They
    are so large that the kernel reserves memory to save them only for processes that ask."""
    system_call = ctypes.CDLL(None).syscall
    return int(system_call(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)) == 0


_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


def why_no_bfloat16(isa: Isa) -> str | None:
    """Why this processor has no dot products of bfloat16 that extend an ISA; None if it has."""
    extended = BFLOAT16_ISAS.get(isa.name, ())
    if not extended:
        return f"isa={isa.name!r} has no products of bfloat16, which 'avx512' has"
    missing = sorted(set(extended[-1].flags) - processor_flags())
    if missing:
        return f"this processor lacks {', '.join(missing)}, and nothing imitates it unasked"
    return None


def with_int8(isa: Isa) -> Isa:
    """The extension of an ISA with dot products of int8, if this processor has one; otherwise the
    ISA itself, whose kernels give the same numbers."""
    return next((i for i in INT8_ISAS.get(isa.name, ()) if is_usable(i)), isa)


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
