"""One cell of ``cuda_zoo.py`` after another, in a process that its queue has started.

Cells come as lines of JSON from standard input and go back as such through a pipe.  What takes
processor time is done beside other workers; whatever the GPU is timed on, by minidnn's tuning, by
cudnn.benchmark, by Inductor's kernels at their first launch or here, is done in this worker's
turn at the GPU (``minidnn.cudnn.turn``), on cores that nothing else of the benchmark uses.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cupy
import torch
import torchvision

import minidnn as md
from benchmarks.cuda_zoo import COMPILED, NETWORKS, OWN, UNUSABLE
from minidnn import models
from minidnn.cudnn.turn import turn
from minidnn.report.explain import contracts

Run = Callable[[], object]
ROUND_MS = 8.0
LONG_MS = 25.0
"""A call of this length needs no second one beside it to be timed."""


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
    parser.add_argument("--regions", action="store_true")
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
    dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(precision, torch.float32)
    tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.manual_seed(0)
    runs: dict[str, Run] = {}
    seconds: dict[str, float] = {}
    errors: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    regions: dict[str, Any] = {}
    times: dict[str, list[float]] = {}
    outputs: dict[str, Any] = {}
    size = 299 if name == "inception_v3" else 224
    try:
        network = peer(name, size)
        x = torch.randn(batch, 3, size, size, device="cuda", dtype=dtype)
        for engine in options.engines:
            begin = time.perf_counter()
            try:
                last = engine in COMPILED and is_faster(runs, "eager-last", "eager", options)
                runs[engine], outputs[engine] = ENGINE[engine](
                    name, network, x, precision, last, options
                )
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
            if options.regions:
                regions = {e: run.regions() for e, run in runs.items() if isinstance(run, Own)}
    except Exception as error:
        failed["timing"] = said(error)
        print(name, precision, batch, "timing failed:", failed["timing"], flush=True)
    runs.clear()
    outputs.clear()
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()
    return {
        "device": torch.cuda.get_device_name(),
        "versions": versions(),
        "ms": {engine: median(ts) for engine, ts in times.items()},
        "interval": {engine: interval(ts) for engine, ts in times.items()},
        "compile_seconds": seconds,
        "errors": errors,
        "failed": failed,
    } | ({"regions": regions} if regions else {})


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def exact(network: Any, x: Any) -> Any:
    """What PyTorch computes in float32 without TF32, a few images at a time."""
    backends = torch.backends
    flags = (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32, backends.cudnn.benchmark)
    backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = False
    backends.cudnn.benchmark = False
    try:
        net = copy.deepcopy(network).to("cuda", torch.float32)
        with torch.inference_mode():
            return torch.cat([net(part.float()) for part in x.split(16)])
    finally:
        backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32, backends.cudnn.benchmark = flags


def deviations(outputs: dict[str, Any], reference: Any) -> dict[str, list[float]]:
    """How far outputs lie from the reference: at most by its largest value, and the root of the
    mean of squares by that of the reference."""
    found: dict[str, list[float]] = {}
    for engine, output in outputs.items():
        off = output.float() - reference
        found[engine] = [
            float(off.abs().max() / reference.abs().max()),
            float(off.square().mean().sqrt() / reference.square().mean().sqrt()),
        ]
    return found


def versions() -> dict[str, str]:
    """Of what a time depends on."""
    from minidnn.cudnn import machine

    return {
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "minidnn's cuDNN": machine.library_name(),
        "torch's cuDNN": str(torch.backends.cudnn.version()),
        "device": machine.device_name(0),
    }


def is_faster(runs: dict[str, Run], one: str, other: str, options: argparse.Namespace) -> bool:
    """Whether an engine is faster than another; if the other is not there, it is."""
    if one not in runs or other not in runs:
        return one in runs
    with alone(options):
        times = in_turn({name: runs[name] for name in (one, other)}, 3)
    return median(times[one]) < median(times[other])


def peer(name: str, size: int) -> Any:
    """torchvision's network, with random weights, and statistics of its normalizations made on
    noise: without them values grow from layer to layer, beyond what float16 holds."""
    extra = {"init_weights": False} if name in ("inception_v3", "googlenet") else {}
    extra |= {"aux_logits": False} if extra else {}
    # Random numbers of the large ones take the processor seconds; minidnn reads modules beyond the
    # zoo itself, from where they are.
    with torch.device("cuda" if name in NETWORKS else "cpu"):
        network = getattr(torchvision.models, name)(weights=None, **extra).eval()
    normalizations = [m for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    if normalizations:
        calibrate(network, normalizations, size)
    return network.to("cuda" if name in NETWORKS else "cpu")


def calibrate(network: Any, normalizations: list[Any], size: int) -> None:
    """Mean and variance become those of a few images of noise; leaves the network on the GPU."""
    momentum = [one.momentum for one in normalizations]
    for one in normalizations:
        one.train()
        one.momentum = 1.0
    torch.backends.cudnn.benchmark = False
    with torch.no_grad():
        network.to("cuda")(torch.randn(8, 3, size, size, device="cuda"))
    torch.backends.cudnn.benchmark = True
    for one, usual in zip(normalizations, momentum, strict=True):
        one.eval()
        one.momentum = usual


class Own:
    """minidnn, bound to its input."""

    def __init__(self, exe: Any, x: Any) -> None:
        self._exe, self._x = exe, x
        self._run = exe.bind(x)
        self._run()
        self.outputs = self._run.outputs

    def __call__(self) -> None:
        self._run()

    def regions(self) -> list[dict[str, Any]]:
        """What each region takes, and what it takes at least, by its bytes and its operations."""
        graph, device = self._exe.graph, self._exe.plan.target.device
        nodes = {node.name: node for node in graph.nodes}
        found = []
        profile = self._exe.profile(self._x, runs=5)
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


def ours(
    name: str, network: Any, x: Any, precision: str, options: argparse.Namespace, strategy: str
) -> tuple[Run, Any]:
    net = network
    if name in NETWORKS:
        net = models.get_model(name)
        state = network.state_dict()
        net.load_state_dict({key: value.cpu().numpy() for key, value in state.items()})
    exe = md.compile(
        net,
        tuple(x.shape),
        device="cuda",
        precision=precision,
        tune=options.tune,
        strategy=strategy,
    )
    run = Own(exe, x)
    torch.cuda.synchronize()
    cupy.get_default_memory_pool().free_all_blocks()  # what was tuned on
    return run, run.outputs[0]


def by_strategy(strategy: str) -> Callable[..., tuple[Run, Any]]:
    def engine(
        name: str, network: Any, x: Any, precision: str, last: bool, options: argparse.Namespace
    ) -> tuple[Run, Any]:
        return ours(name, network, x, precision, options, strategy)

    return engine


def eager(
    name: str, network: Any, x: Any, precision: str, last: bool, options: argparse.Namespace
) -> tuple[Run, Any]:
    return captured(moved(network, x, False), x, options)


def eager_last(
    name: str, network: Any, x: Any, precision: str, last: bool, options: argparse.Namespace
) -> tuple[Run, Any]:
    return captured(moved(network, x, True), x.to(memory_format=torch.channels_last), options)


def called(
    name: str, network: Any, x: Any, precision: str, last: bool, options: argparse.Namespace
) -> tuple[Run, Any]:
    net = moved(network, x, False)

    def run() -> Any:
        with torch.inference_mode():
            return net(x)

    with alone(options):
        for _ in range(3):
            y = run()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the workspaces that cudnn.benchmark has tried
    return run, y


def moved(network: Any, x: Any, last: bool) -> Any:
    """A copy of the network where the image is, of its type, its weights in either layout."""
    layout = torch.channels_last if last else torch.contiguous_format
    return copy.deepcopy(network).to("cuda", x.dtype).to(memory_format=layout)


def captured(network: Any, x: Any, options: argparse.Namespace) -> tuple[Run, Any]:
    """cudnn.benchmark measures, and what it has chosen becomes a CUDA graph."""
    with alone(options), torch.inference_mode():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                network(x)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = network(x)
        graph.replay()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the workspaces that cudnn.benchmark has tried

    def run() -> Any:
        graph.replay()
        return network, x  # which the graph reads, and which must stay

    return run, y


def compiled(
    name: str, network: Any, x: Any, precision: str, last: bool, options: argparse.Namespace
) -> tuple[Run, Any]:
    return by_inductor("reduce-overhead", network, x, last, options)


def autotuned(
    name: str, network: Any, x: Any, precision: str, last: bool, options: argparse.Namespace
) -> tuple[Run, Any]:
    with turn(0):  # it measures while it compiles, on all of this worker's cores
        return by_inductor("max-autotune", network, x, last, options)


def by_inductor(
    mode: str, network: Any, x: Any, last: bool, options: argparse.Namespace
) -> tuple[Run, Any]:
    import torch._inductor.config

    torch._inductor.config.freezing = True
    if last:
        x = x.to(memory_format=torch.channels_last)
    with first_runs(options) as count:
        run, y = warmed(mode, network, x, last)
    if not count[0]:  # this version of PyTorch runs its graphs elsewhere
        with alone(options):
            run, y = warmed(mode, network, x, last)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return run, y


def warmed(mode: str, network: Any, x: Any, last: bool) -> tuple[Run, Any]:
    torch._dynamo.reset()
    fast = torch.compile(moved(network, x, last), mode=mode)

    def run() -> Any:
        with torch.inference_mode(), torch.no_grad():
            return fast(x)

    for _ in range(4):
        y = run()
    return run, y.clone()


@contextmanager
def first_runs(options: argparse.Namespace) -> Iterator[list[int]]:
    """Meanwhile compiled graphs wait for their turn whenever they run: then cudnn.benchmark and
    Inductor's kernels measure.  Compiling, which comes before the first run, needs no turn.
    Gives the count of runs."""
    from torch._inductor.output_code import CompiledFxGraph

    inner, count = CompiledFxGraph.__call__, [0]

    def call(self: Any, inputs: Any) -> Any:
        count[0] += 1
        with alone(options):
            return inner(self, inputs)

    CompiledFxGraph.__call__ = call
    try:
        yield count
    finally:
        CompiledFxGraph.__call__ = inner


ENGINE: dict[str, Callable[..., tuple[Run, Any]]] = {
    OWN: by_strategy("model"),
    f"{OWN}-contractions": by_strategy("contractions"),
    f"{OWN}-layers": by_strategy("layers"),
    "eager": eager,
    "eager-last": eager_last,
    "eager-calls": called,
    "compile": compiled,
    "max-autotune": autotuned,
}


def in_turn(runs: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of one call, for each round."""
    counts = {}
    for engine, run in runs.items():
        run()
        once = timed(run, 2)
        least = 1 if once > LONG_MS else 2
        counts[engine] = max(least, min(200, math.ceil(ROUND_MS / max(once, 1e-3))))
    times: dict[str, list[float]] = {engine: [] for engine in runs}
    for _ in range(rounds):
        for engine, run in runs.items():
            times[engine].append(timed(run, counts[engine]))
    return times


def timed(run: Run, count: int) -> float:
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(200_000)  # the GPU does not wait for the first launch
    before.record()
    for _ in range(count):
        run()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / count


def median(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]


def interval(times: list[float]) -> tuple[float, float]:
    """Order statistics between which the median lies with at least 95 % probability."""
    ordered, count = sorted(times), len(times)
    below = 0
    tail = 0.0
    while below < count // 2:
        tail += math.comb(count, below) / 2**count
        if tail > 0.025:
            break
        below += 1
    low = max(0, below - 1)
    return ordered[low], ordered[count - 1 - low]


if __name__ == "__main__":
    main()
