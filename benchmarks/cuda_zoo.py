"""The zoo on one GPU: minidnn beside PyTorch, every cell's engines in turn in one process.

    python benchmarks/cuda_zoo.py results.jsonl --seconds 500
    python benchmarks/cuda_zoo.py results.jsonl --networks resnet50 --batches 1 128
    python benchmarks/cuda_zoo_report.py results.jsonl

A cell is a network, a precision and a batch size.  Engines are

- ``minidnn``: compiled with the default tuning, bound to its arrays (a CUDA graph); networks
  beyond the zoo are taken from torchvision's modules;
- ``eager``, ``eager-last``: PyTorch's modules in NCHW and channels_last with cudnn.benchmark,
  captured as a CUDA graph;
- ``compile``: torch.compile(mode="reduce-overhead") with freezing, on weights and images in the
  layout in which eager was faster; ``max-autotune`` likewise, where it is asked for.

All of them read one input on the GPU and are timed in turn, round after round, by events around
several calls; the median over the rounds counts, and its 95 % interval from order statistics.

Cells come in the order of ``STAGES``, all networks of a stage before the next, so that what there
is so far is of use.  Finished cells of this commit are skipped.  No cell begins after ``--seconds``
less what the longest cell has taken; starting the command again goes on.  An engine that fails
stands in its cell with its error; should it leave the GPU unusable, the process ends with status 3.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision

import minidnn as md
from minidnn import models
from minidnn.bench.networks import BEYOND

Run = Callable[[], object]
PRECISIONS = ("float16", "bfloat16", "tf32", "float32")
ENGINES = ("minidnn", "eager", "eager-last", "compile", "max-autotune")
USUAL = ENGINES[:4]
NETWORKS = [name for name in models.list_models() if name != "digits"]
STAGES = (
    *(("float16", 128), ("float16", 1), ("float32", 128), ("tf32", 128), ("float16", 32)),
    *(("float32", 1), ("tf32", 1), ("float32", 32), ("tf32", 32)),
)
ROUND_MS = 12.0
UNUSABLE = 3


def main() -> None:
    options = arguments()
    done = finished(options.results)
    begin, longest = time.perf_counter(), 0.0
    for name, precision, batch in cells(options):
        key = (options.commit, name, precision, batch)
        if (*key, tuple(options.engines)) in done:
            continue
        before = time.perf_counter()
        if before - begin + longest > options.seconds:
            print(f"{options.seconds} seconds are over; start again to go on", flush=True)
            return
        cell = dict(zip(("commit", "network", "precision", "batch"), key, strict=True))
        cell["engines"] = list(options.engines)
        cell |= measured(name, precision, batch, options)
        with options.results.open("a") as file:
            file.write(json.dumps(cell) + "\n")
        print(line(cell), flush=True)
        longest = max(longest, time.perf_counter() - before)
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            print(f"the GPU cannot be used any more in this process: {error}", flush=True)
            sys.exit(UNUSABLE)
    print("all cells are measured", flush=True)


def cells(options: argparse.Namespace) -> list[tuple[str, str, int]]:
    """What is to be measured: STAGES in their order, then what else was asked for."""
    asked = [(p, b) for p in options.precisions for b in options.batches]
    stages = [one for one in STAGES if one in asked] + [one for one in asked if one not in STAGES]
    return [(name, *stage) for stage in stages for name in options.networks]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=[*NETWORKS, *BEYOND])
    usual = ["float16", "float32", "tf32"]
    parser.add_argument("--precisions", nargs="+", default=usual, choices=PRECISIONS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32, 128])
    parser.add_argument("--engines", nargs="+", default=list(USUAL), choices=ENGINES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--commit", default=commit(), help="where there is no git repository")
    parser.add_argument("--tune", default="quick")
    parser.add_argument("--strategy", default="model")
    parser.add_argument("--profile", action="store_true", help="print the regions of minidnn")
    return parser.parse_args()


def commit() -> str:
    try:
        asked = ["git", "rev-parse", "--short=12", "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def finished(results: Path) -> set[tuple[Any, ...]]:
    if not results.exists():
        return set()
    cells = [json.loads(text) for text in results.read_text().splitlines()]
    names = ("commit", "network", "precision", "batch")
    return {(*(cell[n] for n in names), tuple(cell["engines"])) for cell in cells}


def measured(name: str, precision: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Times of one cell in milliseconds, and what was needed to get there."""
    dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(precision, torch.float32)
    tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.manual_seed(0)
    network = peer(name)
    size = 299 if name == "inception_v3" else 224
    x = torch.randn(batch, 3, size, size, device="cuda", dtype=dtype)
    runs: dict[str, Run] = {}
    seconds: dict[str, float] = {}
    errors: dict[str, float] = {}
    failed: dict[str, str] = {}
    reference = None
    for engine in options.engines:
        begin = time.perf_counter()
        try:
            last = is_faster(runs, "eager-last", "eager")
            runs[engine], output = ENGINE[engine](name, network, x, precision, last, options)
            torch.cuda.synchronize()
            output = output.float()
            if reference is None:
                reference = output
            errors[engine] = float((output - reference).abs().max() / reference.abs().max())
        except Exception as error:
            runs.pop(engine, None)
            failed[engine] = f"{type(error).__name__}: {error}"[:300]
            print(name, precision, batch, engine, "failed:", failed[engine], flush=True)
            continue
        seconds[engine] = round(time.perf_counter() - begin, 2)
    times: dict[str, list[float]] = {}
    try:
        times = in_turn(runs, options.rounds)
    except Exception as error:
        failed["timing"] = f"{type(error).__name__}: {error}"[:300]
        print(name, precision, batch, "timing failed:", failed["timing"], flush=True)
    runs.clear()
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    return {
        "device": torch.cuda.get_device_name(),
        "versions": versions(),
        "ms": {engine: median(ts) for engine, ts in times.items()},
        "interval": {engine: interval(ts) for engine, ts in times.items()},
        "compile_seconds": seconds,
        "errors": errors,
        "failed": failed,
    }


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


