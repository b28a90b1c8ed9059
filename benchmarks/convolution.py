"""How near convolutions come to the processor's multiply-add peak.

    python -m benchmarks.convolution --batch 1 16 --isa avx512 avx2 [--json FILE]

Runs the convolutions of ResNet-50 in turn with a loop of multiply-adds on registers, many rounds,
since the clock and the neighbours of a shared machine change within seconds.  A sample counts if
the threads had their cores all the time ("quiet"); where there are none, all count, marked "*".
Medians stand with 95 % intervals.  A share is of the peak measured between the layers; "memory"
marks a layer whose bytes (each input, weight and result once, at the machine's rate of copying)
take longer than its arithmetic at that peak.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minidnn.backends.cpu.compilers.kernels import compile_kernels
from minidnn.backends.cpu.compilers.library import NativeFunction
from minidnn.backends.cpu.contraction import print_contraction
from minidnn.backends.cpu.contraction.algorithms import ALGORITHMS
from minidnn.backends.cpu.contraction.choose import Algorithm
from minidnn.backends.cpu.execution.buffers import AlignedMemory, Array
from minidnn.backends.cpu.execution.program import BoundKernel, NativeProgram, Pool
from minidnn.backends.cpu.isa import Isa, usable_isa, usable_isas
from minidnn.backends.cpu.machine import describe_machine, fma_kernel, measured_rates
from minidnn.backends.cpu.stage import PrintedContraction, Workspace
from minidnn.backends.cpu.tensor import tensor_of
from minidnn.fusion.operations import operation_of
from minidnn.fusion.region import Parts
from minidnn.graph.ir import Constant, Node, Value
from minidnn.graph.layout import PLANAR, blocked
from minidnn.graph.operators import Add, Conv2d, ReLU
from minidnn.graph.types import TensorType
from minidnn.measure import median, ratio, write_figures
from minidnn.measure import timed as clocked
from minidnn.runtime.operand import Operand

PEAK_STEPS = 400_000
MANY_OPERATIONS = 10**9
COLD_BYTES = 128 << 20
LEAST_QUIET = 5


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
    printed: PrintedContraction
    program: NativeProgram
    buffers: list[AlignedMemory]
    operations: int
    bytes: int


def build(
    layer: Layer, batch: int, isa: Isa, threads: int, algorithm: Algorithm | None
) -> tuple[PrintedContraction, list[int]]:
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
        parts,
        batch,
        tensors[0],
        tuple(tensors[1:-1]),
        tensors[-1],
        isa,
        threads,
        algorithm=algorithm,
    )
    return printed, [4 * batch * tensor.image for tensor in tensors]


def ready(
    layer: Layer,
    printed: PrintedContraction,
    sizes: list[int],
    kernels: Sequence[NativeFunction],
    pool: Pool,
    n: int,
) -> Ready:
    program, buffers, moved = bind(printed, sizes, kernels, pool)
    out = -(-layer.size // layer.stride)
    operations = 2 * n * out * out * layer.outputs * layer.inputs * layer.kernel**2
    return Ready(layer, printed, program, buffers, operations, moved)


def bind(
    printed: PrintedContraction, sizes: list[int], kernels: Sequence[NativeFunction], pool: Pool
) -> tuple[NativeProgram, list[AlignedMemory], int]:
    """The program of a contraction, its buffers (random inputs), and the bytes of its operands."""
    rng = np.random.default_rng(1)
    buffers = [AlignedMemory(size) for size in sizes]
    for buffer in buffers[:-1]:
        data = buffer.array("f4", (buffer.size // 4,))
        data[:] = rng.standard_normal(len(data), np.float32)
    moved = sum(sizes)
    buffers.append(AlignedMemory(printed.workspace_bytes))
    workspace = len(sizes)
    regions = []
    for stage, kernel in zip(printed.stages, kernels, strict=True):
        operands = []
        for pointer in stage.pointers:
            if isinstance(pointer, int):
                operands.append(Operand(pointer))
            elif isinstance(pointer, Workspace):
                operands.append(Operand(workspace, pointer.offset))
            else:
                packed = pointer()
                operands.append(Operand(len(buffers)))
                moved += packed.nbytes
                buffers.append(AlignedMemory(packed.nbytes))
                buffers[-1].array("f4", packed.shape)[:] = packed
        regions.append(BoundKernel(kernel, tuple(operands), stage.tasks, stage.grain))
    scratch = max(stage.scratch_bytes for stage in printed.stages)
    return NativeProgram(regions, len(buffers), scratch, pool), buffers, moved


class Peak:
    """A loop of multiply-adds on all threads."""

    def __init__(self, isa: Isa, pool: Pool) -> None:
        (kernel,) = compile_kernels([fma_kernel(isa)], isa)
        self.data = AlignedMemory(pool.threads * 4096)
        self.steps = AlignedMemory(4)
        self.steps.array("i4", (1,))[:] = PEAK_STEPS
        region = BoundKernel(kernel, (Operand(0), Operand(1)), pool.threads)
        self.program = NativeProgram([region], 2, pool=pool)
        self.bases = [self.data.address, self.steps.address]
        self.operations = 2.0 * PEAK_STEPS * (isa.registers - 4) * isa.lanes * pool.threads


@dataclass(frozen=True)
class Sample:
    """Seconds of a layer's run and of the peak's loop right after it."""

    seconds: float
    peak_seconds: float
    quiet: bool


def timed(program: NativeProgram, bases: list[int], threads: int) -> tuple[float, bool]:
    """Seconds of a run, and whether its threads had their cores all the time."""
    return clocked(lambda: program.run(bases), threads)


def take(one: Ready, loop: Peak, threads: int, cold: Array | None) -> Sample:
    bases = [b.address for b in one.buffers]
    timed(loop.program, loop.bases, threads)  # wakes the threads
    if cold is not None:
        cold.sum()
        source = one.buffers[0]
        source.array("f4", (source.size // 4,)).sum()
    elif one.operations < MANY_OPERATIONS:
        timed(one.program, bases, threads)
    seconds, quiet = timed(one.program, bases, threads)
    peak, peak_quiet = timed(loop.program, loop.bases, threads)
    return Sample(seconds, peak, quiet and peak_quiet)


def measure(
    layers: Sequence[tuple[Layer, Algorithm | None]],
    batch: int,
    isa: Isa,
    pool: Pool,
    rounds: int,
    cold: Array | None,
) -> list[dict[str, Any]]:
    built = [build(layer, batch, isa, pool.threads, algorithm) for layer, algorithm in layers]
    sources = [stage.source for printed, _ in built for stage in printed.stages]
    kernels = iter(compile_kernels(sources, isa))
    loop = Peak(isa, pool)
    all_ready = [
        ready(layer, printed, sizes, [next(kernels) for _ in printed.stages], pool, batch)
        for (layer, _), (printed, sizes) in zip(layers, built, strict=True)
    ]
    samples: list[list[Sample]] = [[] for _ in all_ready]
    for _ in range(rounds):
        for one, taken in zip(all_ready, samples, strict=True):
            taken.append(take(one, loop, pool.threads, cold))
    rows = [
        row_of(one, taken, loop, batch, isa) for one, taken in zip(all_ready, samples, strict=True)
    ]
    total = sum(row["count"] * row["milliseconds"] for row in rows)
    ideal = sum(row["count"] * row["milliseconds"] * row["share"] for row in rows)
    print(
        f"{isa.name:7} batch {batch:2} all: {total:.2f} ms, {100 * ideal / total:.1f} % of the peak"
    )
    return rows


def row_of(one: Ready, taken: list[Sample], loop: Peak, batch: int, isa: Isa) -> dict[str, Any]:
    """A layer's figures, printed too."""
    quiet = [sample for sample in taken if sample.quiet]
    used = quiet if len(quiet) >= LEAST_QUIET else taken
    seconds = median([sample.seconds for sample in used])
    ideal = [sample.peak_seconds * one.operations / loop.operations for sample in used]
    share = ratio(ideal, [sample.seconds for sample in used])
    floor = one.bytes / measured_rates().copy
    bound = "memory" if floor > seconds.value * share.value else "arithmetic"
    print(
        f"{isa.name:7} batch {batch:2} {one.layer!s:22} {one.printed.algorithm:13} "
        f"{seconds.value * 1e3:8.3f} ms"
        f"{' ' if used is quiet else '*'} {100 * share.value:5.1f} % "
        f"[{100 * share.low:.1f}, {100 * share.high:.1f}]"
        + (f"  memory: {100 * floor / seconds.value:.0f} %" if bound == "memory" else "")
    )
    return {
        "layer": str(one.layer),
        "algorithm": one.printed.algorithm,
        "batch": batch,
        "isa": isa.name,
        "count": one.layer.count,
        "milliseconds": seconds.value * 1e3,
        "milliseconds_interval": [seconds.low * 1e3, seconds.high * 1e3],
        "samples": len(used),
        "undisturbed": used is quiet,
        "share": share.value,
        "share_interval": [share.low, share.high],
        "bound": bound,
        "memory_milliseconds": floor * 1e3,
    }


