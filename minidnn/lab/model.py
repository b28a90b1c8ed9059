"""The performance model of a kernel launch on a GPU: its time, its occupancy, and what limits it.

Each part of the machine (arithmetic, issue, load units, L2, memory) gets its share of the launch's
work, spread over the multiprocessors as blocks are.  The part that is busy longest is the limit;
all parts together set the time.  Occupancy follows from the threads, registers and shared memory of
a block.  Latencies and the rate of L2 are round figures of the architectures since Ampere.  The
rates of stores to L2, of block launches, and of a single warp were fitted to kernels on an H100.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, hypot, prod, sqrt
from typing import Any

from ..backends.cuda.kernels import Launch
from ..backends.cuda.machine import Machine
from ..backends.cuda.nvrtc import Resources
from ..errors import DeviceError
from .access import PAIR, WARP, Access, Work

MOST_THREADS = 1024
"""The most threads of a block."""
REGISTERS = 64 << 10
"""Registers of a multiprocessor, which are also the most of a block."""
MOST_REGISTERS = 255
"""The most registers of a thread."""
_PARTITIONS = 4
_REGISTER_UNIT, _SHARED_UNIT = 256, 128
_SYSTEM_BYTES = 1 << 10
"""Shared memory that CUDA reserves for itself in each block, in bytes."""


@dataclass(frozen=True)
class Limits:
    """The most blocks, warps, and bytes of shared memory that a multiprocessor holds at once."""

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
"""Limits by compute capability.  Source: CUDA programming guide, "Technical Specifications per
Compute Capability"."""


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps that a multiprocessor holds at once.

    Attributes:
        blocks: resident blocks of the kernel.
        warps: warps of these blocks.
        most_warps: the most warps that it can hold of any kernel.
        limit: the resource that allows no more: "warps", "registers", "shared memory", "blocks".
    """

    blocks: int
    warps: int
    most_warps: int
    limit: str

    @property
    def fraction(self) -> float:
        """The metric "theoretical occupancy": active warps over the most warps."""
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
    # The hardware allocates registers as if each of its partitions held equally many warps.
    warps = _up(_up(threads, WARP) // WARP, _PARTITIONS)
    if (asked := warps * _up(registers * WARP, _REGISTER_UNIT)) > REGISTERS:
        return f"{asked} registers a block; there are {REGISTERS}"
    if shared_bytes > (limit := limits_of(capability).block_bytes):
        return f"{shared_bytes} bytes of shared memory a block; there are {limit}"
    return None


def occupancy(
    capability: tuple[int, int], threads: int, registers: int, shared_bytes: int
) -> Occupancy:
    """The occupancy of a kernel with ``threads`` and ``shared_bytes`` a block and ``registers`` a
    thread; ValueError if not one block can run."""
    limits = limits_of(capability)
    if (reason := why_no_block(capability, threads, registers, shared_bytes)) is not None:
        raise ValueError(reason)
    warps = _up(threads, WARP) // WARP
    # Registers are allocated to whole warps, from the register file of one of four partitions.
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


_SCHEDULERS = 4
"""Warp schedulers of a multiprocessor, each of which issues an instruction in a cycle."""
_L2_BYTES, _L2_STORED = 32, 12.5
"""Bytes that a multiprocessor reads from L2 in a cycle while all do, and that it writes to L2."""
_LAUNCHED = 0.83
"""Blocks that the whole GPU launches in a cycle."""
_ALONE = 0.6
"""Instructions that a warp issues in a cycle when it has a scheduler for itself."""
_L1_BYTES = 192 << 10
_MEMORY_CYCLES = 540
"""Latency of memory in cycles, beyond that of L2."""
_TENSOR_MULTIPLY_ADDS = 16 * 8 * 16
_OF_TENSOR_CORES = {(9, 0): 0.63}
"""The share of the tensor cores' peak that single-warp instructions (mma) reach on hardware that is
made for warp groups of four (wgmma), by compute capability.  Source: Luo and others, "Benchmarking
and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024."""
_START = 2e-6
"""Seconds from one kernel's end to the next one's first instruction."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """The model's view of a launch on a machine.

    Attributes:
        launch: grid, block and dynamic shared memory.
        machine: the GPU.
        resources: registers, spills and static shared memory, as compiled.
        work: memory accesses and instructions of the launch.
        operations: floating-point operations of the computation.
        sizes: elements of each operand and scratch array, by name.
    """

    launch: Launch
    machine: Machine
    resources: Resources
    work: Work
    operations: int
    sizes: Mapping[str, int]

    @cached_property
    def occupancy(self) -> Occupancy:
        """The occupancy of the launch, for its dynamic and static shared memory together."""
        x, y, z = self.launch.block
        shared_bytes = self.launch.shared_bytes + self.resources.shared_bytes
        registers = self.resources.registers
        return occupancy(self.machine.capability, x * y * z, registers, shared_bytes)

    @property
    def blocks(self) -> int:
        x, y, z = self.launch.grid
        return x * y * z

    @property
    def waves(self) -> float:
        """The launch's blocks over the blocks that the GPU holds at once."""
        return self.blocks / (self.occupancy.blocks * self.machine.multiprocessors)

    @cached_property
    def bytes_moved(self) -> dict[str, float]:
        """Bytes by level: of the sectors that warps touch in L1, of those that blocks ask L2 for,
        and of memory."""
        reads = [one for one in self._global if not one.store]
        stores = [one for one in self._global if one.store]
        written = 32 * sum(one.sectors for one in stores)
        asked = {one.operand: 32 * one.block_sectors for one in reads}
        moved = {one.operand: PAIR * one.block_pairs for one in self._global}
        memory = [min(count, self._least(name)) for name, count in moved.items()]
        return {
            "L1": 32 * sum(one.sectors for one in reads) + written,
            "L2": sum(asked.values()) + written,
            "memory": sum(memory),
        }

    def _least(self, operand: str) -> float:
        """The most bytes of memory that an operand needs: its size, once; or once for each wave, if
        every wave streams through it and L2 cannot keep it."""
        size = self._bytes_of(operand)
        stays_in_l2 = size <= self.machine.cache_bytes or operand not in self.work.streams
        return size * (1 if stays_in_l2 else max(1, ceil(self.waves)))

    def _bytes_of(self, operand: str) -> float:
        number = next(one.bytes for one in self._global if one.operand == operand)
        return float(number * self.sizes[operand])

    @cached_property
    def is_kept(self) -> bool:
        """Whether L2 keeps all operands between the launches of a kernel that runs repeatedly."""
        names = {one.operand for one in self._global}
        return sum(map(self._bytes_of, names)) <= self.machine.cache_bytes

    @property
    def precision(self) -> str:
        """The dtype in global memory: "float16" if any operand has it, else "float32"."""
        return "float16" if any(one.bytes == 2 for one in self._global) else "float32"

    @cached_property
    def coalescing(self) -> float:
        """The metric of that name, over all loads: bytes that they ask for over bytes of the
        sectors that they get."""
        return _coalescing([one for one in self._global if not one.store])

    @cached_property
    def store_coalescing(self) -> float:
        """The metric "coalescing", over all stores."""
        return _coalescing([one for one in self._global if one.store])

    @cached_property
    def bank_conflicts(self) -> float:
        """The metric of that name; 1 if there is no shared memory."""
        shared = [one for one in self.work.accesses if one.space == "shared"]
        least = sum(one.least_wavefronts for one in shared)
        return sum(one.wavefronts for one in shared) / least if least else 1.0

    @cached_property
    def sectors_a_request(self) -> float:
        """The metric "sectors a request", over all loads."""
        return _sectors_a_request([one for one in self._global if not one.store])

    @cached_property
    def sectors_a_store(self) -> float:
        """The metric "sectors a request", over all stores."""
        return _sectors_a_request([one for one in self._global if one.store])

    @cached_property
    def load_turns(self) -> dict[str, float]:
        """Wavefronts of the load units, by address space."""
        spaces = ("global", "shared")
        return {
            space: sum(one.wavefronts for one in self.work.accesses if one.space == space)
            for space in spaces
        }

    @property
    def _global(self) -> list[Access]:
        return [one for one in self.work.accesses if one.space == "global"]

    @cached_property
    def limits(self) -> dict[str, float]:
        """Seconds that each part of the machine would take by itself."""
        machine, work = self.machine, self.work
        # The busiest multiprocessor's share of all blocks: the time is its own.
        share = ceil(self.blocks / machine.multiprocessors) / self.blocks
        cycle = 1 / machine.hertz
        lanes = machine.peak_operations / (2 * machine.multiprocessors * machine.hertz) / 32
        wavefronts = sum(self.load_turns.values()) + self._spilled
        stored = [one for one in self._global if one.store]
        read = self.bytes_moved["L2"] - 32 * sum(one.sectors for one in stored)
        written = PAIR * sum(one.pairs for one in stored)
        alone = work.alone + (0 if self.is_kept else _MEMORY_CYCLES)
        return {
            "arithmetic": (work.multiply_adds / lanes + work.tensor_products / self._products)
            * share
            * cycle,
            "issue": (work.instructions + self._spilled) / _SCHEDULERS * share * cycle,
            "load units": wavefronts * share * cycle,
            "L2": ((read + self._spilled_beyond) / _L2_BYTES + written / _L2_STORED)
            * share
            * cycle,
            "memory": 0.0 if self.is_kept else self.bytes_moved["memory"] / machine.bandwidth,
            "latency": ceil(self.waves) * alone * cycle,
            "launch": self.blocks / _LAUNCHED * cycle,
        }

    @property
    def _warps(self) -> int:
        """Warps of a block."""
        return -(-prod(self.launch.block) // WARP)

    @property
    def _spilled_beyond(self) -> float:
        """Bytes of spilled registers that go to L2, where L1 cannot keep those that all resident
        threads write.  Half of ``spill_bytes`` are stores, the others loads."""
        threads = self.occupancy.blocks * prod(self.launch.block)
        beyond = threads * self.resources.spill_bytes / 2 > _L1_BYTES
        return 4 * WARP * self._spilled * beyond

    @property
    def _spilled(self) -> float:
        """Warp instructions that store or load a spilled register; each is also one wavefront."""
        words = self.resources.spill_bytes / 4
        return self.blocks * self._warps * self.work.repeats * words

    @property
    def _products(self) -> float:
        """Tensor-core instructions that a multiprocessor executes in a cycle."""
        machine = self.machine
        reached = _OF_TENSOR_CORES.get(machine.capability, 1.0)
        each = machine.tensor_operations / (2 * machine.multiprocessors * machine.hertz)
        return reached * each / _TENSOR_MULTIPLY_ADDS

    @property
    def limit(self) -> str:
        """The part that is busy longest."""
        return max(self.limits, key=lambda name: self.limits[name])

    @property
    def seconds(self) -> float:
        """The predicted time.

        The parts of a multiprocessor overlap imperfectly: together they take the root of the sum of
        the squares of their times.  Waves of blocks follow each other, the last with fewer blocks.
        A few warps cannot fill the issue slots of a multiprocessor, and a wave takes at least the
        latencies and the work of one block by itself.
        """
        parts = self.limits
        most = ceil(self.blocks / self.machine.multiprocessors)
        busy = sqrt(sum(parts[name] ** 2 for name in ("arithmetic", "load units", "L2"))) / most
        issue, waiting = parts["issue"] / most, parts["latency"] / ceil(self.waves)
        used = self._warps * _ALONE / _SCHEDULERS  # share of the issue slots that one block fills

        def wave(blocks: int) -> float:
            together = hypot(blocks * busy, blocks * issue / min(1.0, blocks * used))
            return max(together, waiting + hypot(busy, issue / min(1.0, used)))

        full, rest = divmod(most, self.occupancy.blocks)
        waves = full * wave(self.occupancy.blocks) + (wave(rest) if rest else 0.0)
        return _START + max(parts["launch"], hypot(waves, parts["memory"]))

    @property
    def intensity(self) -> float:
        """The metric "operational intensity", over the bytes of memory."""
        return self.operations / self.bytes_moved["memory"]

    def attainable(self, intensity: float) -> float:
        """Operations a second under the roofline: tensor cores', where they are used."""
        return roofline_of(self.machine, bool(self.work.tensor_products)).attainable(intensity)

    def record(self) -> dict[str, Any]:
        """A cell of a study: what is known of the launch without running it."""
        found = self.occupancy
        return {
            "grid": list(self.launch.grid),
            "threads": list(self.launch.block),
            "registers": self.resources.registers,
            "spill_bytes": self.resources.spill_bytes,
            "shared_bytes": self.launch.shared_bytes + self.resources.shared_bytes,
            "occupancy": found.fraction,
            "occupancy_limit": found.limit,
            "blocks_a_multiprocessor": found.blocks,
            "waves": self.waves,
            "precision": self.precision,
            "operations": self.operations,
            "bytes": self.bytes_moved,
            "operational_intensity": self.intensity,
            "attainable_performance": self.attainable(self.intensity),
            "coalescing": self.coalescing,
            "store_coalescing": self.store_coalescing,
            "sectors_a_request": self.sectors_a_request,
            "sectors_a_store": self.sectors_a_store,
            "bank_conflicts": self.bank_conflicts,
            "load_turns": self.load_turns,
            "seconds_by_part": self.limits,
            "predicted_limit": self.limit,
            "predicted_seconds": self.seconds,
        }


def _coalescing(accesses: Sequence[Access]) -> float:
    asked = sum(one.wanted_bytes for one in accesses)
    return asked / (32 * sum(one.sectors for one in accesses))


def _sectors_a_request(accesses: Sequence[Access]) -> float:
    return sum(one.sectors for one in accesses) / sum(one.requests for one in accesses)


@dataclass(frozen=True, eq=False)
class PredictionOfSeveral:
    """The model's view of a step with several kernels, which run one after the other.

    Times, bytes and wavefronts add up; figures that do not, such as occupancy, are those of the
    kernel that takes longest.
    """

    kernels: tuple[Prediction, ...]

    @property
    def longest(self) -> Prediction:
        return max(self.kernels, key=lambda one: one.seconds)

    @property
    def seconds(self) -> float:
        """The predicted time."""
        return sum(one.seconds for one in self.kernels)

    @cached_property
    def limits(self) -> dict[str, float]:
        """Seconds that each part of the machine would take by itself."""
        return _added([one.limits for one in self.kernels])

    def record(self) -> dict[str, Any]:
        """A cell of a study, as of one kernel."""
        moved = _added([one.bytes_moved for one in self.kernels])
        intensity = self.kernels[0].operations / moved["memory"]
        return self.longest.record() | {
            "kernels": len(self.kernels),
            "spill_bytes": sum(one.resources.spill_bytes for one in self.kernels),
            "bytes": moved,
            "operational_intensity": intensity,
            "attainable_performance": self.longest.attainable(intensity),
            "load_turns": _added([one.load_turns for one in self.kernels]),
            "seconds_by_part": self.limits,
            "predicted_limit": max(self.limits, key=lambda name: self.limits[name]),
            "predicted_seconds": self.seconds,
        }


def _added(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(one[name] for one in parts) for name in parts[0]}


@dataclass(frozen=True)
class Roofline:
    """The two roofs of a device: peak operations a second, and bandwidth in bytes a second."""

    operations: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        """The operational intensity above which arithmetic limits, and below which memory does."""
        return self.operations / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """Attainable operations a second at an operational intensity."""
        return min(self.operations, intensity * self.bandwidth)


def roofline_of(machine: Machine, tensor_cores: bool = False) -> Roofline:
    """The roofline of a GPU in float32, or of its tensor cores in float16, with the bandwidth that
    copies reach."""
    peak = machine.tensor_operations if tensor_cores else machine.peak_operations
    return Roofline(peak, machine.bandwidth)
