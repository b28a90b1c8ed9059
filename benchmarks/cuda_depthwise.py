"""Depthwise convolutions of networks on a GPU: our kernel's strips beside cuDNN, layer by layer.

    python -m benchmarks.cuda_depthwise results.jsonl --batch 32 --strips 10
    python -m benchmarks.cuda_depthwise results.jsonl --table

Each layer has its bias and a ReLU6.  Times are those of :func:`minidnn.cudnn.graph.timing.race`:
replays of CUDA graphs in turn, the least of five rounds, on memory that the last cache may hold
where it is small.  ``floor`` is the time for reading the image and writing the result once at 4.0
TB/s, what a copy reaches on an H200.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

COPY = 4.0e12
"""Bytes a second, in and out together."""


class Layer(NamedTuple):
    channels: int
    kernel: int
    stride: int
    size: int


LAYERS = (
    *(Layer(32, 3, 1, 112), Layer(96, 3, 2, 112), Layer(144, 3, 1, 56), Layer(144, 3, 2, 56)),
    *(Layer(192, 3, 1, 28), Layer(192, 3, 2, 28), Layer(384, 3, 1, 14), Layer(576, 3, 2, 14)),
    *(Layer(960, 3, 1, 7), Layer(116, 3, 1, 14), Layer(58, 3, 2, 56), Layer(144, 5, 2, 56)),
    *(Layer(240, 5, 1, 28), Layer(480, 5, 1, 14), Layer(672, 5, 2, 14), Layer(1152, 5, 1, 7)),
    *(Layer(96, 7, 1, 56), Layer(192, 7, 1, 28), Layer(384, 7, 1, 14), Layer(768, 7, 1, 7)),
)
"""Of MobileNets, MnasNet, ShuffleNet, EfficientNet and ConvNeXt."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("--precision", default="float16")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--strips", type=int, default=10, help="at most for one layer")
    parser.add_argument("--no-cudnn", action="store_true")
    parser.add_argument("--table", action="store_true", help="of the results that there are")
    options = parser.parse_args()
    if options.table:
        print(table([json.loads(line) for line in options.results.read_text().splitlines()]))
        return
    for layer in LAYERS:
        found = measured(layer, options)
        with options.results.open("a") as file:
            file.write(json.dumps(found) + "\n")
        best = sorted(found["ms"].items(), key=lambda item: item[1])[:4]
        shown = ", ".join(f"{name} {1e3 * ms:.1f}" for name, ms in best)
        print(f"{layer} floor {1e3 * found['floor']:.1f} us, best {shown}", flush=True)


def measured(layer: Layer, options: argparse.Namespace) -> dict[str, Any]:
    """The milliseconds of each way to compute a layer."""
    from minidnn.backends.cuda.contraction import depthwise
    from minidnn.backends.cuda.contraction.memory import scratch_addresses
    from minidnn.backends.cuda.contraction.own import DEPTHWISE, own_convolution
    from minidnn.backends.cuda.functions import load_launches
    from minidnn.backends.cuda.machine import machine_of
    from minidnn.cudnn.graph.timing import Contestant, race

    machine = machine_of(0)
    problem = problem_of(layer, options.batch, options.precision)
    choices = depthwise.strips_for(problem, machine.arch)[: options.strips]
    strips = [depthwise.STRIPS[i] for i in choices]
    load = partial(load_launches, arch=machine.arch)
    built = [] if options.no_cudnn else cudnn(problem)
    room = max((one.workspace for one in built), default=0)
    at, workspace, kept = scratch_addresses(problem, room)
    ours = [own_convolution(problem, DEPTHWISE, choice, load) for choice in choices]
    contestants = [Contestant(one.bind(at, at.x, workspace)) for one in ours]
    contestants += [Contestant(one.bind(at, workspace)) for one in built]
    names = [f"{DEPTHWISE} {one}" for one in strips]
    names += [f"cuDNN {one.recipe.algorithm}, {one.recipe.form}" for one in built]
    times = race(contestants, margin=1.5)
    del kept
    moved = options.batch * layer.channels * problem.x.itemsize
    moved *= layer.size**2 + problem.y.rows * problem.y.columns
    return {
        **layer._asdict(),
        "precision": options.precision,
        "batch": options.batch,
        "device": machine.name,
        "bytes": moved,
        "floor": 1e3 * moved / COPY,
        "ms": {name: ms for name, ms in zip(names, times, strict=True) if ms is not None},
        "registers": {
            str(strip): one.loaded[0].kernel.resources.registers
            for strip, one in zip(strips, ours, strict=True)
        },
    }


