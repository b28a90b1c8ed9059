"""How near linear layers of few rows come to reading their weights as fast as memory allows.

    python -m benchmarks.linear --rows 1 4 --isa avx512 avx2 [--json FILE]

A linear layer of a row is a read of its weights: the floor is their bytes at the rate of a loop
that only reads.  Layer and loop run in turn, many rounds; the loop reads more than the last cache
holds, so weights come from memory.  Medians stand with 95 % intervals.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.convolution import bind, timed
from minidnn.backends.cpu.compilers.kernels import compile_kernels
from minidnn.backends.cpu.contraction import print_contraction
from minidnn.backends.cpu.execution.buffers import AlignedMemory
from minidnn.backends.cpu.execution.program import BoundKernel, NativeProgram, Pool
from minidnn.backends.cpu.isa import Isa, usable_isa, usable_isas
from minidnn.backends.cpu.machine import STREAM_FLOATS, describe_machine, read_kernel
from minidnn.backends.cpu.tensor import tensor_of
from minidnn.fusion.region import Parts
from minidnn.graph.ir import Constant, Node, Value
from minidnn.graph.layout import PLANAR
from minidnn.graph.operators import Linear
from minidnn.graph.types import TensorType
from minidnn.measure import median, ratio, write_figures
from minidnn.runtime.operand import Operand

LAYERS = ((25088, 4096), (9216, 4096), (4096, 4096), (4096, 1000), (2048, 1000))
"""Inputs and outputs of VGG's, AlexNet's and ResNet-50's linear layers."""

READ_BYTES = 256 << 20
GRAIN = 16


class Read:
    """A loop that reads memory on all threads."""

    def __init__(self, isa: Isa, pool: Pool) -> None:
        (kernel,) = compile_kernels([read_kernel()], isa)
        tasks = READ_BYTES // (4 * STREAM_FLOATS)
        self.source, sums = AlignedMemory(READ_BYTES), AlignedMemory(4 * 64 * tasks)
        self.source.array("f4", (READ_BYTES // 4,))[:] = 1
        region = BoundKernel(kernel, (Operand(0), Operand(1)), tasks, GRAIN)
        self.program = NativeProgram([region], 2, pool=pool)
        self.bases = [self.source.address, sums.address]
        self.sums = sums


@dataclass(frozen=True)
class Sample:
    seconds: float
    read_seconds: float


def measure(
    inputs: int, outputs: int, rows: int, isa: Isa, pool: Pool, loop: Read, rounds: int
) -> dict[str, Any]:
    """Times one layer and prints its figures."""
    rng = np.random.default_rng(0)
    x = Value(TensorType((rows, inputs)), "x")
    shape = (outputs, inputs)
    weight = Constant(TensorType(shape), "w", rng.standard_normal(shape, np.float32))
    bias = Constant(TensorType((outputs,)), "b", np.zeros(outputs, np.float32))
    parts = Parts(Node(Linear(), [x, weight, bias], "linear"))
    source, result = (tensor_of(v.type, PLANAR) for v in (x, parts.result))
    printed = print_contraction(parts, rows, source, (), result, isa, pool.threads)
    kernels = compile_kernels([stage.source for stage in printed.stages], isa)
    sizes = [4 * rows * n for n in (inputs, outputs)]
    program, buffers, _ = bind(printed, sizes, kernels, pool)
    bases = [buffer.address for buffer in buffers]
    samples = []
    for _ in range(rounds):
        read, _ = timed(loop.program, loop.bases, pool.threads)
        seconds, _ = timed(program, bases, pool.threads)
        samples.append(Sample(seconds, read))
    size = 4 * inputs * outputs
    time = median([s.seconds for s in samples])
    rate = median([READ_BYTES / s.read_seconds for s in samples])
    share = ratio(
        [s.read_seconds * size / READ_BYTES for s in samples], [s.seconds for s in samples]
    )
    print(
        f"{isa.name:7} {inputs:5} > {outputs:4} rows {rows:2}  {time.value * 1e3:8.3f} ms "
        f"{size / time.value / 1e9:6.1f} GB/s, reading {rate.value / 1e9:6.1f} GB/s: "
        f"{100 * share.value:5.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}]"
    )
    return {
        "inputs": inputs,
        "outputs": outputs,
        "rows": rows,
        "isa": isa.name,
        "milliseconds": time.value * 1e3,
        "read_bytes_a_second": rate.value,
        "share": share.value,
        "share_interval": [share.low, share.high],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Linear layers against reading memory.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--isa", nargs="+", default=[isa.name for isa in usable_isas()])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    pool = Pool(options.threads)
    found = []
    for name in options.isa:
        isa = usable_isa(name)
        loop = Read(isa, pool)
        for rows in options.rows:
            for inputs, outputs in LAYERS:
                found.append(measure(inputs, outputs, rows, isa, pool, loop, options.rounds))
    if options.json:
        figures = {"machine": describe_machine().line(), "threads": options.threads, "rows": found}
        write_figures(options.json, figures)


if __name__ == "__main__":
    main()
