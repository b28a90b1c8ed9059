"""How many blocks of a kernel a multiprocessor holds at once, and what keeps it from more."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import DeviceError

WARP = 32
MOST_THREADS = 1024
"""Threads of a block."""
REGISTERS = 64 << 10
"""Of a multiprocessor, and the most of a block."""
MOST_REGISTERS = 255
"""Of a thread."""
_PARTITIONS = 4
_REGISTER_UNIT, _SHARED_UNIT = 256, 128
_SYSTEM_BYTES = 1 << 10
"""Shared memory that each block takes for CUDA itself."""


@dataclass(frozen=True)
class Limits:
    """What a multiprocessor holds at most: blocks, warps, and bytes of shared memory."""

    blocks: int
    warps: int
    shared_bytes: int

    @property
    def block_bytes(self) -> int:
        """Bytes of shared memory that a block can ask for."""
        return self.shared_bytes - _SYSTEM_BYTES


LIMITS = {
    (8, 0): Limits(32, 64, 164 << 10),
    (8, 6): Limits(16, 48, 100 << 10),
    (8, 7): Limits(16, 48, 164 << 10),
    (8, 9): Limits(24, 48, 100 << 10),
    (9, 0): Limits(32, 64, 228 << 10),
    (10, 0): Limits(32, 64, 228 << 10),
    (12, 0): Limits(24, 48, 100 << 10),
}
"""By compute capability.  Source: CUDA programming guide, "Technical Specifications per Compute
Capability"."""


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps that a multiprocessor holds at once.

    Attributes:
        blocks: so many of a kernel.
        warps: of these blocks.
        most_warps: that it can hold of any kernel.
        limit: what there would have to be more of: "warps", "registers", "shared memory", "blocks".
    """

    blocks: int
    warps: int
    most_warps: int
    limit: str

    @property
    def fraction(self) -> float:
        """The metric of that name: active warps over most warps."""
        return self.warps / self.most_warps


def limits_of(capability: tuple[int, int]) -> Limits:
    """The limits of a compute capability; DeviceError if they are not known."""
    if capability not in LIMITS:
        known = ", ".join(f"{major}.{minor}" for major, minor in LIMITS)
        raise DeviceError(
            f"the limits of compute capability {capability[0]}.{capability[1]} are not known; "
            f"known are those of {known}"
        )
    return LIMITS[capability]


def why_no_block(
    capability: tuple[int, int], threads: int, registers: int, shared_bytes: int
) -> str | None:
    """Why not one block of a kernel can run; None if one can."""
    if not 1 <= threads <= MOST_THREADS:
        return f"a block of {threads} threads; valid are 1 to {MOST_THREADS}"
    if registers > MOST_REGISTERS:
        return f"{registers} registers a thread; there are at most {MOST_REGISTERS}"
    # The hardware asks for registers as if each of its partitions held as many warps.
    warps = _up(_up(threads, WARP) // WARP, _PARTITIONS)
    if (asked := warps * _up(registers * WARP, _REGISTER_UNIT)) > REGISTERS:
        return f"{asked} registers a block; there are {REGISTERS}"
    if shared_bytes > (most := limits_of(capability).block_bytes):
        return f"{shared_bytes} bytes of shared memory a block; there are {most}"
    return None


def occupancy(
    capability: tuple[int, int], threads: int, registers: int, shared_bytes: int
) -> Occupancy:
    """Of a kernel with so many threads a block, registers a thread and bytes of shared memory a
    block; ValueError if not one block can run."""
    limits = limits_of(capability)
    if (reason := why_no_block(capability, threads, registers, shared_bytes)) is not None:
        raise ValueError(reason)
    warps = _up(threads, WARP) // WARP
    # Registers are handed out to warps, from the part of them that a quarter of the cores has.
    a_warp = _up(max(1, registers) * WARP, _REGISTER_UNIT)
    fitting = REGISTERS // _PARTITIONS // a_warp * _PARTITIONS
    most = {
        "warps": limits.warps // warps,
        "registers": fitting // warps,
        "shared memory": limits.shared_bytes // _up(shared_bytes + _SYSTEM_BYTES, _SHARED_UNIT),
        "blocks": limits.blocks,
    }
    limit = min(most, key=lambda name: most[name])
    return Occupancy(most[limit], most[limit] * warps, limits.warps, limit)


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
