"""How right choices of kernels on a GPU are for convolutions that nobody looked at.

    python -m benchmarks.random_contractions 100 [--seed 0] [--precision bfloat16] [--json FILE]

Convolutions of random shapes, as many of each kind: 1x1, 3x3 and larger, grouped, depthwise;
strides are 1 and 2, batches 1, 16 and 128, channels multiples of 8.  Each is three problems: the
convolution and both of its gradients.  What is chosen without measuring (``tune="heuristic"``)
races with our kernels and cuDNN's proposals, those included whose engines compile.

The table says for each kind and direction which part of the choices is within 3, 5 and 10 % of the
fastest that was measured, and the geometric mean and the largest of these ratios: for what is
chosen without measuring ("heuristic"), and for the fastest but for engines that compile ("quick").
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import markdown
from benchmarks.random_choices import KINDS, draw
from minidnn import layers as L
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.contraction.tune import Tuning
from minidnn.bench.results import commit
from minidnn.measure import write_figures

BATCHES = (1, 16, 128)
MOST_OPERATIONS = 4e11
MOST_ELEMENTS = 1 << 28
TOGETHER = 15


def problems_of(
    layer: L.Conv2d, shape: tuple[int, ...], precision: str, machine: Any
) -> list[ContractionProblem]:
    """The contraction of a convolution and those of its gradients."""
    from minidnn.backends.cuda.lower import lower_plan
    from minidnn.backends.cuda.target import CudaTarget
    from minidnn.gradients.reverse import pullback
    from minidnn.layers.build import to_graph
    from minidnn.passes.infrastructure import Context
    from minidnn.passes.pipeline import optimize
    from minidnn.runtime.plan import make_plan

    forward = to_graph(layer, shape, states=True)
    graph = pullback(forward, [*forward.inputs, *forward.states])
    context = Context(CudaTarget(machine.device(precision), precision), stored=True)
    found: list[ContractionProblem] = []
    for each in (forward, graph):
        tasks = lower_plan(make_plan(optimize(each, context), context), machine, False)
        found += [task.work for task in tasks if isinstance(task.work, ContractionProblem)]
    return list(dict.fromkeys(found))


def raced(
    problem: ContractionProblem, tuning: Tuning
) -> tuple[float, list[tuple[str, bool, float]]]:
    """Milliseconds of what is chosen without measuring, and each way with whether cuDNN compiled
    it."""
    from minidnn.backends.cuda.contraction import tune

    first = tune.first(problem, tuning)
    ours = tune.own(problem, tuning)
    ranked = tune.measured(problem, tune.everything(problem, ours, {}, tuning), tuning)
    others = tune.with_compiled(problem, ranked, tuning)
    ranked = tune._raced(problem, [first, *others, *ranked[2:], *ours[2:]], tuning)
    times = [
        (str(one.config.algorithm), tune.compiles(one), one.config.milliseconds or 0.0)
        for one in ranked
    ]
    chosen = next(
        ms for one, (_, _, ms) in zip(ranked, times, strict=True) if one.core is first.core
    )
    return chosen, times


def measure(
    random: np.random.Generator, given: argparse.Namespace
) -> Iterator[tuple[str, str, tuple[float, float]]]:
    """Of some convolutions, whose kernels are compiled together, direction, kind and the ratios of
    each contraction to the fastest: heuristic and quick."""
    from minidnn.backends.cuda.contraction.algorithms import launches_of
    from minidnn.backends.cuda.functions import LaunchLoader
    from minidnn.backends.cuda.machine import machine_of
    from minidnn.cudnn.errors import CuDNNError
    from minidnn.errors import MiniDNNError

    machine = machine_of(0)
    found: dict[ContractionProblem, str] = {}
    for kind in KINDS * (TOGETHER // len(KINDS)):
        batch = int(random.choice(BATCHES))
        layer, shape = draw(random, kind, batch, MOST_OPERATIONS, MOST_ELEMENTS)
        for problem in problems_of(layer, (batch, *shape), given.precision, machine):
            found.setdefault(problem, kind)
    load = LaunchLoader(machine.arch, None)
    load([launch for problem in found for launch in launches_of(problem, machine)])
    tuning = Tuning(machine, "quick", 1 << 30, load)
    for problem, kind in found.items():
        try:
            chosen, times = raced(problem, tuning)
        except (MiniDNNError, CuDNNError) as error:
            print(f"{problem.describe()}: {error}")
            continue
        ready = min(ms for _, compiled, ms in times if not compiled or len(times) == 1)
        best = min(ms for *_, ms in times)
        if chosen > given.tell * best:
            print(f"{chosen / best:.2f} {problem.describe()}: {times[0][0]}")
        yield problem.direction, kind, (round(chosen / best, 3), round(ready / best, 3))


def table(results: Sequence[dict[str, Any]]) -> str:
    """A line for each precision, way to choose, direction and kind."""
    titles = ["precision", "chosen", "direction", "kind", "problems", "within 3 %", "5 %", "10 %"]
    rows = []
    for result in results:
        groups = {
            (direction, kind): pairs
            for direction, kinds in result["ratios"].items()
            for kind, pairs in kinds.items()
        }
        groups["all", "all"] = [pair for pairs in groups.values() for pair in pairs]
        for place, way in enumerate(("heuristic", "quick")):
            for (direction, kind), pairs in groups.items():
                ratios = [pair[place] for pair in pairs]
                near = [np.mean([r <= 1 + part for r in ratios]) for part in (0.03, 0.05, 0.1)]
                mean = exp(sum(map(log, ratios)) / len(ratios))
                cells = [f"{100 * part:.0f} %" for part in near] + [f"{mean:.3f}"]
                names = [result["precision"], way, direction, kind, len(ratios)]
                rows.append([*names, *cells, f"{max(ratios):.2f}"])
    return markdown([*titles, "mean", "largest"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Choices of kernels for random convolutions.")
    parser.add_argument("count", type=int, help="convolutions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--tell", type=float, default=1.5, help="print worse choices (1.5)")
    parser.add_argument("--json", type=Path, help="where to add the figures, a line")
    given = parser.parse_args()
    from minidnn.backends.cuda.machine import machine_of

    random = np.random.default_rng(given.seed)
    ratios: dict[str, dict[str, list[tuple[float, float]]]] = {}
    result: dict[str, Any] = {
        "machine": machine_of(0).name,
        "precision": given.precision,
        "seed": given.seed,
        "commit": commit(),
        "ratios": ratios,
    }
    results = [result]
    if given.json and given.json.exists():
        results = [*map(json.loads, given.json.read_text().splitlines()), result]
    for _ in range(-(-given.count // TOGETHER)):
        for direction, kind, pair in measure(random, given):
            ratios.setdefault(direction, {}).setdefault(kind, []).append(pair)
        if given.json:
            write_figures(given.json, results)
    print(table(results))


if __name__ == "__main__":
    main()
