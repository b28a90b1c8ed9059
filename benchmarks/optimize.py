"""What ``md.optimize`` adds to a network: beside the zoo's own, and with an unknown layer in it.

    python -m benchmarks.optimize [--device cuda --precision float16 --batch 32] --json FILE
    python -m benchmarks.optimize --json FILE --table

All run in one process, in turn, on the same weights and input:

- zoo: the zoo's own network, compiled by ``md.compile``, called with an array.
- optimize: torchvision's module through ``md.optimize``, called with a tensor.
- split: the same with a layer in the middle that only PyTorch knows.
- layer: that layer by itself, in PyTorch, on what it is given there.
- in eager: that layer where it stands in the network, all of which PyTorch runs (CPU only).

The first two are compared with each other, then ``split`` with ``optimize`` and the layer together:
as it is by itself, and as it is in the network, whose other layers have driven its code and
PyTorch's out of the caches.  In half precision the module itself is, and its input.

On the CPU single calls take turns in random order, as the machine's speed changes faster than
bursts of them; each is made twice, and timed the second time, behind what it has left itself:
threads that poll, or sleep.  ``layer`` is timed over and over by itself.  On a GPU a call is timed
in two ways: with those after it already under way (by events around bursts of many), and until its
result is there, which is single calls likewise: between bursts of these, what the processor does
differs by more than what is compared.  What the file has already is not measured again.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import minidnn as md
from benchmarks.figures import Results, line
from benchmarks.optimize_report import row, table
from minidnn import models
from minidnn.bench.torchvision_models import models as torchvision
from minidnn.measure import compared, interleaved, median, ratio, undisturbed

NETWORKS = models.CLASSIC
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
REST_SECONDS = 0.05  # in which threads of PyTorch stop spinning

Run = Callable[[], object]
Times = dict[str, list[float]]


class Unknown(nn.Module):
    """A user's own layer of an operation that minidnn does not know."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sinc(x)


def network(name: str) -> nn.Module:
    """torchvision's, with random weights whose statistics keep values neither tiny nor huge."""
    torch.manual_seed(0)
    unset = {"aux_logits": False, "init_weights": False} if name == "inception_v3" else {}
    net = getattr(torchvision, name)(weights=None, **unset).eval().requires_grad_(False)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return net


def split(net: nn.Module) -> tuple[nn.Module, str]:
    """A copy with an unknown layer behind the block, or pool, that ends nearest to the middle of
    all convolutions; and the name of that block."""
    net = copy.deepcopy(net)
    trunk: Any = getattr(net, "features", net)
    convolutions, ends = 0, {}
    for name, child in trunk.named_children():
        convolutions += sum(isinstance(module, nn.Conv2d) for module in child.modules())
        if any(child.children()) or isinstance(child, nn.MaxPool2d):
            ends[name] = convolutions
    place = min(ends, key=lambda name: abs(2 * ends[name] - convolutions))
    trunk._modules[place] = nn.Sequential(trunk._modules[place], Unknown())
    return net, place


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The record of one network."""
    device, precision = options.device, options.precision
    size = 299 if name == "inception_v3" else 224
    shape = (options.batch, 3, size, size)
    net = network(name)
    own = models.get_model(name)
    own.load_state_dict({key: value.numpy() for key, value in net.state_dict().items()})
    how: dict[str, Any] = {"device": device, "precision": precision}
    zoos = md.compile(own, shape, **how)
    dtype = DTYPES.get(precision, torch.float32)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    fast = md.optimize(net.to(device, dtype), x, strict=True, **how)
    given = x if device == "cuda" else x.numpy()
    with torch.inference_mode():
        agree = bool((torch.as_tensor(zoos(given)) == fast(x)).all())
        runs: dict[str, Run] = {"zoo": lambda: zoos(given), "optimize": lambda: fast(x)}
        whole = {way: compared(times, "zoo") for way, times in timed(runs, options).items()}
        found = {"same bits": agree, "whole": whole}
        return found if options.whole else {**found, **_split_record(net, fast, x, how, options)}


def _split_record(
    net: nn.Module,
    fast: nn.Module,
    x: torch.Tensor,
    how: Mapping[str, Any],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """What a record says of the network with an unknown layer."""
    halves, place = split(net)
    broken = md.optimize(halves, x, **how)
    unknown, between = Unknown(), _given_to_unknown(halves, x)
    runs: dict[str, Run] = {"optimize": lambda: fast(x), "split": lambda: broken(x)}
    layer: dict[str, Run] = {"layer": lambda: unknown(between)}
    if options.device == "cuda":
        times = timed({**runs, **layer}, options)
    else:
        calls = timed(runs, options)["call"]
        calls |= {**singly(layer, options), "in eager": _in_eager(halves, x, options)}
        times = {"call": calls}
    parts = len(broken.programs[0].parts)
    figures = {way: split_figures(found) for way, found in times.items()}
    return {"split behind": place, "parts": parts, "split": figures}


def split_figures(times: Times) -> dict[str, Any]:
    """What is kept of a way of measuring: medians, and the ratios of "split" to "optimize" with the
    median of the unknown layer, by itself and in the network."""
    seconds = {name: vars(median(found)) for name, found in times.items()}
    ratios = {}
    for layer in ("layer", "in eager"):
        if layer in times:
            together = [each + seconds[layer]["value"] for each in times["optimize"]]
            ratios[layer] = vars(ratio(times["split"], together))
    return {"seconds": seconds, "ratio": ratios}


def _in_eager(net: nn.Module, x: torch.Tensor, options: argparse.Namespace) -> list[float]:
    """Seconds of the unknown layer in calls of the network in PyTorch, which follow each other."""
    layer = next(module for module in net.modules() if isinstance(module, Unknown))
    at: list[float] = []
    before = layer.register_forward_pre_hook(lambda *_: at.append(time.perf_counter()))
    after = layer.register_forward_hook(lambda *_: at.append(time.perf_counter()))
    net(x)
    at.clear()
    end = time.monotonic() + options.rounds * options.seconds
    while time.monotonic() < end or len(at) < 2 * options.rounds:
        net(x)
    before.remove()
    after.remove()
    return [done - begun for begun, done in zip(at[::2], at[1::2], strict=True)]


def _given_to_unknown(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A tensor like that which the unknown layer is given."""
    shapes = []
    layer = next(module for module in net.modules() if isinstance(module, Unknown))
    hook = layer.register_forward_hook(lambda module, args, result: shapes.append(result.shape))
    with torch.no_grad():
        net(x[:1])
    hook.remove()
    return torch.randn(len(x), *shapes[0][1:], device=x.device, dtype=x.dtype)