def is_faster(runs: dict[str, Run], one: str, other: str) -> bool:
    """Whether an engine is faster than another; if the other is not there, it is."""
    if one not in runs or other not in runs:
        return one in runs
    times = in_turn({name: runs[name] for name in (one, other)}, 3)
    return median(times[one]) < median(times[other])


def peer(name: str) -> Any:
    extra = {"init_weights": False} if name in ("inception_v3", "googlenet") else {}
    extra |= {"aux_logits": False} if extra else {}
    return getattr(torchvision.models, name)(weights=None, **extra).eval()


def ours(
    name: str, network: Any, x: Any, precision: str, last: bool, options: argparse.Namespace
) -> tuple[Run, Any]:
    net = network
    if name in NETWORKS:
        net = models.get_model(name)
        net.load_state_dict({key: value.numpy() for key, value in network.state_dict().items()})
    exe = md.compile(
        net,
        tuple(x.shape),
        device="cuda",
        precision=precision,
        tune=options.tune,
        strategy=options.strategy,
    )
    if options.profile:
        print(exe.explain(measure=True))
    run = exe.bind(x)
    run()
    return run, run.outputs[0]


def eager(
    name: str, network: Any, x: Any, precision: str, last: bool, options: argparse.Namespace
) -> tuple[Run, Any]:
    return captured(moved(network, x, False), x)


def eager_last(
    name: str, network: Any, x: Any, precision: str, last: bool, options: argparse.Namespace
) -> tuple[Run, Any]:
    return captured(moved(network, x, True), x.to(memory_format=torch.channels_last))


def moved(network: Any, x: Any, last: bool) -> Any:
    """A copy of the network where the image is, of its type, its weights in either layout."""
    layout = torch.channels_last if last else torch.contiguous_format
    return copy.deepcopy(network).to("cuda", x.dtype).to(memory_format=layout)


def captured(network: Any, x: Any) -> tuple[Run, Any]:
    with torch.inference_mode():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                network(x)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = network(x)
    graph.replay()

    def run() -> Any:
        graph.replay()
        return network, x  # which the graph reads, and which must stay

    return run, y


def compiled(
    name: str, network: Any, x: Any, precision: str, last: bool, options: argparse.Namespace
) -> tuple[Run, Any]:
    return by_inductor("reduce-overhead", network, x, last)


def autotuned(
    name: str, network: Any, x: Any, precision: str, last: bool, options: argparse.Namespace
) -> tuple[Run, Any]:
    return by_inductor("max-autotune", network, x, last)


def by_inductor(mode: str, network: Any, x: Any, last: bool) -> tuple[Run, Any]:
    import torch._inductor.config

    torch._inductor.config.freezing = True
    torch._dynamo.reset()
    fast = torch.compile(moved(network, x, last), mode=mode)
    if last:
        x = x.to(memory_format=torch.channels_last)

    def run() -> Any:
        with torch.inference_mode(), torch.no_grad():
            return fast(x)

    for _ in range(4):
        y = run()
    return run, y.clone()


ENGINE: dict[str, Callable[..., tuple[Run, Any]]] = {
    "minidnn": ours,
    "eager": eager,
    "eager-last": eager_last,
    "compile": compiled,
    "max-autotune": autotuned,
}


def in_turn(runs: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of one call, for each round."""
    counts = {}
    for engine, run in runs.items():
        run()
        counts[engine] = max(2, min(200, math.ceil(ROUND_MS / max(timed(run, 2), 1e-3))))
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


def line(cell: dict[str, Any]) -> str:
    ms = cell["ms"]
    own = ms.get("minidnn")
    peers = [value for engine, value in ms.items() if engine != "minidnn"]
    ratio = f"{min(peers) / own:5.2f}x" if own and peers else "     -"
    texts = " ".join(f"{engine} {value:8.3f}" for engine, value in ms.items())
    seconds = cell["compile_seconds"]
    worst = max(cell["errors"].values(), default=math.nan)
    return (
        f"{cell['network']:<14} {cell['precision']:<8} {cell['batch']:>4} {ratio} {texts} ms; "
        f"compiled in {seconds} s; differ by {worst:.1e}"
    )


if __name__ == "__main__":
    main()
