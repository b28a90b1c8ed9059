"""minidnn and PyTorch's modes, each ready to be called on one input on the GPU.

Compiling takes processor time; whatever the GPU is timed on meanwhile, by cudnn.benchmark or by
Inductor's kernels at their first launch, waits for this process's turn at the GPU, as minidnn's
tuning does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import cupy
import torch

import minidnn as md
from minidnn import models
from minidnn._torch_internals import deferred
from minidnn.bench.gpu.timing import Run
from minidnn.bench.networks import BEYOND
from minidnn.bench.torchvision_models import models as torchvision


@dataclass(frozen=True)
class Cell:
    """What all engines of a cell have.

    Attributes:
        network: its name; torchvision's module of it is ``module``, in float32.
        x: the input, on the GPU, of the precision's dtype.
        tune: as :func:`minidnn.compile` takes it.
        alone: enters this process's turn at the GPU.
    """

    network: str
    module: Any
    x: Any
    precision: str
    tune: str
    alone: Callable[[], AbstractContextManager[Any]]


def module_of(name: str, size: tuple[int, int]) -> Any:
    """torchvision's network, with random weights, and statistics of its normalizations made on
    noise: without them values grow from layer to layer, beyond what float16 holds."""
    extra = {"init_weights": False} if name in ("inception_v3", "googlenet") else {}
    extra |= {"aux_logits": False} if extra else {}
    # Random numbers of the large ones take the processor seconds; minidnn reads modules beyond the
    # zoo itself, from where they are.
    place = "cpu" if name in BEYOND else "cuda"
    with torch.device(place):
        module = getattr(torchvision, name)(weights=None, **extra).eval()
    normalizations = [m for m in module.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    if normalizations:
        _calibrate(module, normalizations, size)
    return module.to(place)


def _calibrate(module: Any, normalizations: list[Any], size: tuple[int, int]) -> None:
    """Mean and variance become those of a few images of noise; leaves the network on the GPU."""
    momentum = [one.momentum for one in normalizations]
    for one in normalizations:
        one.train()
        one.momentum = 1.0
    usual = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    with torch.no_grad():
        module.to("cuda")(torch.randn(8, 3, *size, device="cuda"))
    torch.backends.cudnn.benchmark = usual
    for one, before in zip(normalizations, momentum, strict=True):
        one.eval()
        one.momentum = before


class Own:
    """minidnn, bound to its input."""

    def __init__(self, exe: Any, x: Any) -> None:
        self.exe, self.x = exe, x
        self._run = exe.bind(x)
        self._run()
        self.outputs = self._run.outputs

    def __call__(self) -> None:
        self._run()


def own(cell: Cell, strategy: str = "model") -> tuple[Run, Any]:
    """The zoo's network with the module's weights; the module itself beyond the classics."""
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
    cupy.get_default_memory_pool().free_all_blocks()  # what was tuned on
    return run, run.outputs[0]


def moved(module: Any, x: Any, last: bool) -> Any:
    """A copy of the module where the image is, of its type, its weights in either layout."""
    layout = torch.channels_last if last else torch.contiguous_format
    return copy.deepcopy(module).to("cuda", x.dtype).to(memory_format=layout)


def eager(cell: Cell, last: bool) -> tuple[Run, Any]:
    """The module in NCHW or channels last: cudnn.benchmark measures, and what it has chosen becomes
    a CUDA graph."""
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
        return module, x  # which the graph reads, and which must stay

    return run, y


def called(cell: Cell) -> tuple[Run, Any]:
    """The module in NCHW, whose every kernel Python launches."""
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
    """``torch.compile`` in a mode, with freezing, in NCHW or channels last."""
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
    """Meanwhile compiled graphs wait for their turn whenever they run: then cudnn.benchmark and
    Inductor's kernels measure.  Compiling, which comes before the first run, needs no turn.
    Gives the count of runs."""
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
