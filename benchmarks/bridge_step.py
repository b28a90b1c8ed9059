"""Milliseconds of a network's forward and backward pass: PyTorch's module through ``md.optimize``,
minidnn's own trainer, and PyTorch's modes.

python -m benchmarks.bridge_step resnet50 densenet121 --batch 128 --precision bfloat16
python -m benchmarks.bridge_step resnet18 --device cpu --batch 2 --size 64 --threads 1 --modes eager

- optimize: forward, PyTorch's cross-entropy, and backward into ``.grad``, under PyTorch's autocast
  if the precision is narrower than float32.  ``left`` operations of it run in PyTorch.
- trainer: the part of a trainer's step before the optimizer, whose results are the gradients; for
  networks of the zoo.
- eager, default, reduce-overhead, max-autotune: PyTorch's own, the latter three of torch.compile.
  Its images and weights are channels last if the precision is narrower than float32.

All take turns, round after round; medians count.  With --row passes follow each other without
waiting for the device, as in a training loop: else host time before the device's first work counts.
``of_trainer`` is the time of "optimize" as a
part of the trainer's, and ``to_best`` the time of PyTorch's best mode as a part of that of
"optimize".  Both are medians of the rounds' ratios, beside the width of the middle half of these.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import minidnn as md
from minidnn import models
from minidnn.bench.torchvision_models import models as torchs
from minidnn.compiler import compile
from minidnn.measure import interleaved
from minidnn.runtime.store import Store
from minidnn.training.step import Objective

MODES = ("eager", "default", "reduce-overhead", "max-autotune")
CLASSES = 1000
HALF_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}

#: Makes one pass forwards and backwards.
Step = Callable[[], Any]
#: Makes such a step of a network.
Make = Callable[[str, argparse.Namespace], Step]


def batch_of(given: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and targets, on the device."""
    shape = (given.batch, 3, given.size, given.size)
    target = torch.randint(0, CLASSES, (given.batch,), device=given.device)
    return torch.randn(shape, device=given.device), target


def module_of(name: str, given: argparse.Namespace) -> torch.nn.Module:
    torch.manual_seed(0)
    net: torch.nn.Module = getattr(torchs, name)(num_classes=CLASSES)
    return net.to(given.device).train()


def passes(module: Any, net: torch.nn.Module, x: torch.Tensor, given: argparse.Namespace) -> Step:
    """Forwards and backwards through a module, which has the parameters of ``net``."""
    _, target = batch_of(given)
    half = HALF_DTYPES.get(given.precision)

    def step() -> torch.Tensor:
        net.zero_grad(set_to_none=True)
        with torch.autocast(given.device, half, enabled=half is not None):
            loss = F.cross_entropy(module(x), target)
        loss.backward()
        return loss

    return step


def by_optimize(name: str, given: argparse.Namespace, optimized: list[Any]) -> Step:
    """optimized: gets the module."""
    net = module_of(name, given)
    fast = md.optimize(net, device=given.device, **_threads(given))
    optimized.append(fast)
    x, _ = batch_of(given)
    return passes(fast, net, x, given)


def by_torch(mode: str, name: str, given: argparse.Namespace) -> Step:
    net = module_of(name, given)
    x, _ = batch_of(given)
    if given.precision in HALF_DTYPES:
        x = x.to(memory_format=torch.channels_last)
        net = net.to(memory_format=torch.channels_last)
    module = net if mode == "eager" else torch.compile(net, mode=mode)
    return passes(module, net, x, given)


def by_trainer(name: str, given: argparse.Namespace) -> Step:
    """What of a trainer's step comes before the optimizer."""
    x, target = batch_of(given)
    network = getattr(models, name)(num_classes=CLASSES)
    graph = Objective(md.losses.CrossEntropy(), {}).applied(network, [tuple(x.shape)], "train")
    trained = [name for name, _ in network.trainable_parameters()]
    graph = md.gradient(graph, graph.outputs[0], of=trained)
    program = compile(
        graph,
        store=Store(),
        device=given.device,
        precision=given.precision,
        **_threads(given),
    )
    target = target.to(getattr(torch, graph.inputs[1].dtype))
    return lambda: program(x, target)


def _threads(given: argparse.Namespace) -> dict[str, Any]:
    return {} if given.threads is None else {"threads": given.threads}


def milliseconds(step: Step, device: str, row: int) -> float:
    """Of a step among so many in a row, the device's work included."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    begin = time.perf_counter()
    for _ in range(row):
        step()
    wait()
    return 1e3 * (time.perf_counter() - begin) / row


def measured(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """A network's figures."""
    row: dict[str, Any] = {"network": name, "batch": given.batch, "size": given.size}
    row |= {"device": _device(given.device), "precision": given.precision}
    row |= {"in_a_row": given.row}
    row |= {"torch": torch.__version__, "minidnn": md.__version__}
    sides: dict[str, Step] = {}
    optimized: list[Any] = []
    makers: dict[str, Make] = {"optimize": partial(by_optimize, optimized=optimized)}
    if name in models.list_models():
        makers["trainer"] = by_trainer
    makers |= {mode: partial(by_torch, mode) for mode in given.modes}
    for side, make in makers.items():
        begin = time.perf_counter()
        sides[side] = make(name, given)
        for _ in range(given.before):
            sides[side]()
        row[f"{side}_ready_seconds"] = round(time.perf_counter() - begin, 1)
    takes = {
        side: partial(milliseconds, step, given.device, given.row) for side, step in sides.items()
    }
    found = {side: np.array(each) for side, each in interleaved(takes, given.rounds).items()}
    row |= {side: round(float(np.median(each)), 3) for side, each in found.items()}
    row["left"] = sum(len(program.left) for each in optimized for program in each.programs)
    if "trainer" in found:
        row |= ratio("of_trainer", found["optimize"] / found["trainer"])
    if given.modes:
        best = min(given.modes, key=row.__getitem__)
        row["best"] = best
        row |= ratio("to_best", found[best] / found["optimize"])
    return row


def ratio(name: str, found: np.ndarray) -> dict[str, float]:
    low, middle, high = np.quantile(found, (0.25, 0.5, 0.75))
    return {name: round(float(middle), 4), f"{name}_spread": round(float(high - low), 4)}


def _device(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="+", help="the zoo's names")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--threads", type=int, help="on the CPU (all usable cores)")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224, help="rows and columns of images")
    parser.add_argument("--precision", choices=("float32", *HALF_DTYPES), default="float32")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=["eager", "reduce-overhead"])
    parser.add_argument("--before", type=int, default=5, help="passes before those that count")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--row", type=int, default=1, help="passes of a round, one after another")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    for name in options.networks:
        print(json.dumps(measured(name, options)), flush=True)


if __name__ == "__main__":
    main()
