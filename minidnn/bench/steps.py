"""Training steps of minidnn and of PyTorch in one process, made one after another, taken in turn.

A step is forward, loss, backward and SGD with momentum and weight decay, on noise that lies on the
device.  PyTorch's are its best: autocast, fused optimizer, and compiled modes in whichever layout
was faster without.
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
"""Takes a step; its loss, which need not have been computed yet."""

NCHW, LAST = "torch", "torch-channels-last"
MODES = {"torch-compile": "default", "torch-reduce-overhead": "reduce-overhead"}
RATE, MOMENTUM, DECAY = 0.01, 0.9, 5e-4


@dataclass(frozen=True)
class TrainingCase:
    """What is trained, on what; ``device`` is that of minidnn."""

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
        """Bytes of the GPU that this process keeps, with ``release`` only those in use; of the
        processor none are counted."""
        if not self.on_gpu:
            return 0
        from minidnn.bench import gpu_timing  # CuPy is there

        if release:
            gpu_timing.release_memory()
        return gpu_timing.memory_kept()


def case_of(
    network: str, shape: Sequence[int], precision: str, device: str, threads: int
) -> TrainingCase:
    """A network of random weights and a batch of noise, the same in every process."""
    torch.manual_seed(0)
    module = getattr(torchs, network)()
    place = "cuda" if device.startswith("cuda") else "cpu"
    if place == "cuda":
        allow(precision)
    else:
        torch.set_num_threads(threads)
    x, target = torch.randn(*shape, device=place), torch.randint(0, 1000, (shape[0],), device=place)
    return TrainingCase(network, precision, device, threads, module, x, target)


def own(case: TrainingCase) -> Take:
    """A step of minidnn's trainer, from the module's weights."""
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
    """A step of PyTorch, channels last or not, compiled in a mode if one is given."""
    device, precision = case.x.device.type, case.precision
    layout = torch.channels_last if last else torch.contiguous_format
    network = copy.deepcopy(case.module).to(device).train().to(memory_format=layout)
    optimizer = torch.optim.SGD(
        network.parameters(), RATE, momentum=MOMENTUM, weight_decay=DECAY, fused=True
    )
    loss_of, target = torch.nn.CrossEntropyLoss(), case.target
    x = case.x.to(memory_format=layout)
    narrow = dtype_of(precision)

    def loss() -> Any:
        return loss_of(network(x), target)

    forward = loss if mode is None else torch.compile(loss, mode=mode)
    scaler = torch.amp.GradScaler(device, enabled=precision == "float16")

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, narrow, enabled=narrow != torch.float32):
            found = forward()
        scaler.scale(found).backward()
        scaler.step(optimizer)
        scaler.update()
        return found.detach()

    return step


class InterleavedSteps:
    """The steps that can be taken.

    Attributes:
        takes: what takes each, by name.
        about: what made it, or the error with which it could not be made.
    """

    def __init__(self, case: TrainingCase, names: Sequence[str]) -> None:
        self._case = case
        self.takes: dict[str, Take] = {}
        self.about: dict[str, dict[str, Any]] = {}
        #: The first loss in float32, which that of all others is compared with.
        self._first = float(of_torch(_exact(case), last=False)())
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
        away = abs(first - self._first) / abs(self._first)
        return {
            "compile_seconds": time.perf_counter() - begin,
            "memory_bytes": case.memory_kept() - before,
            "version": md.__version__ if name == OWN else torch.__version__,
            "precision": case.precision,
            "deviation": away if math.isfinite(away) else None,
        }

    def _is_last_faster(self) -> bool:
        if NCHW not in self.takes or LAST not in self.takes:
            return LAST in self.takes
        found = {name: [self.seconds(name, 1) for _ in range(3)] for name in (NCHW, LAST)}
        return sorted(found[LAST])[1] < sorted(found[NCHW])[1]

    def seconds(self, name: str, count: int) -> float:
        """Of each of so many steps, which do not wait for one another."""
        self._case.wait()
        begin = time.perf_counter()
        for _ in range(count):
            loss = self.takes[name]()
        float(loss)
        self._case.wait()
        return (time.perf_counter() - begin) / count


def _exact(case: TrainingCase) -> TrainingCase:
    return replace(case, precision="float32")


def steps(
    network: str,
    shape: Sequence[int],
    precision: str,
    device: str,
    threads: int,
    engines: Sequence[str],
    burst: float,
) -> LoadedEngine:
    """Steps of these names, each taken for about ``burst`` seconds in a round.

    A run gives seconds of a step of each, in the order of the report's "engines".  The report says
    of each what made it, or why it failed.
    """
    made = InterleavedSteps(case_of(network, shape, precision, device, threads), engines)
    counts = {name: max(1, round(burst / made.seconds(name, 1))) for name in made.takes}
    rounds = orders(list(made.takes))

    def round_of_all() -> list[float]:
        found = {name: made.seconds(name, counts[name]) for name in next(rounds)}
        return [found[name] for name in made.takes]

    return LoadedEngine(round_of_all, lambda seconds: [seconds], {"engines": made.about})