def algorithms_of(
    layers: Sequence[Layer], names: Sequence[str]
) -> list[tuple[Layer, Algorithm | None]]:
    """Each layer with each algorithm of these names that may compute it."""
    found: list[tuple[Layer, Algorithm | None]] = []
    for layer in layers:
        for name in names:
            plain = layer.kernel == 3 and layer.stride == 1
            if name == "best":
                found.append((layer, None))
            elif name == "direct" or plain:
                found.append((layer, next(a for a in ALGORITHMS if a.name == name)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Convolutions against the multiply-add peak.")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--isa", nargs="+", default=[isa.name for isa in usable_isas()])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="layers whose name contains this")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument(
        "--algorithms",
        nargs="+",
        default=["direct"],
        help="direct, 'F(2x2, 3x3)', 'F(4x4, 3x3)', or best: what is chosen",
    )
    parser.add_argument("--cold", action="store_true", help="weights come from memory")
    options = parser.parse_args()
    layers = algorithms_of(
        [layer for layer in resnet50() if options.only in str(layer)], options.algorithms
    )
    cold = np.zeros(COLD_BYTES // 4, np.float32) if options.cold else None
    pool = Pool(options.threads)
    rows = []
    for name in options.isa:
        for batch in options.batch:
            rows += measure(layers, batch, usable_isa(name), pool, options.rounds, cold)
    if options.json:
        figures = {"machine": describe_machine().line(), "threads": options.threads, "rows": rows}
        write_figures(options.json, figures)


if __name__ == "__main__":
    main()
