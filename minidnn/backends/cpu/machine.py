"""This machine: its processor, cores and caches, and its measured rates, for rooflines.

:func:`describe_machine` measures nothing.  Rates are measured with small ISPC kernels, once (about
a second), and cached for the processor, the number of cores, and the compiler.  They are the best
of several short measurements, since a busy machine only ever makes them worse.  The passes' cost
model does not use them: see :func:`minidnn.backends.cpu.target.device_for`.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import platform
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...cache import CacheStore, digest
from ...errors import DeviceError
from ...measure import timed
from ...runtime.cores import usable_cores
from ...runtime.operand import Operand
from ..codegen.kernel import KernelSource
from .compilers.kernels import compile_kernels
from .compilers.library import NativeFunction
from .compilers.toolchain import ispc_banners
from .contraction.dot_product.products import BF16_PAIR, LINE, Products
from .execution.buffers import AlignedMemory
from .execution.program import BoundKernel, NativeProgram, Pool
from .isa import BFLOAT16_ISAS, ISAS, Isa, is_usable, usable_isas

SYSTEM_CPU = Path("/sys/devices/system/cpu/cpu0")


@dataclass(frozen=True)
class CacheSizes:
    """Sizes in bytes: L1 data cache and L2 cache of one core, the whole L3 (0: not known)."""

    l1: int
    l2: int
    l3: int


@dataclass(frozen=True)
class Rates:
    """Measured rates of a machine, with ``threads`` threads unless another number is named.

    Attributes:
        flops: fp32 operations a second by fused multiply-adds from registers (one is two), as
            pairs of ISA name and rate.
        flops_one: the same on one thread.
        copy: bytes a second written plus read while copying more than the caches hold.
        read: bytes a second read from memory.
        l2: bytes a second that all threads together read from their L2 caches.
        products, products_one: the same as ``flops`` and ``flops_one``, by bfloat16 dot products.
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


log = logging.getLogger("minidnn.cpu")

VERSION = 3
REPEATS = 9
BUDGET_SECONDS = 0.4

FMA_STEPS = 1_000_000
TASK_FLOATS = 64 * 16
PRODUCT_TAPS = 16
"""Taps of 32 channels in one call: few enough that their weights stay in the L1 cache."""
PRODUCT_CALLS = 10_000
STREAM_FLOATS = 1 << 14
"""Floats of one task of the streaming kernels."""

L2_PASSES = 256
MEMORY_BYTES = 128 << 20
"""At least this much is streamed, and four times the L3 cache, but no more than the following:
virtual machines report all of a server's L3 cache, of which they get a part."""
MOST_MEMORY_BYTES = 512 << 20


_measured: dict[str, Rates] = {}


def measured_rates(threads: int | None = None) -> Rates:
    """The rates of this machine, from the cache or measured now.

    Raises:
        DeviceError: no compiler, or no ISA that this processor executes.
        CompileError: the kernels do not compile, or compiling is forbidden.
    """
    machine = describe_machine()
    count = machine.cores if threads is None else threads
    store = CacheStore("machine", ".json", 1 << 20)
    keys = [digest("machine rates", VERSION, machine, count, banner) for banner in ispc_banners()]
    for key in keys:
        if key in _measured:
            return _measured[key]
        if (known := store.read(key)) is not None:
            return _from_json(json.loads(known))
    result = measure(machine, count)
    key = keys[0]  # there is one, or measuring would have failed
    _measured[key] = result
    if result.disturbed:
        log.warning("the machine is busy: its measured rates are too low and were not kept")
        return result
    store.put(key, json.dumps(dataclasses.asdict(result), indent=1).encode(), label="rates")
    return result


def _from_json(fields: dict[str, Any]) -> Rates:
    pairs = {key: tuple(map(tuple, of)) for key, of in fields.items() if isinstance(of, list)}
    return Rates(**(fields | pairs))


class _Timer:
    """Takes the best of several times, and notices when other processes held the cores."""

    def __init__(self) -> None:
        self.disturbed = False

    def best(self, action: Callable[[], None], threads: int) -> float:
        """The least seconds of REPEATS undisturbed calls, or of all within BUDGET_SECONDS."""
        action()
        quiet: list[float] = []
        others: list[float] = []
        end = time.perf_counter() + BUDGET_SECONDS
        while len(quiet) < REPEATS and time.perf_counter() < end:
            seconds, is_quiet = timed(action, threads)
            (quiet if is_quiet else others).append(seconds)
        self.disturbed |= len(quiet) < 2
        return min(quiet + others)


