"""Measures training steps of minidnn and of PyTorch in one process, in interleaved rounds.

A step is forward, loss, backward, and SGD with momentum and weight decay, on noise in the memory of
the device.  PyTorch runs with autocast and a fused optimizer, and its compiled modes in the layout
that is faster for the eager modes.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import minidnn as md
from minidnn import models
from minidnn.bench.engines import OWN
from minidnn.bench.torchvision_models import allow, dtype_of
from minidnn.bench.torchvision_models import models as torchs
from minidnn.bench.worker import LoadedEngine
from minidnn.measure import orders

Take = Callable[[], Any]
"""Takes a training step and returns its loss, whose computation may still be pending."""

NCHW, LAST = "torch", "torch-channels-last"
MODES = {"torch-compile": "default", "torch-reduce-overhead": "reduce-overhead"}
RATE, MOMENTUM, DECAY = 0.01, 0.9, 5e-4


@dataclass(frozen=True)
class TrainingCase:
    """What all engines train.

    Attributes:
        network: name of the network.
        precision: of the forward pass.
        device: as minidnn names it.
        threads: of the CPU.
        module: torchvision's module, whose weights all engines start from.
        x: a batch of noise.
        target: the class of each image.
    """

    network: str
    precision: str
    device: str
    threads: int
    module: Any
    x: Any
    target: Any

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def memory_kept(self, release: bool = False) -> int:
        """Bytes of GPU memory that this process holds, with ``release`` only those in use; 0 on the
        CPU."""
        if not self.on_gpu:
            return 0
        from minidnn.bench import gpu_timing  # needs CuPy, which a GPU case has

        if release:
            gpu_timing.release_memory()
        return gpu_timing.memory_kept()


def case_of(
    network: str, shape: Sequence[int], precision: str, device: str, threads: int
) -> TrainingCase:
    """A network with random weights and a batch of noise, which are the same in every process."""
    torch.manual_seed(0)
    module = getattr(torchs, network)()
    kind = "cuda" if device.startswith("cuda") else "cpu"
    if kind == "cuda":
        allow(precision)
    else:
        torch.set_num_threads(threads)
    x, target = torch.randn(*shape, device=kind), torch.randint(0, 1000, (shape[0],), device=kind)
    return TrainingCase(network, precision, device, threads, module, x, target)


def own(case: TrainingCase) -> Take:
    """Makes the step of minidnn's trainer, from the module's weights."""
    network = models.get_model(case.network)
    state = case.module.state_dict()
    network.load_state_dict({name: tensor.cpu().numpy() for name, tensor in state.items()})
    options: dict[str, Any] = {"threads": case.threads} if case.device == "cpu" else {}
    trainer = md.Trainer(
        network,
        tuple(case.x.shape),
        md.losses.CrossEntropy(),
        md.optim.SGD(RATE, momentum=MOMENTUM, weight_decay=DECAY),
        device=case.device,
        precision=case.precision,
        **options,
    )
    x, target = case.x, case.target
    if not case.on_gpu:
        x, target = x.numpy(), target.numpy()
    return lambda: trainer.step(x, target)


def of_torch(case: TrainingCase, last: bool, mode: str | None = None) -> Take:
    """Makes PyTorch's step, in channels last or NCHW, compiled if ``mode`` is given."""
    device, precision = case.x.device.type, case.precision
    layout = torch.channels_last if last else torch.contiguous_format
    network = copy.deepcopy(case.module).to(device).train().to(memory_format=layout)
    optimizer = torch.optim.SGD(
        network.parameters(), RATE, momentum=MOMENTUM, weight_decay=DECAY, fused=True
    )
    loss_of, target = torch.nn.CrossEntropyLoss(), case.target
    x = case.x.to(memory_format=layout)
    dtype = dtype_of(precision)

    def loss() -> Any:
        return loss_of(network(x), target)

    forward = loss if mode is None else torch.compile(loss, mode=mode)
    scaler = torch.amp.GradScaler(device, enabled=precision == "float16")

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            step_loss = forward()
        scaler.scale(step_loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return step_loss.detach()

    return step


class InterleavedSteps:
    """The steps of all engines that could be made.

    Attributes:
        takes: the function that takes each engine's step, by name.
        about: figures of its making, or the error with which it could not be made.
    """

    def __init__(self, case: TrainingCase, names: Sequence[str]) -> None:
        self._case = case
        self.takes: dict[str, Take] = {}
        self.about: dict[str, dict[str, Any]] = {}
        #: PyTorch's first loss in float32, to which the first loss of each engine is compared.
        exact = replace(case, precision="float32")
        self._first = float(of_torch(exact, last=False)())
        for name in names:
            self.about[name] = self._make(name)

    def _make(self, name: str) -> dict[str, Any]:
        case = self._case
        before, begin = case.memory_kept(release=True), time.perf_counter()
        try:
            if name == OWN:
                take = own(case)
            else:
                last = name == LAST or (name in MODES and self._is_last_faster())
                take = of_torch(case, last, MODES.get(name))
            first = float(take())
            for _ in range(2):
                take()
            case.wait()
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        self.takes[name] = take
        deviation = abs(first - self._first) / abs(self._first)
        return {
            "compile_seconds": time.perf_counter() - begin,
            "memory_bytes": case.memory_kept() - before,
            "version": md.__version__ if name == OWN else torch.__version__,
            "precision": case.precision,
            "deviation": deviation if math.isfinite(deviation) else None,
        }

    def _is_last_faster(self) -> bool:
        if NCHW not in self.takes or LAST not in self.takes:
            return LAST in self.takes
        found = {name: [self.seconds(name, 1) for _ in range(3)] for name in (NCHW, LAST)}
        return sorted(found[LAST])[1] < sorted(found[NCHW])[1]

    def seconds(self, name: str, count: int) -> float:
        """Seconds of a step, on average over ``count`` steps that do not wait for one another."""
        self._case.wait()
        begin = time.perf_counter()
        for _ in range(count):
            loss = self.takes[name]()
        float(loss)
        self._case.wait()
        return (time.perf_counter() - begin) / count


def steps(
    network: str,
    shape: Sequence[int],
    precision: str,
    device: str,
    threads: int,
    engines: Sequence[str],
    burst: float,
) -> LoadedEngine:
    """Makes the engines with these names, each of which trains for about ``burst`` seconds in a
    round.

    A run of the returned engine is a round, and returns the seconds of a step of each engine, in
    the order of the report's "engines".  The report has the figures of each engine's making, or the
    reason why it failed.
    """
    interleaved = InterleavedSteps(case_of(network, shape, precision, device, threads), engines)
    counts = {
        name: max(1, round(burst / interleaved.seconds(name, 1))) for name in interleaved.takes
    }
    rounds = orders(list(interleaved.takes))

    def round_of_all() -> list[float]:
        seconds_by_name = {name: interleaved.seconds(name, counts[name]) for name in next(rounds)}
        return [seconds_by_name[name] for name in interleaved.takes]

    return LoadedEngine(round_of_all, lambda seconds: [seconds], {"engines": interleaved.about})
