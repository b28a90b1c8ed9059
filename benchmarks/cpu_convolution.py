"""How near convolutions come to the processor's multiply-add peak.

    python benchmarks/cpu_convolution.py --batch 1 16 --isa avx512 avx2 [--json FILE]

Runs the convolutions of ResNet-50 in turn with a loop of multiply-adds on registers, many rounds,
since the clock and the neighbours of a shared machine change within seconds.  A sample counts if
the threads had their cores all the time ("quiet"); where there are none, all count, marked "*".
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidnn.backends.cpu.buffers import Buffer
from minidnn.backends.cpu.contraction import ContractionKernel, print_contraction
from minidnn.backends.cpu.isa import Isa, isa_named, usable_isas
from minidnn.backends.cpu.kernels import compile_kernels
from minidnn.backends.cpu.library import Kernel
from minidnn.backends.cpu.machine import describe_machine
from minidnn.backends.cpu.program import Operand, Pool, Program, Region
from minidnn.backends.cpu.rates import fma_kernel
from minidnn.backends.cpu.tensor import tensor_of
from minidnn.fusion.contraction import Parts
from minidnn.fusion.operations import operation_of
from minidnn.graph.ir import Constant, Node, Value
from minidnn.graph.layout import PLANAR, blocked
from minidnn.graph.operators import Add, Conv2d, ReLU
from minidnn.graph.types import TensorType

PEAK_STEPS = 20_000
QUIET_SHARE = 0.93


@dataclass(frozen=True)
class Layer:
    """A convolution on square maps, and how many of it a network has."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    size: int
    count: int = 1
    residual: bool = False

    def __str__(self) -> str:
        text = f"{self.inputs}>{self.outputs} {self.kernel}x{self.kernel}"
        text += f"/{self.stride}" if self.stride > 1 else ""
        return text + f" @{self.size}" + (" +" if self.residual else "")


def resnet50() -> list[Layer]:
    """Its convolutions; the last of each bottleneck adds the residual."""
    layers = [Layer(3, 64, 7, 2, 224)]
    inputs, size = 64, 56
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        out = size // stride
        layers += [
            Layer(inputs, width, 1, 1, size),
            Layer(width, width, 3, stride, size),
            Layer(inputs, 4 * width, 1, stride, size),
            Layer(width, 4 * width, 1, 1, out, blocks, residual=True),
            Layer(4 * width, width, 1, 1, out, blocks - 1),
            Layer(width, width, 3, 1, out, blocks - 1),
        ]
        inputs, size = 4 * width, out
    return layers


@dataclass
class Ready:
    layer: Layer
    program: Program
    buffers: list[Buffer]
    operations: int