def measure(machine: Machine, threads: int) -> Rates:
    """Measures ``machine`` with that many threads; see :class:`.machine.Rates`.

    Raises:
        DeviceError: it executes no known ISA.
    """
    if not machine.isas:
        raise DeviceError(f"{machine.line()}: there is no ISA to measure")
    pool, single, timer = Pool(threads), Pool(1), _Timer()
    flops, flops_one = [], []
    best, *_ = machine.isas
    streams = [_copy(), read_kernel(), _read_again()]
    # Together in one file: starting ISPC takes longer than compiling them.
    best_fma, copy, read, again = compile_kernels(
        [fma_kernel(ISAS[best]), *streams], ISAS[best], jobs=1
    )
    for name in machine.isas:
        kernel = best_fma
        if name != best:
            (kernel,) = compile_kernels([fma_kernel(ISAS[name])], ISAS[name])
        flops.append((name, _fma_rate(kernel, ISAS[name], pool, timer)))
        flops_one.append((name, _fma_rate(kernel, ISAS[name], single, timer)))
    products, products_one = [], []
    for name in machine.isas:
        for isa in filter(is_usable, BFLOAT16_ISAS.get(name, ())):
            (kernel,) = compile_kernels([products_kernel(isa)], isa)
            products.append((isa.name, _products_rate(kernel, isa, pool, timer)))
            products_one.append((isa.name, _products_rate(kernel, isa, single, timer)))
    rates = Rates(
        threads,
        tuple(flops),
        tuple(flops_one),
        *_memory_rates(copy, read, machine, pool, timer),
        _l2_rate(again, machine, pool, timer),
        tuple(products),
        tuple(products_one),
        timer.disturbed,
    )
    pool.stop()
    return rates


def fma_kernel(isa: Isa) -> KernelSource:
    """The kernel that measures the peak rate of fused multiply-adds.  It runs as many independent
    chains as registers allow: latency times throughput needs 8 to 10."""
    chains = range(isa.registers - 4)
    lines = [f"  float a{i} = x[{i} * programCount + programIndex];" for i in chains]
    lines += ["  for (uniform int i = 0; i < steps; i++) {"]
    lines += [f"    a{i} = md_fma(a{i}, m, c);" for i in chains]
    lines += ["  }"]
    lines += [f"  x[{i} * programCount + programIndex] = a{i};" for i in chains]
    body = "\n".join(lines)
    text = f"""MD_KERNEL(md_rate_fma) {{
  uniform int steps = *MD_IN(int32, 1);
  for (uniform int t = md_begin; t < md_end; t++) {{
  uniform float * uniform x = MD_OUT(float, 0) + t * {TASK_FLOATS};
  float m = x[60 * programCount + programIndex], c = x[61 * programCount + programIndex];
{body}
  }}
}}
"""
    return KernelSource("md_rate_fma", text)


def products_kernel(isa: Isa) -> KernelSource:
    """The kernel that measures the peak rate of bfloat16 dot products, on one register tile."""
    products = _products(isa)
    call = f"{products.name}(x, offsets, {PRODUCT_TAPS}, 1, 0, w, sums);"
    begin, end = (f"{name}();" if products.tiles else "" for name in BF16_PAIR.tiles)
    declared = [products.declaration, *(f'extern "C" void {c}' for c in (begin, end) if c)]
    text = f"""{chr(10).join(declared)}
MD_KERNEL(@) {{
  const uniform int8 * uniform w = MD_IN(int8, 0);
  const uniform int8 * uniform x = w + {PRODUCT_TAPS * products.vectors * 1024};
  const uniform int32 * uniform offsets = MD_IN(int32, 2);
  {begin}
  for (uniform int t = md_begin; t < md_end; t++) {{
    uniform float * uniform sums = MD_OUT(float, 1) + t * {products.pixels * products.vectors * 16};
    for (uniform int i = 0; i < {PRODUCT_CALLS}; i++) {call}
  }}
  {end}
}}
"""
    return KernelSource.named("rate_products", text, beside=products.pieces)


def _products(isa: Isa) -> Products:
    tiles = isa.bfloat16_products == "tiles"
    return Products(BF16_PAIR, 32 if tiles else 14, 2, LINE, tiles)


def _copy() -> KernelSource:
    text = f"""MD_KERNEL(md_rate_copy) {{
  const uniform float * uniform x = MD_IN(float, 0) + (uniform int64)md_begin * {STREAM_FLOATS};
  uniform float * uniform y = MD_OUT(float, 1) + (uniform int64)md_begin * {STREAM_FLOATS};
  uniform int count = (md_end - md_begin) * {STREAM_FLOATS};
  for (uniform int i = 0; i < count; i += programCount) y[i + programIndex] = x[i + programIndex];
}}
"""
    return KernelSource("md_rate_copy", text)


def _sum(passes: int) -> str:
    adds = "\n".join(f"      s{k} += x[i + {k} * programCount + programIndex];" for k in range(8))
    return f"""  float {", ".join(f"s{k} = 0" for k in range(8))};
  for (uniform int pass = 0; pass < {passes}; pass++) {{
    for (uniform int i = 0; i < count; i += 8 * programCount) {{
{adds}
    }}
  }}
  float sum = {" + ".join(f"s{k}" for k in range(8))};
"""


