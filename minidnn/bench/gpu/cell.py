"""All engines of a cell in this process, which a worker runs: each run is a round of them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cupy
import torch

import minidnn as md
from minidnn.bench.engines import OWN
from minidnn.bench.gpu.modes import (
    Cell,
    allow,
    called,
    dtype_of,
    eager,
    inductor,
    module_of,
    own,
)
from minidnn.bench.gpu.timing import Run, calls_in, deviations, exact, in_turn, timed
from minidnn.bench.worker import Engine
from minidnn.cudnn import machine
from minidnn.cudnn.gpu_turn import turn
from minidnn.measure.turns import orders

NCHW, LAST = "torch", "torch-channels-last"
#: What makes each engine; told whether channels last was the faster of PyTorch's layouts.
_MADE: dict[str, Callable[[Cell, bool], tuple[Run, Any]]] = {
    OWN: lambda cell, last: own(cell),
    NCHW: lambda cell, last: eager(cell, last=False),
    LAST: lambda cell, last: eager(cell, last=True),
    "torch-compile": inductor,
    "torch-max-autotune": partial(inductor, mode="max-autotune"),
    "torch-calls": lambda cell, last: called(cell),
}


def cell(
    network: str, shape: Sequence[int], precision: str, engines: Sequence[str], burst: float
) -> Engine:
    """The engines of these names, each called for about ``burst`` seconds in a round.

    A run gives seconds of a call of each, in the order of the report's "engines".  The report says
    of each what made it, or why it failed.
    """
    allow(precision)
    torch.manual_seed(0)
    alone = partial(turn, 0)
    x = torch.randn(*shape, device="cuda", dtype=dtype_of(precision))
    module = module_of(network, (shape[2], shape[3]))
    made = Cell(network, module, x, precision, "quick", alone)
    runs: dict[str, Run] = {}
    outputs: dict[str, Any] = {}
    about: dict[str, dict[str, Any]] = {}
    for name in engines:
        free, begin = _free(), time.perf_counter()
        try:
            runs[name], outputs[name] = _MADE[name](made, _is_last_faster(runs, alone))
            torch.cuda.synchronize()
        except Exception as error:
            runs.pop(name, None)
            about[name] = {"error": f"{type(error).__name__}: {error}"}
            continue
        about[name] = {
            "compile_seconds": time.perf_counter() - begin,
            "memory_bytes": max(0, free - _free()),
            "version": md.__version__ if name == OWN else torch.__version__,
            "library": machine.library_name() if name == OWN else _torchs_cudnn(),
            "precision": precision,
        }
    with alone():
        for name, most in deviations(outputs, exact(module, x)).items():
            about[name]["deviation"] = most if most < float("inf") else None
        counts = {name: calls_in(run, 1e3 * burst) for name, run in runs.items()}
    rounds = orders(list(runs))

    def round_of_all() -> list[float]:
        with alone():
            found = {name: timed(runs[name], counts[name]) for name in next(rounds)}
        return [found[name] / 1e3 for name in runs]

    return Engine(round_of_all, lambda seconds: [seconds], {"engines": about})


def _is_last_faster(runs: dict[str, Run], alone: Callable[[], Any]) -> bool:
    """Whether PyTorch's channels last is faster than NCHW; if only one is there, whether it is."""
    if NCHW not in runs or LAST not in runs:
        return LAST in runs
    with alone():
        times = in_turn({name: runs[name] for name in (NCHW, LAST)}, 3)
    return sorted(times[LAST])[1] < sorted(times[NCHW])[1]


def _free() -> int:
    """Bytes of the GPU that nothing uses, or keeps for its next use."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()
    return int(torch.cuda.mem_get_info()[0])


def _torchs_cudnn() -> str:
    return f"cuDNN {torch.backends.cudnn.version()}"
