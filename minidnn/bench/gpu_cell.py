"""Measures minidnn and PyTorch's modes on one network and input on a GPU, in one process.

Engines are made one after another, compared with PyTorch's float32, and timed in interleaved
rounds.  Compiling runs without the GPU lock.  Whatever times kernels meanwhile (cudnn.benchmark,
Inductor at its first launches, minidnn's tuning) holds the lock, so that no other process that
takes it disturbs the times.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import cupy
import torch

import minidnn as md
from minidnn import models
from minidnn._torch_internals import deferred
from minidnn.bench.engines import OWN
from minidnn.bench.gpu_timing import (
    Run,
    calls_in,
    deviations,
    exact,
    interleaved,
    memory_kept,
    release_memory,
    timed,
)
from minidnn.bench.networks import BEYOND
from minidnn.bench.torchvision_models import allow, dtype_of
from minidnn.bench.torchvision_models import models as torchvision
from minidnn.bench.worker import LoadedEngine
from minidnn.cudnn import machine
from minidnn.cudnn.gpu_lock import gpu_lock
from minidnn.measure import orders

NCHW, LAST = "torch", "torch-channels-last"
_COMPILED = ("torch-compile", "torch-max-autotune")


@dataclass(frozen=True)
class Cell:
    """What all engines of a case share.

    Attributes:
        network: name of the network.
        module: torchvision's module of it, in float32.
        x: the input, on the GPU, in the dtype of ``precision``.
        precision: in which engines compute.
        tune: as :func:`minidnn.compile` takes it.
        alone: makes a context that holds the GPU lock.
    """

    network: str
    module: Any
    x: Any
    precision: str
    tune: str
    alone: Callable[[], AbstractContextManager[Any]]


def module_of(name: str, size: tuple[int, int]) -> Any:
    """torchvision's network with random weights, its normalizations calibrated on noise: otherwise
    activations grow from layer to layer, beyond the range of float16."""
    extra = {"init_weights": False} if name in ("inception_v3", "googlenet") else {}
    extra |= {"aux_logits": False} if extra else {}
    # Large networks take seconds to initialize on the CPU, so that is done on the GPU, except where
    # minidnn compiles the module itself.
    device = "cpu" if name in BEYOND else "cuda"
    with torch.device(device):
        module = getattr(torchvision, name)(weights=None, **extra).eval()
    normalizations = [m for m in module.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    if normalizations:
        _calibrate(module, normalizations, size)
    return module.to(device)


def _calibrate(module: Any, normalizations: list[Any], size: tuple[int, int]) -> None:
    """Sets running means and variances to those of a few images of noise.  Leaves the network on
    the GPU."""
    momentum = [one.momentum for one in normalizations]
    for one in normalizations:
        one.train()
        one.momentum = 1.0
    benchmark = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    with torch.no_grad():
        module.to("cuda")(torch.randn(8, 3, *size, device="cuda"))
    torch.backends.cudnn.benchmark = benchmark
    for one, before in zip(normalizations, momentum, strict=True):
        one.eval()
        one.momentum = before


class Own:
    """An executable of minidnn that is bound to its input."""

    def __init__(self, exe: Any, x: Any) -> None:
        self.exe, self.x = exe, x
        self._run = exe.bind(x)
        self._run()
        self.outputs = self._run.outputs

    def __call__(self) -> None:
        self._run()


def own(cell: Cell, strategy: str = "model") -> tuple[Run, Any]:
    """Makes minidnn's engine: from the zoo's network with the module's weights or, for networks of
    ``BEYOND``, from the module itself."""
    net = cell.module
    if cell.network not in BEYOND:
        net = models.get_model(cell.network)
        state = cell.module.state_dict()
        net.load_state_dict({key: value.cpu().numpy() for key, value in state.items()})
    exe = md.compile(
        net,
        tuple(cell.x.shape),
        device="cuda",
        precision=cell.precision,
        tune=cell.tune,
        strategy=strategy,
    )
    run = Own(exe, cell.x)
    torch.cuda.synchronize()
    cupy.get_default_memory_pool().free_all_blocks()  # operands that tuning ran on
    return run, run.outputs[0]


def moved(module: Any, x: Any, last: bool) -> Any:
    """A copy of the module on the GPU, in the input's dtype, with weights channels last or not."""
    layout = torch.channels_last if last else torch.contiguous_format
    return copy.deepcopy(module).to("cuda", x.dtype).to(memory_format=layout)


def eager(cell: Cell, last: bool) -> tuple[Run, Any]:
    """Makes PyTorch's eager module in NCHW or channels last: cudnn.benchmark selects algorithms,
    and a CUDA graph of the module is captured and replayed."""
    module = moved(cell.module, cell.x, last)
    x = cell.x.to(memory_format=torch.channels_last) if last else cell.x
    with cell.alone(), torch.inference_mode():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                module(x)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = module(x)
        graph.replay()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the workspaces that cudnn.benchmark has tried

    def run() -> Any:
        graph.replay()
        return module, x  # the graph reads both, so they must stay alive

    return run, y


