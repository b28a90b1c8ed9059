"""Convolutions of networks on a GPU: our kernels beside cuDNN, layer by layer.

    python -m benchmarks.cuda_convolutions results.jsonl --layers resnet50 vgg16 --batch 1
    python -m benchmarks.cuda_convolutions results.jsonl --table

Each layer has its bias and a ReLU.  Of our kernels those race that the tuning would try, of cuDNN's
what its heuristics propose for the convolution with or without what follows, which then a kernel of
ours computes.  Times are those of :func:`minidnn.cudnn.graph.timing.race`: replays of CUDA graphs
in turn, the least of five rounds, on memory that the last cache may hold where it is small.
``floor`` is the larger of the times for reading image and filters and writing the result once at
4.0 TB/s, what a copy reaches on an H200, and for the products at its peak.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.figures import markdown
from minidnn.bench.results import commit
from minidnn.measure import line_of

COPY = 4.0e12
"""Bytes a second, in and out together."""
PEAK = {"float32": 6.0e13, "tf32": 4.9e14, "float16": 9.9e14, "bfloat16": 9.9e14}
"""Operations a second, of dense products."""


class Layer(NamedTuple):
    channels: int
    filters: int
    kernel: int
    stride: int
    size: int
    groups: int = 1

    def __str__(self) -> str:
        parts = [f"{self.channels} to {self.filters} at {self.size}x{self.size}"]
        parts.append(f"{self.kernel}x{self.kernel}")
        parts += [f"stride {self.stride}"] * (self.stride > 1)
        parts += [f"{self.groups} groups"] * (self.groups > 1)
        return ", ".join(parts)


def _depthwise(channels: int, kernel: int, stride: int, size: int) -> Layer:
    return Layer(channels, channels, kernel, stride, size, channels)


LAYERS = {
    "resnet50": (
        *(Layer(64, 64, 3, 1, 56), Layer(64, 256, 1, 1, 56), Layer(256, 64, 1, 1, 56)),
        *(Layer(128, 128, 3, 1, 28), Layer(128, 512, 1, 1, 28), Layer(512, 128, 1, 1, 28)),
        *(Layer(256, 256, 3, 1, 14), Layer(256, 1024, 1, 1, 14), Layer(1024, 256, 1, 1, 14)),
        *(Layer(512, 512, 3, 1, 7), Layer(512, 2048, 1, 1, 7), Layer(2048, 512, 1, 1, 7)),
        *(Layer(128, 128, 3, 2, 56), Layer(256, 256, 3, 2, 28), Layer(512, 512, 3, 2, 14)),
        *(Layer(256, 512, 1, 2, 56), Layer(512, 1024, 1, 2, 28), Layer(1024, 2048, 1, 2, 14)),
    ),
    "vgg16": (
        *(Layer(64, 64, 3, 1, 224), Layer(64, 128, 3, 1, 112), Layer(128, 128, 3, 1, 112)),
        *(Layer(128, 256, 3, 1, 56), Layer(256, 256, 3, 1, 56), Layer(256, 512, 3, 1, 28)),
        *(Layer(512, 512, 3, 1, 28), Layer(512, 512, 3, 1, 14)),
    ),
    "densenet121": (
        *(Layer(128, 32, 3, 1, size) for size in (56, 28, 14, 7)),
        *(Layer(160, 128, 1, 1, 56), Layer(320, 128, 1, 1, 28), Layer(640, 128, 1, 1, 14)),
        *(Layer(1024, 128, 1, 1, 14), Layer(512, 128, 1, 1, 7), Layer(992, 128, 1, 1, 7)),
    ),
    "inception_v3": (
        *(Layer(64, 96, 3, 1, 35), Layer(48, 64, 5, 1, 35), Layer(288, 64, 1, 1, 35)),
        *(Layer(768, 192, 1, 1, 17), Layer(1280, 320, 1, 1, 8), Layer(448, 384, 3, 1, 8)),
    ),
    # Of images: ResNets and DenseNets, VGGs, SqueezeNet 1.1, AlexNet.
    "first": (
        *(Layer(3, 64, 7, 2, 224), Layer(3, 64, 3, 1, 224), Layer(3, 64, 3, 2, 224)),
        Layer(3, 64, 11, 4, 224),
    ),
    # Of MobileNets, MnasNet, ShuffleNet, EfficientNet and ConvNeXt.
    "depthwise": tuple(
        _depthwise(*sizes)
        for sizes in (
            *((32, 3, 1, 112), (96, 3, 2, 112), (144, 3, 1, 56), (144, 3, 2, 56)),
            *((192, 3, 1, 28), (192, 3, 2, 28), (384, 3, 1, 14), (576, 3, 2, 14)),
            *((960, 3, 1, 7), (116, 3, 1, 14), (58, 3, 2, 56), (144, 5, 2, 56)),
            *((240, 5, 1, 28), (480, 5, 1, 14), (672, 5, 2, 14), (1152, 5, 1, 7)),
            *((96, 7, 1, 56), (192, 7, 1, 28), (384, 7, 1, 14), (768, 7, 1, 7)),
        )
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=["resnet50"])
    parser.add_argument("--precision", choices=PEAK, default="float16")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--no-cudnn", action="store_true")
    parser.add_argument("--table", action="store_true", help="of the results that there are")
    options = parser.parse_args()
    if options.table:
        print(table([json.loads(line) for line in options.results.read_text().splitlines()]))
        return
    for layer in dict.fromkeys(one for name in options.layers for one in LAYERS[name]):
        found = measured(layer, options)
        with options.results.open("a") as file:
            file.write(line_of(found) + "\n")
        shown = ", ".join(f"{name} {1e3 * ms:.1f}" for name, ms in found["ms"].items())
        print(f"{layer}: floor {1e3 * found['floor']:.1f} us, best {shown}", flush=True)


def measured(layer: Layer, options: argparse.Namespace) -> dict[str, Any]:
    """The milliseconds of each way to compute a layer."""
    from minidnn.backends.cuda.contraction.memory import scratch_addresses
    from minidnn.backends.cuda.machine import machine_of
    from minidnn.cudnn.graph.timing import Contestant, race

    problem = problem_of(layer, options.batch, options.precision)
    built = ours(problem) + ([] if options.no_cudnn else cudnn(problem))
    workspace_bytes = max((one.workspace for one in built), default=0)
    at, workspace, kept = scratch_addresses(problem, workspace_bytes)
    times = race([Contestant(one.bind(at, workspace)) for one in built], margin=1.5)
    del kept
    named = zip(map(name_of, built), times, strict=True)
    return {
        **layer._asdict(),
        "precision": options.precision,
        "batch": options.batch,
        "device": machine_of(0).name,
        "floor": 1e3 * floor_of(problem, options.precision),
        "ms": fastest({name: ms for name, ms in named if ms is not None}),
        "commit": commit(),
    }


def fastest(ms: Mapping[str, float]) -> dict[str, float]:
    """What is kept of all kernels: the fastest of ours and of cuDNN's."""
    ranked = sorted(ms, key=lambda name: ms[name])
    ours = [name for name in ranked if not name.startswith("cuDNN")][:1]
    theirs = [name for name in ranked if name.startswith("cuDNN")][:1]
    return {name: ms[name] for name in ours + theirs}


