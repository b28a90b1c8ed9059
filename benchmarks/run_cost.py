"""What a run costs beside its kernels: the call from Python, and a region of no work.

    python -m benchmarks.run_cost [--network squeezenet1_1] [--threads 2] [--json FILE]

Seconds of a call less those that the runner counts within regions; and the time that each
further empty region adds to a program.  Medians with 95 % intervals.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import minidnn as md
from minidnn import models
from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cpu.backend import CpuProgram
from minidnn.backends.cpu.compilers.kernels import compile_kernels
from minidnn.backends.cpu.execution.program import BoundKernel, NativeProgram, shared_pool
from minidnn.backends.cpu.isa import best_isa
from minidnn.backends.cpu.machine import describe_machine
from minidnn.measure import Estimate, median, write_figures

MANY, FEW = 2000, 1000


def call_seconds(network: str, size: int, threads: int, runs: int) -> Estimate:
    """Seconds of a call with ``out=`` over those within regions."""
    shape = (1, 3, size, size)
    executable = md.compile(models.get_model(network), shape, device="cpu", threads=threads)
    program = executable.program
    assert isinstance(program, CpuProgram)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    out = executable(x)
    over = []
    for _ in range(runs):
        start = time.perf_counter()
        executable(x, out=out)
        whole = time.perf_counter() - start
        over.append(whole - float(program.seconds([x], [out]).sum()))
    return median(over)


def region_seconds(threads: int, runs: int) -> Estimate:
    """Seconds of an empty region with a task for each thread."""
    isa = best_isa()
    (kernel,) = compile_kernels([KernelSource("md_empty", "MD_KERNEL(md_empty) {}\n")], isa)
    pool = shared_pool(threads)
    programs = [
        NativeProgram([BoundKernel(kernel, (), threads)] * n, 0, pool=pool) for n in (FEW, MANY)
    ]
    found = []
    for _ in range(runs):
        times = []
        for program in programs:
            start = time.perf_counter()
            program.run([])
            times.append(time.perf_counter() - start)
        found.append((times[1] - times[0]) / (MANY - FEW))
    return median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a run costs beside its kernels.")
    parser.add_argument("--network", default="squeezenet1_1")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=101)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    call = call_seconds(options.network, options.size, options.threads, options.runs)
    region = region_seconds(options.threads, options.runs)
    print(
        f"{options.network}: {_us(call)} us a call over its kernels; empty region {_us(region)} us"
    )
    if options.json:
        figures = {
            "machine": describe_machine().line(),
            "threads": options.threads,
            "network": options.network,
            "call_seconds": [call.value, call.low, call.high],
            "region_seconds": [region.value, region.low, region.high],
        }
        write_figures(options.json, figures)


def _us(estimate: Estimate) -> str:
    scaled = Estimate(estimate.value * 1e6, estimate.low * 1e6, estimate.high * 1e6)
    return f"{scaled:.2f}"


if __name__ == "__main__":
    main()