def called(cell: Cell) -> tuple[Run, Any]:
    """Makes PyTorch's eager module in NCHW without a CUDA graph: Python launches every kernel."""
    module = moved(cell.module, cell.x, False)

    def run() -> Any:
        with torch.inference_mode():
            return module(cell.x)

    with cell.alone():
        for _ in range(3):
            y = run()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the workspaces that cudnn.benchmark has tried
    return run, y


def inductor(cell: Cell, last: bool, mode: str = "reduce-overhead") -> tuple[Run, Any]:
    """Makes a module of ``torch.compile`` in a mode, with freezing, in NCHW or channels last."""
    deferred("torch._inductor.config").freezing = True
    x = cell.x.to(memory_format=torch.channels_last) if last else cell.x
    with _first_runs(cell) as count:
        run, y = _warmed(mode, cell.module, x, last)
    if not count[0]:  # this version of PyTorch runs its graphs elsewhere
        with cell.alone():
            run, y = _warmed(mode, cell.module, x, last)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return run, y


def _warmed(mode: str, module: Any, x: Any, last: bool) -> tuple[Run, Any]:
    torch.compiler.reset()
    fast = torch.compile(moved(module, x, last), mode=mode)

    def run() -> Any:
        with torch.inference_mode(), torch.no_grad():
            return fast(x)

    for _ in range(4):
        y = run()
    return run, y.clone()


@contextmanager
def _first_runs(cell: Cell) -> Iterator[list[int]]:
    """A context in which compiled graphs hold the GPU lock whenever they run, since cudnn.benchmark
    and Inductor time kernels at first runs.  Compiling, which precedes the first run, needs no
    lock.  Yields a list that holds the number of runs."""
    graph = deferred("torch._inductor.output_code.CompiledFxGraph")
    inner, count = graph.__call__, [0]

    def call(self: Any, inputs: Any) -> Any:
        count[0] += 1
        with cell.alone():
            return inner(self, inputs)

    graph.__call__ = call
    try:
        yield count
    finally:
        graph.__call__ = inner


#: The function that makes each engine; its second argument says whether channels last was faster in
#: PyTorch than NCHW.
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
        runs: the function that runs each engine, by name.
        about: figures of its making, or the error with which it could not be made.
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
            release_memory()
            before, begin = memory_kept(), time.perf_counter()
            last = name in _COMPILED and self._is_last_faster()
            self.runs[name], self._outputs[name] = _MADE[name](self._cell, last)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - begin
            release_memory()
        except Exception as error:
            self.runs.pop(name, None)
            self._outputs.pop(name, None)
            return {"error": f"{type(error).__name__}: {error}"}
        is_own, theirs = name.startswith(OWN), f"cuDNN {torch.backends.cudnn.version()}"
        return {
            "compile_seconds": seconds,
            "memory_bytes": memory_kept() - before,
            "version": md.__version__ if is_own else torch.__version__,
            "library": machine.library_name() if is_own else theirs,
            "precision": self._cell.precision,
        }

    def _is_last_faster(self) -> bool:
        """Whether PyTorch is faster in channels last than in NCHW; if only one of these engines is
        there, whether that is channels last."""
        if NCHW not in self.runs or LAST not in self.runs:
            return LAST in self.runs
        with self._cell.alone():
            times = interleaved({name: self.runs[name] for name in (NCHW, LAST)}, 3)
        return sorted(times[LAST])[1] < sorted(times[NCHW])[1]

    def compare(self) -> None:
        """Records the deviation of each output from PyTorch's in float32; None if it is not
        finite."""
        reference = exact(self._cell.module, self._cell.x)
        for name, most in deviations(self._outputs, reference).items():
            self.about[name]["deviation"] = most if most < float("inf") else None


def cell(
    network: str, shape: Sequence[int], precision: str, engines: Sequence[str], burst: float
) -> LoadedEngine:
    """Makes the engines with these names, each of which runs for about ``burst`` seconds in a
    round.

    A run of the returned engine is a round, and returns the seconds of a call of each engine, in
    the order of the report's "engines".  The report has the figures of each engine's making, or the
    reason why it failed.
    """
    alone = partial(gpu_lock, 0)
    built = Engines(cell_of(network, shape, precision, "quick", alone), engines)
    runs = built.runs
    with alone():
        built.compare()
        counts = {name: calls_in(run, 1e3 * burst) for name, run in runs.items()}
    rounds = orders(list(runs))

    def round_of_all() -> list[float]:
        with alone():
            milliseconds = {name: timed(runs[name], counts[name]) for name in next(rounds)}
        return [milliseconds[name] / 1e3 for name in runs]

    return LoadedEngine(round_of_all, lambda seconds: [seconds], {"engines": built.about})


def cell_of(
    network: str,
    shape: Sequence[int],
    precision: str,
    tune: str,
    alone: Callable[[], AbstractContextManager[Any]],
) -> Cell:
    """A network with random weights and an input of noise, which are the same in every process."""
    allow(precision)
    torch.manual_seed(0)
    module = module_of(network, (shape[2], shape[3]))
    x = torch.randn(*shape, device="cuda", dtype=dtype_of(precision))
    return Cell(network, module, x, precision, tune, alone)


def _autotuned(cell: Cell, last: bool) -> tuple[Run, Any]:
    with gpu_lock(0):  # it measures while it compiles
        return inductor(cell, last, "max-autotune")