def problem_of(layer: Layer, batch: int, precision: str) -> Any:
    """The contraction of a network of this layer, ReLU6 behind it."""
    from minidnn import layers as L
    from minidnn.backends.cuda.contraction.problem import ContractionProblem
    from minidnn.backends.cuda.lower import lower_plan
    from minidnn.backends.cuda.machine import machine_of
    from minidnn.backends.cuda.target import CudaTarget
    from minidnn.layers.build import to_graph
    from minidnn.passes.infrastructure import Context
    from minidnn.passes.pipeline import optimize
    from minidnn.runtime.plan import make_plan

    channels, kernel, stride, size = layer
    convolution = L.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=channels)
    network = L.Sequential(convolution, L.ReLU6())
    machine = machine_of(0)
    context = Context(CudaTarget(machine.device(precision), precision))
    graph = optimize(to_graph(network, (batch, channels, size, size)), context)
    tasks = lower_plan(make_plan(graph, context), machine.arch, precision == "tf32")
    (problem,) = (t.work for t in tasks if isinstance(t.work, ContractionProblem))
    return problem


def cudnn(problem: Any) -> list[Any]:
    """What cuDNN's heuristics propose, with all stages that it has names for, or with none."""
    from minidnn.backends.cuda.contraction.graphs import constraints_of, fusable_stages, graph_of
    from minidnn.backends.cuda.contraction.recipe import (
        CONVOLUTION,
        Form,
        Recipe,
        build,
        room,
        target,
    )
    from minidnn.backends.cuda.functions import load_launches
    from minidnn.backends.cuda.machine import machine_of
    from minidnn.errors import UnsupportedError

    arch, found = machine_of(0).arch, []
    for stages in dict.fromkeys((fusable_stages(problem), 0)):
        form = Form(CONVOLUTION, stages)
        graph = graph_of(problem, CONVOLUTION, stages, target(problem, form))
        limits = constraints_of(problem, 1 << 30)
        try:
            plans = list(graph.plans(most=4, most_compiled=1, constraints=limits))
        except UnsupportedError as error:
            print(error)
            continue
        for plan in plans:
            config = plan.config
            size = room(problem, form, plan.workspace)
            recipe = Recipe(form, config.engine, config.knobs, size)
            found.append(build(problem, recipe, plan, lambda one: load_launches(one, arch)))
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: of each layer the best strip, the best of cuDNN, and the floor."""
    lines = ["| layer | strip | us | TB/s | cuDNN us | floor us |", "|---|---|---|---|---|---|"]
    for row in rows:
        own = {k: v for k, v in row["ms"].items() if not k.startswith("cuDNN")}
        theirs = [v for k, v in row["ms"].items() if k.startswith("cuDNN")]
        best = min(own, key=lambda name: own[name])
        size, kernel = row["size"], row["kernel"]
        what = f"{row['batch']}x{row['channels']}x{size}x{size}, {kernel}x{kernel}"
        what += f", stride {row['stride']}, {row['precision']}"
        rate = row["bytes"] / own[best] / 1e9
        other = f"{1e3 * min(theirs):.1f}" if theirs else "-"
        strip = best.partition(" ")[2]
        figures = f"{1e3 * own[best]:.1f} | {rate:.2f} | {other} | {1e3 * row['floor']:.1f}"
        lines.append(f"| {what} | {strip} | {figures} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