def build(layer: Layer, batch: int, isa: Isa, threads: int) -> tuple[ContractionKernel, list[int]]:
    rng = np.random.default_rng(0)
    kernel, pad = layer.kernel, layer.kernel // 2
    x = Value(TensorType((batch, layer.inputs, layer.size, layer.size)), "x")
    shape = (layer.outputs, layer.inputs, kernel, kernel)
    weight = Constant(
        TensorType(shape),
        "w",
        (rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype("f4"),
    )
    bias = Constant(TensorType(shape[:1]), "b", np.zeros(shape[0], "f4"))
    op = Conv2d((layer.stride,) * 2, ((pad, pad), (pad, pad)))
    node = Node(op, [x, weight, bias], "conv")
    after = []
    value = node.output
    if layer.residual:
        after.append(Node(Add(), [value, Value(value.type, "z")], "add"))
        value = after[-1].output
    after.append(Node(ReLU(), [value], "relu"))
    parts = Parts(node, (), tuple(operation_of(n, 0) for n in after))
    values = [x, *parts.others, parts.result]
    layouts = [PLANAR if layer.inputs < 16 else blocked(isa.lanes)]
    layouts += [blocked(isa.lanes)] * (len(values) - 1)
    tensors = [tensor_of(v.type, a) for v, a in zip(values, layouts, strict=True)]
    printed = print_contraction(
        parts, batch, tensors[0], tuple(tensors[1:-1]), tensors[-1], isa, threads
    )
    return printed, [4 * batch * tensor.image for tensor in tensors]


def ready(
    layer: Layer, printed: ContractionKernel, sizes: list[int], kernel: Kernel, pool: Pool, n: int
) -> Ready:
    rng = np.random.default_rng(1)
    buffers = [Buffer(size) for size in sizes]
    for buffer in buffers[:-1]:
        data = buffer.array("f4", (buffer.size // 4,))
        data[:] = rng.standard_normal(len(data), np.float32)
    for make in printed.constants:
        packed = make()
        buffers.append(Buffer(packed.nbytes))
        buffers[-1].array("f4", packed.shape)[:] = packed
    operands = tuple(Operand(i) for i in range(len(buffers)))
    region = Region(kernel, operands, printed.tasks, printed.grain)
    program = Program([region], len(buffers), printed.scratch_bytes, pool)
    out = -(-layer.size // layer.stride)
    operations = 2 * n * out * out * layer.outputs * layer.inputs * layer.kernel**2
    return Ready(layer, program, buffers, operations)


class Peak:
    """A loop of multiply-adds on all threads."""

    def __init__(self, isa: Isa, pool: Pool) -> None:
        (kernel,) = compile_kernels([fma_kernel(isa)], isa)
        self.data = Buffer(pool.threads * 4096)
        self.steps = Buffer(4)
        self.steps.array("i4", (1,))[:] = PEAK_STEPS
        region = Region(kernel, (Operand(0), Operand(1)), pool.threads)
        self.program = Program([region], 2, pool=pool)
        self.bases = [self.data.address, self.steps.address]
        self.operations = 2.0 * PEAK_STEPS * (isa.registers - 4) * isa.lanes * pool.threads


class Samples:
    """Seconds of a program's runs, the undisturbed ones apart."""

    def __init__(self, program: Program, bases: list[int], threads: int) -> None:
        self.program, self.bases, self.threads = program, bases, threads
        self.quiet: list[float] = []
        self.others: list[float] = []

    def take(self) -> None:
        start, used = time.perf_counter(), time.process_time()
        self.program.run(self.bases)
        seconds = time.perf_counter() - start
        used = time.process_time() - used
        had_cores = used > QUIET_SHARE * self.threads * seconds
        (self.quiet if had_cores else self.others).append(seconds)

    def median(self) -> float:
        return statistics.median(self.quiet or self.others)

    def best(self) -> float:
        return min(self.quiet + self.others)


def measure(
    layers: Sequence[Layer], batch: int, isa: Isa, pool: Pool, rounds: int
) -> list[dict[str, Any]]:
    built = [build(layer, batch, isa, pool.threads) for layer in layers]
    start = time.perf_counter()
    kernels = compile_kernels([printed.source for printed, _ in built], isa)
    print(f"compiled {len(kernels)} kernels in {time.perf_counter() - start:.2f} s")
    loop = Peak(isa, pool)
    peaks = Samples(loop.program, loop.bases, pool.threads)
    all_ready = [
        ready(layer, printed, sizes, kernel, pool, batch)
        for layer, (printed, sizes), kernel in zip(layers, built, kernels, strict=True)
    ]
    samples = [Samples(r.program, [b.address for b in r.buffers], pool.threads) for r in all_ready]
    for _ in range(rounds):
        for each in samples:
            each.take()
            if each.best() < 1e-3:
                each.take()
            peaks.take()
    peak = loop.operations / peaks.median()
    rows = []
    for (printed, _), one, each in zip(built, all_ready, samples, strict=True):
        rate = one.operations / each.median()
        rows.append(
            {
                "layer": str(one.layer),
                "batch": batch,
                "isa": isa.name,
                "count": one.layer.count,
                "milliseconds": each.median() * 1e3,
                "best_milliseconds": each.best() * 1e3,
                "quiet_samples": len(each.quiet),
                "gflops": rate / 1e9,
                "peak_gflops": peak / 1e9,
                "share": rate / peak,
                "tasks": printed.tasks,
                "grain": printed.grain,
            }
        )
        print(
            f"{isa.name:7} batch {batch:2} {rows[-1]['layer']:22} {each.median() * 1e3:8.3f} ms"
            f"{' ' if each.quiet else '*'} {rate / 1e9:6.1f} GFLOP/s {100 * rate / peak:5.1f} %  "
            f"({printed.tasks} tasks by {printed.grain})"
        )
    total = sum(r.layer.count * s.median() * 1e3 for r, s in zip(all_ready, samples, strict=True))
    ideal = sum(r.layer.count * r.operations for r in all_ready) / peak * 1e3
    print(
        f"{isa.name:7} batch {batch:2} all: {total:.2f} ms, {100 * ideal / total:.1f} % of the "
        f"peak of {peak / 1e9:.1f} GFLOP/s{'' if peaks.quiet else ' *'}"
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Convolutions against the multiply-add peak.")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--isa", nargs="+", default=[isa.name for isa in usable_isas()])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="layers whose name contains this")
    parser.add_argument("--json", help="where to write the figures")
    options = parser.parse_args()
    layers = [layer for layer in resnet50() if options.only in str(layer)]
    pool = Pool(options.threads)
    rows = []
    for name in options.isa:
        for batch in options.batch:
            rows += measure(layers, batch, isa_named(name), pool, options.rounds)
    if options.json:
        figures = {"machine": describe_machine().line(), "threads": options.threads, "rows": rows}
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
