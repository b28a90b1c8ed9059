"""One cell of ``cuda_zoo.py`` after another, in a process that its queue has started.

Cells come as lines of JSON from standard input and go back as such through a pipe.  What takes
processor time is done beside other workers; whatever the GPU is timed on, by minidnn's tuning, by
cudnn.benchmark, by Inductor's kernels at their first launch or here, is done in this worker's
turn at the GPU (``minidnn.cudnn.gpu_lock``), on cores that nothing else of the benchmark uses.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import cupy
import torch
import torchvision

from benchmarks.cuda_zoo import UNUSABLE, summed
from minidnn.bench.gpu_cell import Engines, Own, cell_of
from minidnn.bench.gpu_timing import interleaved
from minidnn.cudnn import machine
from minidnn.cudnn.gpu_lock import gpu_lock
from minidnn.measure import Estimate, median
from minidnn.report.explain import contracts

MOST_TEXT = 300


def main() -> None:
    options = arguments()
    with os.fdopen(options.answers, "w") as answers:
        for text in sys.stdin:
            cell = json.loads(text)
            options.engines = cell["engines"]
            cell |= measured(cell["network"], cell["precision"], cell["batch"], options)
            torch._dynamo.reset()
            gc.collect()
            torch.cuda.empty_cache()
            cupy.get_default_memory_pool().free_all_blocks()
            answers.write(json.dumps(cell) + "\n")
            answers.flush()
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                print(f"this process cannot use the GPU any more: {error}", flush=True)
                os._exit(UNUSABLE)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--tune", required=True)
    parser.add_argument("--answers", type=int, required=True, help="the pipe's end")
    parser.add_argument("--cores", nargs="*", type=int, default=[], help="for measuring alone")
    parser.add_argument("--regions", type=int)
    return parser.parse_args()


@contextmanager
def alone(options: argparse.Namespace) -> Iterator[None]:
    """This worker's turn at its GPU, with this thread on cores of its own."""
    usual = os.sched_getaffinity(0)
    with gpu_lock(0):
        if options.cores:
            os.sched_setaffinity(0, options.cores)
        try:
            yield
            torch.cuda.synchronize()
        finally:
            os.sched_setaffinity(0, usual)


def measured(name: str, precision: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Times of one cell in milliseconds, and what was needed to get there."""
    about: dict[str, dict[str, Any]] = {}
    times: dict[str, Estimate] = {}
    profiles: dict[str, Any] = {}
    failed: dict[str, str] = {}
    size = 299 if name == "inception_v3" else 224
    try:
        shape = (batch, 3, size, size)
        cell = cell_of(name, shape, precision, options.tune, partial(alone, options))
        engines = Engines(cell, options.engines)
        about = engines.about
        with alone(options):
            engines.compare()
            times = {e: median(t) for e, t in interleaved(engines.runs, options.rounds).items()}
            if options.regions is not None:
                own = {e: regions(run) for e, run in engines.runs.items() if isinstance(run, Own)}
                profiles = {engine: summed(found, options.regions) for engine, found in own.items()}
    except Exception as error:
        failed["timing"] = f"{type(error).__name__}: {error}"
    failed |= {engine: one["error"] for engine, one in about.items() if "error" in one}
    for engine, text in failed.items():
        print(name, precision, batch, engine, "failed:", text[:MOST_TEXT], flush=True)
    made = {engine: one for engine, one in about.items() if "error" not in one}
    return {
        "device": machine.device_name(0),
        "versions": versions(),
        "ms": {engine: one.value for engine, one in times.items()},
        "interval": {engine: (one.low, one.high) for engine, one in times.items()},
        "compile_seconds": {e: round(one["compile_seconds"], 2) for e, one in made.items()},
        "errors": {e: one["deviation"] for e, one in made.items() if "deviation" in one},
        "failed": {engine: text[:MOST_TEXT] for engine, text in failed.items()},
    } | ({"regions": profiles} if profiles else {})


def versions() -> str:
    """Of what a time depends on."""
    theirs = f"torch {torch.__version__} with cuDNN {torch.backends.cudnn.version()}"
    return f"{machine.library_name()}, {theirs}, torchvision {torchvision.__version__}"


def regions(run: Own) -> list[dict[str, Any]]:
    """What each region takes, and what it takes at least, by its bytes and its operations."""
    graph, device = run.exe.graph, run.exe.plan.target.device
    nodes = {node.name: node for node in graph.nodes}
    found = []
    profile = run.exe.profile(run.x, runs=5)
    for region, what in zip(profile.regions, profile.descriptions, strict=True):
        is_contraction = contracts(nodes[region.name])
        peak = device.contraction_operations if is_contraction else device.operations
        found.append(
            {
                "name": region.name,
                "kind": region.kind,
                "contracts": is_contraction,
                "shape": list(nodes[region.name].outputs[0].shape),
                "us": 1e6 * region.seconds,
                "bytes_us": 1e6 * region.bytes / device.bandwidth,
                "operations_us": 1e6 * region.operations / peak,
                "what": what,
            }
        )
    return found


if __name__ == "__main__":
    main()
