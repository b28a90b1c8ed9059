"""Mean and variance of a convolution's result: added up as it is written, or read again.

    python -m benchmarks.fused_statistics results.jsonl resnet50 densenet121 --precision bfloat16

Convolutions are those of a training step.  ``alone`` is the fastest kernel of a convolution by
itself; ``sweep`` the fastest that is followed by a sweep of its result; ``added`` the fastest of
our kernels that add up what they write; ``cudnn`` the fastest of cuDNN's fused engines, which leave
sums and sums of squares, and which there are in float16 only.  Times are those of
:func:`minidnn.cudnn.graph.timing.race`, on tensors that mostly are larger than the last cache.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from minidnn.bench.results import commit
from minidnn.measure import line_of


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--precision", nargs="+", default=["bfloat16"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--every", type=int, default=1, help="every so many-th convolution")
    parser.add_argument("--gradients", action="store_true", help="for images, with their sums")
    parser.add_argument(
        "--pointwise", action="store_true", help="1x1 convolutions of stride 1 only"
    )
    given = parser.parse_args()
    for name in given.networks:
        for precision in given.precision:
            problems = problems_of(name, precision, given.batch, given.gradients)
            if given.pointwise:
                problems = [one for one in problems if one[0].is_pointwise]
            for problem, count in problems[:: given.every]:
                row = {"network": name, "precision": precision, "batch": given.batch}
                row |= measured(problem) | {"count": count, "commit": commit()}
                with given.results.open("a") as file:
                    file.write(line_of(row) + "\n")
                print(line_of(row), flush=True)


def problems_of(name: str, precision: str, batch: int, back: bool) -> list[tuple[Any, int]]:
    """The convolutions of a training step that images of several channels go through, with mean and
    variance of their results, or the gradients that have sums behind them; and how often there is
    each."""
    import minidnn as md
    from minidnn import models
    from minidnn.backends.cuda.contraction.problem import ContractionProblem, moments_of
    from minidnn.backends.cuda.lower import lower_plan
    from minidnn.backends.cuda.machine import machine_of
    from minidnn.backends.cuda.target import CudaTarget
    from minidnn.passes.infrastructure import Context
    from minidnn.passes.pipeline import optimize
    from minidnn.runtime.plan import make_plan
    from minidnn.training.step import Objective, step_graph

    objective = Objective(md.losses.CrossEntropy(), {})
    network, shape = models.get_model(name), (batch, 3, 224, 224)
    graph = step_graph(network, shape, objective, md.optim.SGD(0.1, momentum=0.9))
    machine = machine_of(0)
    context = Context(CudaTarget(machine.device(precision), precision), stored=True)
    tasks = lower_plan(make_plan(optimize(graph, context), context), machine, False)
    works = [task.work for task in tasks if isinstance(task.work, ContractionProblem)]
    if back:
        summed = (work for work in works if work.reduction and work.direction != "forward")
        return list(Counter(summed).items())
    forward = (work for work in works if work.direction == "forward" and work.gather is None)
    images = (work for work in forward if work.y.rows > 1)
    return list(Counter(replace(work, reduction=moments_of(work)) for work in images).items())


def measured(problem: Any) -> dict[str, Any]:
    """Milliseconds of each way, and which kernel of ours it is."""
    from minidnn.backends.cuda.contraction.tune import Tuning, everything, measured, own
    from minidnn.backends.cuda.functions import load_launches
    from minidnn.backends.cuda.machine import machine_of

    machine = machine_of(0)
    tuning = Tuning(machine, "quick", 1 << 30, partial(load_launches, arch=machine.arch))
    ours = own(problem, tuning)
    adding = [one for one in ours if not one.sums]
    others = [one for one in ours if one.sums]
    ranked = measured(problem, [*everything(problem, [], {}, tuning), *others[:1]], tuning)
    times = raced(problem, [*adding[:1], ranked[0]])
    plain = replace(problem, reduction=None)
    alone = measured(plain, everything(plain, own(plain, tuning), {}, tuning), tuning)
    x, w = problem.x, problem.w.shape
    return {
        "convolution": ("gradient of " if problem.direction != "forward" else "")
        + f"{w[1]} to {w[0]} at {x.rows}x{x.columns}, {w[2]}x{w[3]}"
        + f", stride {problem.stride[0]}" * (problem.stride[0] > 1),
        "alone": alone[0].config.milliseconds,
        "sweep": times[-1],
        "added": times[0] if adding else None,
        "cudnn": by_cudnn(problem),
        "kernel": adding[0].config.algorithm_name(problem) if adding else None,
        "machine": machine.name,
        "versions": f"cuDNN {library_version()}",
    }


def library_version() -> str:
    from minidnn.cudnn import library

    version = library.load().version
    return f"{version // 10000}.{version // 100 % 100}"


def raced(problem: Any, built: Sequence[Any]) -> list[float | None]:
    """Milliseconds of each, taken in turn."""
    from minidnn.backends.cuda.contraction.memory import scratch_addresses
    from minidnn.cudnn.graph.timing import Contestant, race

    at, workspace, kept = scratch_addresses(problem, max(one.workspace for one in built))
    times = race([Contestant(one.bind(at, workspace)) for one in built], margin=3.0)
    del kept
    return times


def by_cudnn(problem: Any) -> float | None:
    """Milliseconds of cuDNN's fastest convolution with statistics."""
    import cupy
    import numpy as np

    from minidnn.cudnn.graph import Graph
    from minidnn.cudnn.graph.timing import Contestant, race

    if problem.x.dtype != "float16" or problem.direction != "forward":
        return None  # it says that it supports no other

    numbers = np.random.default_rng(0).standard_normal(1 << 20).astype("float16")

    def tensor(shape: Sequence[int]) -> Any:
        batch, channels, *plane = shape
        return cupy.asarray(np.resize(numbers, (batch, *plane, channels))).transpose(0, 3, 1, 2)

    x, w = tensor(problem.input.shape), tensor(problem.w.shape)
    graph = Graph()
    geometry = {name: getattr(problem, name) for name in ("padding", "stride", "dilation")}
    y = graph.convolution(*graph.tensors(x, w), **geometry)
    graph.output(y, "float16", layout="NHWC")
    for sums in graph.statistics(y):
        graph.output(sums)
    plans = graph.plans(defaults=False, most=8, deterministic=problem.deterministic)
    times = race([Contestant(plan.bind(x, w)) for plan in plans])
    return min((ms for ms in times if ms is not None), default=None)


if __name__ == "__main__":
    main()
