"""One cell of ``cuda_zoo.py`` after another, in a process that its queue has started.

Cells come as lines of JSON from standard input and go back as such through a pipe.  What takes
processor time is done beside other workers; whatever the GPU is timed on, by minidnn's tuning, by
cudnn.benchmark, by Inductor's kernels at their first launch or here, is done in this worker's
turn at the GPU (``minidnn.cudnn.gpu_turn``), on cores that nothing else of the benchmark uses.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import cupy
import torch
import torchvision

from benchmarks.cuda_zoo import COMPILED, OWN, UNUSABLE, summed
from minidnn.bench.gpu.modes import (
    Cell,
    Own,
    allow,
    called,
    dtype_of,
    eager,
    inductor,
    module_of,
    own,
)
from minidnn.bench.gpu.timing import Run, deviations, exact, in_turn
from minidnn.cudnn import machine
from minidnn.cudnn.gpu_turn import turn
from minidnn.measure.statistics import median
from minidnn.report.explain import contracts


def main() -> None:
    options = arguments()
    with os.fdopen(options.answers, "w") as answers:
        for text in sys.stdin:
            cell = json.loads(text)
            options.engines = cell["engines"]
            cell |= measured(cell["network"], cell["precision"], cell["batch"], options)
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
    with turn(0):
        if options.cores:
            os.sched_setaffinity(0, options.cores)
        try:
            yield
            torch.cuda.synchronize()
        finally:
            os.sched_setaffinity(0, usual)


def measured(name: str, precision: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Times of one cell in milliseconds, and what was needed to get there."""
    allow(precision)
    torch.manual_seed(0)
    runs: dict[str, Run] = {}
    seconds: dict[str, float] = {}
    errors: dict[str, float] = {}
    failed: dict[str, str] = {}
    profiles: dict[str, Any] = {}
    times: dict[str, list[float]] = {}
    outputs: dict[str, Any] = {}
    size = 299 if name == "inception_v3" else 224
    try:
        network = module_of(name, (size, size))
        x = torch.randn(batch, 3, size, size, device="cuda", dtype=dtype_of(precision))
        made = Cell(name, network, x, precision, options.tune, partial(alone, options))
        for engine in options.engines:
            begin = time.perf_counter()
            try:
                last = engine in COMPILED and is_faster(runs, "eager-last", "eager", options)
                runs[engine], outputs[engine] = ENGINE[engine](made, last)
                torch.cuda.synchronize()
            except Exception as error:
                runs.pop(engine, None)
                failed[engine] = said(error)
                print(name, precision, batch, engine, "failed:", failed[engine], flush=True)
                continue
            seconds[engine] = round(time.perf_counter() - begin, 2)
        with alone(options):
            errors = deviations(outputs, exact(network, x))
            times = in_turn(runs, options.rounds)
            if options.regions is not None:
                own = {e: regions(run) for e, run in runs.items() if isinstance(run, Own)}
                profiles = {engine: summed(found, options.regions) for engine, found in own.items()}
    except Exception as error:
        failed["timing"] = said(error)
        print(name, precision, batch, "timing failed:", failed["timing"], flush=True)
    found = {engine: median(ts) for engine, ts in times.items()}
    runs.clear()
    outputs.clear()
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()
    return {
        "device": machine.device_name(0),
        "versions": versions(),
        "ms": {engine: one.value for engine, one in found.items()},
        "interval": {engine: (one.low, one.high) for engine, one in found.items()},
        "compile_seconds": seconds,
        "errors": errors,
        "failed": failed,
    } | ({"regions": profiles} if profiles else {})


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def versions() -> str:
    """Of what a time depends on."""
    theirs = f"torch {torch.__version__} with cuDNN {torch.backends.cudnn.version()}"
    return f"{machine.library_name()}, {theirs}, torchvision {torchvision.__version__}"


def is_faster(runs: dict[str, Run], one: str, other: str, options: argparse.Namespace) -> bool:
    """Whether an engine is faster than another; if the other is not there, it is."""
    if one not in runs or other not in runs:
        return one in runs
    with alone(options):
        times = in_turn({name: runs[name] for name in (one, other)}, 3)
    return median(times[one]).value < median(times[other]).value


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


def autotuned(cell: Cell, last: bool) -> tuple[Run, Any]:
    with turn(0):  # it measures while it compiles, on all of this worker's cores
        return inductor(cell, last, "max-autotune")


ENGINE: dict[str, Callable[[Cell, bool], tuple[Run, Any]]] = {
    OWN: lambda cell, last: own(cell),
    f"{OWN}-contractions": lambda cell, last: own(cell, "contractions"),
    f"{OWN}-layers": lambda cell, last: own(cell, "layers"),
    "eager": lambda cell, last: eager(cell, last=False),
    "eager-last": lambda cell, last: eager(cell, last=True),
    "eager-calls": lambda cell, last: called(cell),
    "compile": inductor,
    "max-autotune": autotuned,
}


if __name__ == "__main__":
    main()
