"""All engines of a cell in one process: made one after another, compared, called in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import cupy
import torch

import minidnn as md
from minidnn.bench.engines import OWN
from minidnn.bench.gpu.modes import Cell, called, eager, inductor, module_of, own
from minidnn.bench.gpu.timing import Run, calls_in, deviations, exact, interleaved, timed
from minidnn.bench.precisions import allow, dtype_of
from minidnn.bench.worker import LoadedEngine
from minidnn.cudnn import machine
from minidnn.cudnn.gpu_turn import turn
from minidnn.measure import orders

NCHW, LAST = "torch", "torch-channels-last"
_COMPILED = ("torch-compile", "torch-max-autotune")
#: What makes each engine; told whether channels last was the faster of PyTorch's layouts.
_MADE: dict[str, Callable[[Cell, bool], tuple[Run, Any]]] = {
    OWN: lambda cell, last: own(cell),
    f"{OWN}-contractions": lambda cell, last: own(cell, "contractions"),
    f"{OWN}-layers": lambda cell, last: own(cell, "layers"),
    NCHW: lambda cell, last: eager(cell, last=False),
    LAST: lambda cell, last: eager(cell, last=True),
    "torch-compile": inductor,
    "torch-max-autotune": lambda cell, last: _autotuned(cell, last),
    "torch-calls": lambda cell, last: called(cell),
}


class Engines:
    """The engines of a cell that can be made, ready to be called.

    Attributes:
        runs: what calls each, by name.
        about: what made it, or the error with which it could not be made.
    """

    def __init__(self, cell: Cell, names: Sequence[str]) -> None:
        self._cell = cell
        self._outputs: dict[str, Any] = {}
        self.runs: dict[str, Run] = {}
        self.about: dict[str, dict[str, Any]] = {}
        for name in names:
            self.about[name] = self._make(name)

    def _make(self, name: str) -> dict[str, Any]:
        try:
            free, begin = _free(), time.perf_counter()
            last = name in _COMPILED and self._is_last_faster()
            self.runs[name], self._outputs[name] = _MADE[name](self._cell, last)
            torch.cuda.synchronize()
        except Exception as error:
            self.runs.pop(name, None)
            self._outputs.pop(name, None)
            return {"error": f"{type(error).__name__}: {error}"}
        ours = name.startswith(OWN)
        return {
            "compile_seconds": time.perf_counter() - begin,
            "memory_bytes": max(0, free - _free()),
            "version": md.__version__ if ours else torch.__version__,
            "library": machine.library_name() if ours else _torchs_cudnn(),
            "precision": self._cell.precision,
        }

    def _is_last_faster(self) -> bool:
        """Whether PyTorch's channels last is faster than NCHW; if one is there, whether it is."""
        if NCHW not in self.runs or LAST not in self.runs:
            return LAST in self.runs
        with self._cell.alone():
            times = interleaved({name: self.runs[name] for name in (NCHW, LAST)}, 3)
        return sorted(times[LAST])[1] < sorted(times[NCHW])[1]

    def compare(self) -> None:
        """Says how far outputs lie from PyTorch's in float32: None if not finite."""
        reference = exact(self._cell.module, self._cell.x)
        for name, most in deviations(self._outputs, reference).items():
            self.about[name]["deviation"] = most if most < float("inf") else None


def cell(
    network: str, shape: Sequence[int], precision: str, engines: Sequence[str], burst: float
) -> LoadedEngine:
    """The engines of these names, each called for about ``burst`` seconds in a round.

    A run gives seconds of a call of each, in the order of the report's "engines".  The report says
    of each what made it, or why it failed.
    """
    alone = partial(turn, 0)
    made = Engines(cell_of(network, shape, precision, "quick", alone), engines)
    runs = made.runs
    with alone():
        made.compare()
        counts = {name: calls_in(run, 1e3 * burst) for name, run in runs.items()}
    rounds = orders(list(runs))

    def round_of_all() -> list[float]:
        with alone():
            found = {name: timed(runs[name], counts[name]) for name in next(rounds)}
        return [found[name] / 1e3 for name in runs]

    return LoadedEngine(round_of_all, lambda seconds: [seconds], {"engines": made.about})


def cell_of(
    network: str,
    shape: Sequence[int],
    precision: str,
    tune: str,
    alone: Callable[[], AbstractContextManager[Any]],
) -> Cell:
    """A network of random weights and an input of noise, the same in every process."""
    allow(precision)
    torch.manual_seed(0)
    module = module_of(network, (shape[2], shape[3]))
    x = torch.randn(*shape, device="cuda", dtype=dtype_of(precision))
    return Cell(network, module, x, precision, tune, alone)


def _autotuned(cell: Cell, last: bool) -> tuple[Run, Any]:
    with turn(0):  # it measures while it compiles
        return inductor(cell, last, "max-autotune")


def _free() -> int:
    """Bytes of the GPU that nothing uses, or keeps for its next use."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()
    return int(torch.cuda.mem_get_info()[0])


def _torchs_cudnn() -> str:
    return f"cuDNN {torch.backends.cudnn.version()}"