def name_of(built: Any) -> str:
    config, name = built.config, built.config.algorithm_name(built.problem)
    return name if config.algorithm.kernel is not None else f"cuDNN {name}, {config.algorithm}"


def floor_of(problem: Any, precision: str) -> float:
    """Seconds."""
    pixels = problem.batch * problem.y.rows * problem.y.columns
    filters, channels, rows, columns = problem.w.shape
    image = problem.batch * problem.x.channels * problem.x.rows * problem.x.columns
    weights = filters * channels * rows * columns
    moved = (image + weights + pixels * filters) * problem.x.itemsize
    return max(moved / COPY, 2 * pixels * weights / PEAK[precision])


def problem_of(layer: Layer, batch: int, precision: str) -> Any:
    """The contraction of a network of this layer, ReLU behind it."""
    from minidnn import layers as L
    from minidnn.backends.cuda.contraction.problem import ContractionProblem
    from minidnn.backends.cuda.lower import lower_plan
    from minidnn.backends.cuda.machine import machine_of
    from minidnn.backends.cuda.target import CudaTarget
    from minidnn.layers.build import to_graph
    from minidnn.passes.infrastructure import Context
    from minidnn.passes.pipeline import optimize
    from minidnn.runtime.plan import make_plan

    channels, filters, kernel, stride, size, groups = layer
    convolution = L.Conv2d(channels, filters, kernel, stride, kernel // 2, groups=groups)
    network = L.Sequential(convolution, L.ReLU())
    machine = machine_of(0)
    context = Context(CudaTarget(machine.device(precision), precision))
    graph = optimize(to_graph(network, (batch, channels, size, size)), context)
    tasks = lower_plan(make_plan(graph, context), machine, precision == "tf32")
    (problem,) = (t.work for t in tasks if isinstance(t.work, ContractionProblem))
    return problem


def ours(problem: Any) -> list[Any]:
    """Our kernels that the tuning would try."""
    from minidnn.backends.cuda.contraction.algorithms import algorithms_for
    from minidnn.backends.cuda.contraction.config import AlgorithmConfig, build, workspace_bytes
    from minidnn.backends.cuda.contraction.kernel_registry import load_contraction
    from minidnn.backends.cuda.functions import load_launches
    from minidnn.backends.cuda.machine import machine_of

    machine = machine_of(0)
    load = partial(load_launches, arch=machine.arch)
    found = []
    for algorithm in algorithms_for(problem, machine):
        if algorithm.kernel is None:
            continue
        for choice in algorithm.kernel.choices(problem, machine):
            core = load_contraction(problem, algorithm.kernel, choice, machine, load)
            config = AlgorithmConfig(
                algorithm, choice, (), workspace_bytes(problem, algorithm, core.workspace)
            )
            found.append(build(problem, config, core, machine, load))
    return found


def cudnn(problem: Any) -> list[Any]:
    """What cuDNN's heuristics propose, with all stages that it has names for, or with none."""
    from minidnn.backends.cuda.contraction.config import (
        CONVOLUTION,
        AlgorithmConfig,
        CudaAlgorithm,
        build,
        target,
        workspace_bytes,
    )
    from minidnn.backends.cuda.contraction.graphs import constraints_of, fusable_stages, graph_of
    from minidnn.backends.cuda.functions import load_launches
    from minidnn.backends.cuda.machine import machine_of
    from minidnn.errors import UnsupportedError

    machine, found = machine_of(0), []
    load = partial(load_launches, arch=machine.arch)
    for stages in dict.fromkeys((fusable_stages(problem), 0)):
        algorithm = CudaAlgorithm(CONVOLUTION, stages)
        graph = graph_of(problem, CONVOLUTION, stages, target(problem, algorithm))
        limits = constraints_of(problem, 1 << 30)
        try:
            plans = list(graph.plans(most=8, most_compiled=1, constraints=limits))
        except UnsupportedError as error:
            print(error)
            continue
        for plan in plans:
            engine = plan.config
            size = workspace_bytes(problem, algorithm, plan.workspace)
            config = AlgorithmConfig(algorithm, engine.engine, engine.knobs, size)
            found.append(build(problem, config, plan, machine, load))
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: of each layer the floor, our best kernel, and the best of cuDNN."""
    lines = []
    for row in rows:
        own = {k: v for k, v in row["ms"].items() if not k.startswith("cuDNN")}
        theirs = [v for k, v in row["ms"].items() if k.startswith("cuDNN")]
        layer = Layer(*(row[name] for name in Layer._fields))
        what = f"{layer}, batch {row['batch']}, {row['precision']}"
        best = min(own, key=lambda name: own[name], default="")
        first = [best, f"{1e3 * own[best]:.1f}"] if own else ["-", "-"]
        other = f"{1e3 * min(theirs):.1f}" if theirs else "-"
        lines.append([what, f"{1e3 * row['floor']:.1f}", *first, other])
    return markdown(["layer", "floor us", "our best", "us", "cuDNN us"], lines)


if __name__ == "__main__":
    main()
