"""Depth-first sequences on one GPU: single steps beside a copy, chains beside torch.compile.

    python -m benchmarks.cuda_sequences single results.json
    python -m benchmarks.cuda_sequences chains results.json [--seconds 100] [--only average]
    python -m benchmarks.cuda_sequences strategies results.json
    python -m benchmarks.cuda_sequences report results.json

``single`` times kernels of one step in both layouts, the one that the cost model chooses and those
that ``tune="exhaustive"`` measures beside it, in turn with the copy of as many bytes on the device:
the share is the copy's time by the kernel's.  ``chains`` times the paper's chain of blocks
<pooling, normalization, ReLU> and its relatives, float32, NCHW in and out, bound to their arrays,
in turn with torch.compile(mode="reduce-overhead") with freezing; ``strategies`` minidnn alone under
each strategy.  What is in the results is not measured again; no chain begins after ``--seconds``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.chain_cases import with_minidnn, with_torch
from benchmarks.figures import markdown
from benchmarks.line_plot import Panel, line_plot
from minidnn.measure import median, write_figures

STRATEGIES = ("layers", "one", "five", "unrestricted", "model")
BLOCKS = (1, 2, 4, 6, 8, 10, 15, 20, 25, 30, 35, 40)
PAPER = (128, 64, 56, 56)
ODD = (64, 64, 97, 131)
CHAINS = (
    *(("paper", n, PAPER) for n in (1, 5, 20, 40)),
    *(("paper", n, (16, 64, 224, 224)) for n in (5, 20, 40)),
    *(("paper", n, (64, 64, 97, 131)) for n in (5, 20, 40)),
    *((variant, n, PAPER) for variant in ("stride 2", "average", "residual") for n in (5, 20, 40)),
)
PRECISIONS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Step:
    """A lone step: the layers of it (a function, since importing minidnn is the child's), on
    what shape."""

    name: str
    layers: Callable[[Any, int], list[Any]]
    shape: tuple[int, int, int, int]


def _normalized(L: Any, c: int) -> list[Any]:
    return [L.BatchNorm2d(c), L.ReLU()]


SINGLE = (
    Step("max pooling 3x3, stride 2", lambda L, c: [L.MaxPool2d(3, 2, 1)], (128, 64, 112, 112)),
    Step("max pooling 2x2", lambda L, c: [L.MaxPool2d(2)], (128, 64, 112, 112)),
    Step("average pooling 2x2", lambda L, c: [L.AvgPool2d(2)], (128, 64, 112, 112)),
    Step("normalization and ReLU", _normalized, (128, 256, 28, 28)),
    Step(
        "normalization, ReLU, average pooling 2x2",
        lambda L, c: [*_normalized(L, c), L.AvgPool2d(2)],
        (128, 256, 56, 56),
    ),
    Step("max pooling 3x3, stride 1", lambda L, c: [L.MaxPool2d(3, 1, 1)], PAPER),
    Step("average pooling 3x3, stride 1", lambda L, c: [L.AvgPool2d(3, 1, 1)], PAPER),
    Step(
        "max pooling 3x3, stride 1, normalization, ReLU",
        lambda L, c: [L.MaxPool2d(3, 1, 1), *_normalized(L, c)],
        PAPER,
    ),
    *(
        Step(f"{kind} pooling 3x3, stride 1, {shape[2]}x{shape[3]}", layers, shape)
        for shape in ((128, 256, 28, 28), (128, 512, 14, 14), (128, 288, 35, 35), ODD)
        for kind, layers in (
            ("max", lambda L, c: [L.MaxPool2d(3, 1, 1)]),
            ("average", lambda L, c: [L.AvgPool2d(3, 1, 1)]),
        )
    ),
    Step("normalization and ReLU, 97x131", _normalized, ODD),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("single", "chains", "strategies", "report"))
    parser.add_argument("results", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--only", default="", help="cases in whose name this stands")
    options = parser.parse_args()
    data = json.loads(options.results.read_text()) if options.results.exists() else {}
    if options.what == "report":
        print(", ".join(data["machine"].values()), report(data), sep="\n")
        return
    data["machine"] = machine()
    part = data.setdefault(options.what, {})
    begin = time.perf_counter()
    for key, measure in CASES[options.what]():
        if key in part or options.only not in key:
            continue
        if time.perf_counter() - begin > options.seconds:
            print(f"{options.seconds} seconds are over; start again to go on")
            break
        part[key] = measure()
        write_figures(options.results, data)
        print(key, part[key], flush=True)


def machine() -> dict[str, str]:
    import cupy

    from minidnn.cudnn import machine

    return {"device": machine.device_name(0), "cupy": cupy.__version__}


# Single steps


def single_cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    for step in SINGLE:
        for precision in PRECISIONS:
            for layout in ("NCHW", "NHWC"):
                key = f"{step.name}, {precision}, {layout}"
                yield key, lambda s=step, p=precision, o=layout: single(s, p, o)  # type: ignore[misc]


def single(step: Step, precision: str, order: str) -> dict[str, Any]:
    import cupy

    from minidnn import layers as L
    from minidnn.backends.cuda.functions import load_launches
    from minidnn.backends.cuda.machine import machine_of
    from minidnn.backends.cuda.sequence.reschedule import print_region, print_variants
    from minidnn.backends.cuda.target import CudaTarget
    from minidnn.backends.cuda.tensor import tensor_of
    from minidnn.cudnn.graph import arrays
    from minidnn.cudnn.graph.spec import TensorSpec
    from minidnn.cudnn.graph.timing import Contestant, race
    from minidnn.fusion.region import FusedSequence
    from minidnn.graph.layout import CHANNELS_LAST, PLANAR
    from minidnn.layers.build import to_graph
    from minidnn.passes.infrastructure import Context
    from minidnn.passes.pipeline import optimize

    here = machine_of(0)
    target = CudaTarget(here.device(precision), precision)
    net = L.Sequential(*step.layers(L, step.shape[1]))
    graph = optimize(to_graph(net, step.shape), Context(target))
    regions = [node.op for node in graph.nodes if isinstance(node.op, FusedSequence)]
    if len(regions) != 1:
        raise SystemExit(f"{step.name} has become {len(regions)} sequences")
    layout = PLANAR if order == "NCHW" else CHANNELS_LAST

    def lies(value: Any) -> Any:
        return tensor_of(value.type, layout)

    suited = print_region(regions[0], lies, here)
    others = print_variants(regions[0], lies, here)
    kernels = load_launches([suited.kernel.launch, *others], here.arch)
    kept, pointers, moved = [], [], 0
    for slot in (*suited.binding.inputs, *suited.binding.outputs):
        spec = TensorSpec((slot.value.type.size,), (1,), slot.value.dtype)
        kept.append(arrays.random_like(spec, seed=0))
        pointers.append(int(kept[-1].ptr))
        moved += slot.value.type.bytes
    if suited.binding.vectors:
        kept.append(cupy.asarray(suited.kernel.vectors()))
        pointers.append(int(kept[-1].data.ptr))
    source, goal = cupy.cuda.alloc(moved // 2), cupy.cuda.alloc(moved // 2)

    def copy() -> None:
        goal.copy_from_device_async(source, moved // 2, cupy.cuda.get_current_stream())

    contestants = [Contestant(copy), *(Contestant(one.bind(pointers)) for one in kernels)]
    times = race(contestants, margin=100.0, rounds=9, finalists=len(contestants))
    other, *own = (time or float("inf") for time in times)
    found = [_described(*one, other) for one in zip(kernels, own, strict=True)]
    fastest = min(found, key=lambda one: float(one["ms"]))
    return {**found[0], "copy ms": other, "MB": moved / 1e6, "fastest": fastest["share"]}


def _described(kernel: Any, ms: float, copy_ms: float) -> dict[str, Any]:
    launch = kernel.launch
    return {
        "ms": ms,
        "share": copy_ms / ms,
        "blocks": launch.grid[0],
        "threads": launch.block[0],
        "shared bytes": launch.shared_bytes,
        "registers": kernel.resources.registers,
        "occupancy": kernel.occupancy,
    }


# Chains


def chain_cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    for variant, blocks, shape in CHAINS:
        key = f"{variant}, {blocks} blocks, {'x'.join(map(str, shape))}"
        yield key, lambda v=variant, n=blocks, s=shape: chain(v, n, s)  # type: ignore[misc]


def chain(variant: str, blocks: int, shape: tuple[int, ...]) -> dict[str, Any]:
    import torch
    import torch._inductor.config

    from minidnn.bench.gpu_timing import interleaved

    torch._inductor.config.freezing = True
    torch._dynamo.reset()
    x = torch.randn(shape, device="cuda")
    fast = torch.compile(with_torch(variant, blocks, shape[1]).cuda(), mode="reduce-overhead")

    def peer() -> Any:
        with torch.inference_mode():
            return fast(x)

    begin = time.perf_counter()
    for _ in range(4):
        expected = peer()
    torch.cuda.synchronize()
    seconds = {"torch.compile": time.perf_counter() - begin}
    expected = expected.clone()
    begin = time.perf_counter()
    exe, own = _bound(variant, blocks, x, "model")
    torch.cuda.synchronize()
    seconds["minidnn"] = time.perf_counter() - begin
    deviation = float((own.outputs[0] - expected).abs().max() / expected.abs().max())
    times = interleaved({"minidnn": own, "call": lambda: exe(x), "torch.compile": peer}, 11)
    found = {name: median(taken) for name, taken in times.items()}
    return {
        "ms": {name: one.value for name, one in found.items()},
        "interval": {name: (one.low, one.high) for name, one in found.items()},
        "kernels": len(exe.program.prepared.tasks),
        "deviation": deviation,
        "compile seconds": seconds,
    }


def _bound(variant: str, blocks: int, x: Any, strategy: str) -> tuple[Any, Any]:
    import minidnn as md

    net = with_minidnn(variant, blocks, x.shape[1])
    exe = md.compile(net, tuple(x.shape), device="cuda", strategy=strategy)
    run = exe.bind(x)
    run()
    return exe, run


def strategy_cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    for blocks in BLOCKS:
        yield f"{blocks} blocks", lambda n=blocks: strategies(n)  # type: ignore[misc]


def strategies(blocks: int) -> dict[str, Any]:
    import torch

    from minidnn.bench.gpu_timing import interleaved

    x = torch.randn(PAPER, device="cuda")
    exes = {s: _bound("paper", blocks, x, s) for s in STRATEGIES}
    times = interleaved({s: run for s, (_, run) in exes.items()}, 7)
    return {
        "ms": {s: median(found).value for s, found in times.items()},
        "kernels": {s: len(exe.program.prepared.tasks) for s, (exe, _) in exes.items()},
    }


CASES = {"single": single_cases, "chains": chain_cases, "strategies": strategy_cases}


# Reports


def report(data: dict[str, Any]) -> str:
    """Tables in Markdown."""
    tables = []
    if "single" in data:
        columns = [f"{p}, {o}" for p in PRECISIONS for o in ("NCHW", "NHWC")]
        rows = []
        for step in SINGLE:
            found = [data["single"].get(f"{step.name}, {column}") for column in columns]
            rows.append([step.name, *("-" if one is None else _shares(one) for one in found)])
        tables.append(markdown(["share of the copy's rate", *columns], rows))
    if "chains" in data:
        titles = ["chain", "minidnn ms", "torch.compile ms", "times", "kernels"]
        titles += ["in another run ms", "a call there ms"]
        rows = []
        for key, one in data["chains"].items():
            own, peer = one["ms"]["minidnn"], one["ms"]["torch.compile"]
            cells = [key, f"{own:.3f}", f"{peer:.3f}", f"{peer / own:.1f}", f"{one['kernels']}"]
            again = one.get("in another run", {"ms": {}})["ms"]
            cells += [f"{again[name]:.3f}" if name in again else "" for name in ("minidnn", "call")]
            rows.append(cells)
        tables.append(markdown(titles, rows))
    if "strategies" in data:
        rows = [
            [key.split()[0], *(f"{one['ms'][s]:.3f} ({one['kernels'][s]})" for s in STRATEGIES)]
            for key, one in data["strategies"].items()
        ]
        tables.append(markdown(["blocks", *STRATEGIES], rows))
    return "\n\n".join(tables)


def _shares(one: dict[str, Any]) -> str:
    """That of the cost model's choice, and that of the fastest, if it is another."""
    chosen, fastest = (f"{share:.2f}" for share in (one["share"], one["fastest"]))
    return chosen if chosen == fastest else f"{chosen} ({fastest})"


def plot(found: dict[str, Any]) -> str:
    lines: dict[str, list[tuple[float, float]]] = {s: [] for s in STRATEGIES}
    for key, one in found.items():
        for strategy, ms in one["ms"].items():
            lines[strategy].append((float(key.split()[0]), ms))
    title = f"{'x'.join(map(str, PAPER))}, float32, NVIDIA H200"
    return line_plot([Panel(title, lines)], "blocks", "ms")


if __name__ == "__main__":
    main()