def timed(runs: Mapping[str, Run], options: argparse.Namespace) -> dict[str, Times]:
    """Seconds of a call, of each in each round, by the way of measuring."""
    if options.device == "cpu":
        return {"call": singly(runs, options)}
    counts = {engine: _calls(run, options.seconds) for engine, run in runs.items()}
    bursts = {engine: partial(_burst, run, counts[engine]) for engine, run in runs.items()}
    times = interleaved(bursts, options.rounds)
    return {"call": times, "latency": singly(runs, options, torch.cuda.synchronize)}


def singly(runs: Mapping[str, Run], options: argparse.Namespace, wait: Run = lambda: None) -> Times:
    """Seconds of single calls that take turns in random order, for as long as all rounds' bursts
    would last; of one alone, of calls one after another.  ``wait``: until a result is there."""
    times: Times = {engine: [] for engine in runs}
    order = list(runs)
    draw = random.Random(0)
    end = time.monotonic() + options.rounds * options.seconds * len(order)
    while time.monotonic() < end or len(times[order[0]]) < options.rounds:
        draw.shuffle(order)
        for engine in order:
            runs[engine]()
            wait()
            start = time.perf_counter()
            runs[engine]()
            wait()
            times[engine].append(time.perf_counter() - start)
    return times


def _burst(run: Run, count: int) -> float:
    """The time of a call; taken again, three times at most, while others have the cores."""

    def rest_and_run() -> None:
        time.sleep(REST_SECONDS)
        run()

    return undisturbed(lambda: _under_way(run, count), os.getpid(), 3, before=rest_and_run)[1]


def _calls(run: Run, seconds: float) -> int:
    return max(3, round(seconds / max(_until_done(run, 3), 1e-6)))


def _until_done(run: Run, count: int) -> float:
    """The median time of a call until its result is there."""
    cuda = torch.cuda.is_available()
    found = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        if cuda:
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return median(found).value


def _under_way(run: Run, count: int) -> float:
    """The time of one of ``count`` calls on the GPU that do not wait for each other."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    before.record()
    for _ in range(count):
        run()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / 1e3 / count


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS, metavar="NET")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--whole", action="store_true", help="no network with an unknown layer")
    parser.add_argument("--rounds", type=int, default=9, help="alternations (9)")
    parser.add_argument("--seconds", type=float, default=0.3, help="a burst's length (0.3)")
    parser.add_argument("--limit", type=float, default=math.inf, help="begin none after so long")
    parser.add_argument("--json", type=Path, required=True, help="where figures are written")
    parser.add_argument("--table", action="store_true", help="only print what the file has")
    options = parser.parse_args()
    results = Results(options.json, measures=not options.table)
    part = f"{options.device}, {options.precision}, batch {options.batch}"
    begin = time.monotonic()
    for name in options.networks if not options.table else ():
        if time.monotonic() - begin < options.limit and name not in results.part(part):
            results.add(part, name, measure(name, options))
            print(line(row(name, results.part(part)[name], "call")), flush=True)
    print(table(results, part))


if __name__ == "__main__":
    main()