def read_kernel() -> KernelSource:
    """The kernel that reads memory as fast as possible: it sums the floats of its tasks, each of
    STREAM_FLOATS."""
    text = f"""MD_KERNEL(md_rate_read) {{
  const uniform float * uniform x = MD_IN(float, 0) + (uniform int64)md_begin * {STREAM_FLOATS};
  uniform float * uniform y = MD_OUT(float, 1) + md_begin * 64;
  uniform int count = (md_end - md_begin) * {STREAM_FLOATS};
{_sum(1)}  y[programIndex] = sum;
}}
"""
    return KernelSource("md_rate_read", text)


def _read_again() -> KernelSource:
    text = f"""MD_KERNEL(md_rate_l2) {{
  uniform int count = *MD_IN(int32, 2);
  for (uniform int t = md_begin; t < md_end; t++) {{
  const uniform float * uniform x = MD_IN(float, 0) + (uniform int64)t * count;
  uniform float * uniform y = MD_OUT(float, 1) + t * 64;
{_sum(L2_PASSES)}  y[programIndex] = sum;
  }}
}}
"""
    return KernelSource("md_rate_l2", text)


def _fma_rate(kernel: NativeFunction, isa: Isa, pool: Pool, timer: _Timer) -> float:
    """Operations a second of :func:`fma_kernel`."""
    buffer = AlignedMemory(pool.threads * TASK_FLOATS * 4)
    buffer.array("f4", (pool.threads * TASK_FLOATS,))[:] = 0.5
    steps = AlignedMemory(4)
    steps.array("i4", (1,))[:] = FMA_STEPS
    region = BoundKernel(kernel, (Operand(0), Operand(1)), pool.threads)
    program = NativeProgram([region], 2, pool=pool)
    operations = 2.0 * FMA_STEPS * (isa.registers - 4) * isa.lanes * pool.threads
    return operations / timer.best(
        lambda: program.run([buffer.address, steps.address]), pool.threads
    )


def _products_rate(kernel: NativeFunction, isa: Isa, pool: Pool, timer: _Timer) -> float:
    """Operations a second of :func:`products_kernel`."""
    products = _products(isa)
    outputs = 16 * products.vectors
    factors = AlignedMemory((PRODUCT_TAPS * products.vectors + 2) * 1024)
    sums = AlignedMemory(pool.threads * products.pixels * outputs * 4)
    offsets = AlignedMemory(PRODUCT_TAPS * 4)
    region = BoundKernel(kernel, (Operand(0), Operand(1), Operand(2)), pool.threads)
    program = NativeProgram([region], 3, pool=pool)
    terms = BF16_PAIR.block * PRODUCT_TAPS * PRODUCT_CALLS
    count = 2.0 * products.pixels * outputs * terms * pool.threads
    bases = [factors.address, sums.address, offsets.address]
    return count / timer.best(lambda: program.run(bases), pool.threads)


def _memory_rates(
    copy: NativeFunction, read: NativeFunction, machine: Machine, pool: Pool, timer: _Timer
) -> tuple[float, float]:
    """Bytes a second written plus read while copying, and bytes a second read."""
    task_bytes = STREAM_FLOATS * 4
    streamed = min(max(MEMORY_BYTES, 4 * machine.caches.l3), MOST_MEMORY_BYTES)
    tasks = streamed // task_bytes
    source, target = AlignedMemory(tasks * task_bytes), AlignedMemory(tasks * task_bytes)
    for buffer in (source, target):
        buffer.array("f4", (tasks * STREAM_FLOATS,))[:] = 1.0
    operands = (Operand(0), Operand(1))
    bases = [source.address, target.address]
    copying = NativeProgram([BoundKernel(copy, operands, tasks, 16)], 2, pool=pool)
    reading = NativeProgram([BoundKernel(read, operands, tasks, 16)], 2, pool=pool)
    size = float(tasks * task_bytes)
    return (
        2 * size / timer.best(lambda: copying.run(bases), pool.threads),
        size / timer.best(lambda: reading.run(bases), pool.threads),
    )


def _l2_rate(kernel: NativeFunction, machine: Machine, pool: Pool, timer: _Timer) -> float:
    """Bytes a second that all threads read from their L2 caches: each reads a buffer of half an L2
    cache (at least 128 KiB) again and again."""
    count = max(128 << 10, machine.caches.l2 // 2) // 4 // 128 * 128
    source, target = AlignedMemory(count * 4 * pool.threads), AlignedMemory(256 * pool.threads)
    source.array("f4", (count * pool.threads,))[:] = 1.0
    floats = AlignedMemory(4)
    floats.array("i4", (1,))[:] = count
    operands = (Operand(0), Operand(1), Operand(2))
    program = NativeProgram([BoundKernel(kernel, operands, pool.threads)], 3, pool=pool)
    bases = [source.address, target.address, floats.address]
    seconds = timer.best(lambda: program.run(bases), pool.threads)
    return count * 4.0 * L2_PASSES * pool.threads / seconds
