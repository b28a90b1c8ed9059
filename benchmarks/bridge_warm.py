"""What the PyTorch bridge costs a caller: warm calls, first calls, and memory of the process.

    python -m benchmarks.bridge_warm --json FILE [--device cpu] [--size 64] [--repeats 3]

Each case runs in a process of its own, several times; medians count.  For a module (``tiny``: a
convolution, batch normalization and ReLU of 8 channels; ``resnet50``), a way (``eager``,
``optimize`` by ``md.optimize``, ``compile`` by ``torch.compile(backend="minidnn")``) and a mode:

- ``no_grad`` and ``inference_mode``: evaluation without gradients.
- ``gradients``: a forward pass in training mode, which keeps what its gradient needs.
- ``step``: such a pass with the backward pass.

A record has microseconds of a warm call, by the clock and of the processor, which other processes
change less; seconds of the first call (capture, planning, and loading
of kernels, which a first process has compiled); and megabytes of the process at its peak and before
the module was called, PyTorch and minidnn imported.  ``zoo`` is the zoo's own network through
``md.compile``: what a call of ``optimize`` takes beyond it is the wrapper's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

MODULES = ("tiny", "resnet50")
WAYS = ("eager", "optimize", "compile", "zoo")
MODES = ("no_grad", "inference_mode", "gradients", "step")
#: A warm call is the median of bursts, each at least so long.
BURSTS, SECONDS = 15, 0.1


def module_of(name: str) -> Any:
    import torch
    from torch import nn

    from minidnn.bench.torchvision_models import models

    torch.manual_seed(0)
    if name == "tiny":
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    return models.resnet50()


def compiled(name: str, way: str, given: argparse.Namespace) -> Any:
    """The module, as a way calls it."""
    import torch

    import minidnn as md
    from minidnn import models
    from minidnn.acceleration import dynamo

    if way == "zoo":
        shape = (1, 3, given.size, given.size)
        return md.compile(getattr(models, name)(), shape, device=given.device)
    net = module_of(name).train(given.mode in ("gradients", "step"))
    if way == "optimize":
        return md.optimize(net, device=given.device)
    if way == "compile":
        return torch.compile(net, backend=dynamo.backend, options={"device": given.device})
    return net


def call_of(name: str, way: str, given: argparse.Namespace) -> Callable[[], Any]:
    """One call in the mode, gradients included where it says so."""
    import torch

    fast = compiled(name, way, given)
    x = torch.randn(2 if given.mode in ("gradients", "step") else 1, 3, given.size, given.size)
    if way == "zoo":
        array = x.numpy()
        return lambda: fast(array)
    if given.mode == "step":
        return lambda: fast(x).sum().backward()
    return lambda: fast(x)


def measured(given: argparse.Namespace) -> dict[str, float]:
    """The figures of one case, in this process."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    modes = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    call = call_of(given.module, given.way, given)
    before = _megabytes()
    with modes.get(given.mode, nullcontext)():
        begin, worked = time.perf_counter(), time.process_time()
        call()
        first, first_worked = time.perf_counter() - begin, time.process_time() - worked
        call()
        bursts = [_burst(call) for _ in range(BURSTS)]
    return {
        "microseconds": 1e6 * median(wall for wall, _ in bursts),
        "cpu_microseconds": 1e6 * median(worked for _, worked in bursts),
        "first_seconds": first,
        "first_cpu_seconds": first_worked,
        "megabytes": _megabytes(),
        "megabytes_before": before,
    }


def _burst(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of a call among those of a burst, by the clock and of the processor."""
    calls, begin, worked = 0, time.perf_counter(), time.process_time()
    while (passed := time.perf_counter() - begin) < SECONDS:
        call()
        calls += 1
    return passed / calls, (time.process_time() - worked) / calls


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cases() -> list[tuple[str, str, str]]:
    """What is measured: only the whole network has a zoo's."""
    found = itertools.product(MODULES, WAYS, MODES)
    return [c for c in found if c[1] != "zoo" or (c[0], c[2]) == ("resnet50", "no_grad")]


def record(given: argparse.Namespace) -> dict[str, Any]:
    """Medians of all cases, each in as many processes as asked for."""
    import torch

    found: dict[str, Any] = {"torch": torch.__version__, "machine": platform.processor()}
    found |= {"device": given.device, "size": given.size, "threads": given.threads, "cases": {}}
    for module, way, mode in cases():
        name = f"{module} {way} {mode}"
        if given.cases and not any(each in name for each in given.cases):
            continue
        command = [sys.executable, "-m", "benchmarks.bridge_warm", "--device", given.device]
        command += ["--size", str(given.size), "--threads", str(given.threads)]
        command += ["--module", module, "--way", way, "--mode", mode]
        runs = []
        for _ in range(given.repeats + 1):
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
        runs = runs[1:]  # the first one compiles kernels
        row = {key: round(median(run[key] for run in runs), 2) for key in runs[0]}
        found["cases"][name] = row
        print(name, json.dumps(row), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, help="where the record is written")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=64, help="rows and columns of images")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="processes of a case")
    parser.add_argument("--cases", nargs="+", help="parts of names, such as 'tiny optimize'")
    parser.add_argument("--module", choices=MODULES)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--mode", choices=MODES)
    given = parser.parse_args()
    if given.module is not None:
        print(json.dumps(measured(given)))
        return
    found = record(given)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
