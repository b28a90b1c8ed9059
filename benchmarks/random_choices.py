"""How right the CPU's price model is for convolutions that nobody looked at.

    python -m benchmarks.random_choices 300 [--seed 0] [--precision bfloat16] [--json FILE]

Convolutions of random shapes, as many of each kind: 1x1, 3x3 and larger, grouped, depthwise;
strides are 1 and 2, images 1, 4 or 16, channels multiples of 8.  ``--together`` of them make a
network, whose candidates are measured as ``tune=True`` does, in turn with those by price.

The table says for each kind which part of the choices is within 3, 5 and 10 % of the fastest that
was measured, the geometric mean and the largest of these ratios, and the error of predictions: what
is predicted over what is measured, divided by the median of all, between which bounds 90 % lie.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import minidnn as md
from benchmarks.choices import row_of
from benchmarks.figures import markdown
from minidnn import layers as L
from minidnn.backends.cpu.backend import CpuProgram, builder
from minidnn.backends.cpu.contraction import Question, choose_by_price
from minidnn.backends.cpu.contraction.choose import nominal_speed
from minidnn.backends.cpu.isa import best_isa
from minidnn.backends.cpu.machine import describe_machine
from minidnn.backends.cpu.tuning import Tuning
from minidnn.bench.results import commit
from minidnn.measure import write_figures
from minidnn.runtime.cores import usable_cores

KINDS = ("1x1", "3x3", "larger", "grouped", "depthwise")
MOST_OPERATIONS = 1e9
MOST_ELEMENTS = 1 << 24


def draw(
    random: np.random.Generator,
    kind: str,
    batch: int,
    most_operations: float = MOST_OPERATIONS,
    most_elements: int = MOST_ELEMENTS,
) -> tuple[L.Conv2d, tuple[int, ...]]:
    """A convolution of a kind, and the shape of an image, within the bounds on work and memory."""
    while True:
        inputs, outputs = (8 * int(2 ** random.uniform(0, 7)) for _ in range(2))
        size, stride = int(2 ** random.uniform(2.5, 7)), int(random.choice([1, 1, 2]))
        kernel = {"1x1": 1, "larger": int(random.choice([5, 7]))}.get(kind, 3)
        groups = 1
        if kind == "depthwise":
            outputs = groups = inputs
            kernel = int(random.choice([3, 5, 7]))
        elif kind == "grouped":
            width = 8 * int(random.integers(1, 5))
            groups = max(2, inputs // width)
            inputs = outputs = groups * width
        operations = 2 * batch * (size / stride) ** 2 * inputs * outputs / groups * kernel**2
        if operations <= most_operations and batch * inputs * size**2 <= most_elements:
            padding = kernel // 2
            layer = L.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, groups=groups)
            return layer, (inputs, size, size)


def kind_of(question: Question) -> str:
    """Which kind a contraction is of."""
    problem = question.problem
    if problem.groups > 1:
        return "depthwise" if problem.in_channels == problem.out_channels == 1 else "grouped"
    return {(1, 1): "1x1", (3, 3): "3x3"}.get(problem.kernel, "larger")


def measure(random: np.random.Generator, given: argparse.Namespace) -> dict[str, list[list[float]]]:
    """Of each kind's convolutions of one network by how much the choice by price is slower than the
    fastest, and what is predicted over what is measured."""
    batch = int(random.choice([1, 4, 16]))
    drawn = [draw(random, KINDS[i % len(KINDS)], batch) for i in range(given.together)]
    inputs = [md.Input(shape, name=f"x{i}") for i, (_, shape) in enumerate(drawn)]
    net = md.Model(inputs, [layer(x) for x, (layer, _) in zip(inputs, drawn, strict=True)])
    # Who observes the passes keeps the graph's constants, of which variants are packed.
    keep: dict[str, Any] = {"observe": lambda *_: None}
    executable = md.compile(
        net,
        [(batch, *shape) for _, shape in drawn],
        device="cpu",
        threads=given.threads,
        precision=given.precision,
        **keep,
    )
    program, plan = executable.program, executable.plan
    assert isinstance(program, CpuProgram)
    questions = list(
        dict.fromkeys(task.question for task in program.tasks if task.question is not None)
    )
    build = builder(plan, program.isa, given.threads)
    tuning = Tuning(
        *(plan, program.isa, given.threads, "normal", program.tasks, questions, build),
        race_seconds=given.seconds,
    )
    found: dict[str, list[list[float]]] = {}
    for question, measured in tuning.measure(given.most, 1e6).items():
        choice = choose_by_price(question)
        speed = nominal_speed(program.isa, question.threads)
        predicted = choice.algorithm.seconds(choice.scheme, speed)
        ratio = measured.first_seconds / measured.chosen_seconds
        error = predicted / measured.first_seconds
        if ratio > given.tell:
            row = row_of(question, measured, 1)
            print(f"{ratio:.2f} {row['problem']}, {row['images']}: {row['algorithm']}")
        found.setdefault(kind_of(question), []).append([round(ratio, 3), float(f"{error:.3g}")])
    return found


def table(results: Sequence[dict[str, Any]]) -> str:
    """A line for each precision and kind, and one for all kinds."""
    titles = ["precision", "kind", "shapes", "within 3 %", "5 %", "10 %", "mean", "largest"]
    rows = []
    for result in results:
        kinds: dict[str, list[list[float]]] = result["kinds"]
        every = [pair for pairs in kinds.values() for pair in pairs]
        middle = median([error for _, error in every])
        for kind, pairs in {**kinds, "all": every}.items():
            rows.append([result["precision"], kind, len(pairs), *_of_kind(pairs, middle)])
    return markdown([*titles, "predicted, 90 % between"], rows)


def _of_kind(pairs: Sequence[Sequence[float]], middle: float) -> list[str]:
    ratios = [ratio for ratio, _ in pairs]
    near = [f"{100 * np.mean([r <= 1 + part for r in ratios]):.0f} %" for part in (0.03, 0.05, 0.1)]
    mean = exp(sum(map(log, ratios)) / len(ratios))
    low, high = np.quantile([error / middle for _, error in pairs], [0.05, 0.95])
    return [*near, f"{mean:.3f}", f"{max(ratios):.2f}", f"{low:.2f} and {high:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description="The price model on random convolutions.")
    parser.add_argument("count", type=int, help="convolutions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--together", type=int, default=20, help="convolutions of a network (20)")
    parser.add_argument("--most", type=int, default=8, help="candidates for a problem (8)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of two programs in turn (1)")
    parser.add_argument("--tell", type=float, default=1.2, help="print worse choices (1.2)")
    parser.add_argument("--json", type=Path, help="where to add the figures, a line")
    given = parser.parse_args()
    random = np.random.default_rng(given.seed)
    result: dict[str, Any] = {
        "machine": describe_machine().line(),
        "isa": best_isa().name,
        "threads": given.threads,
        "precision": given.precision,
        "seed": given.seed,
        "commit": commit(),
        "kinds": {kind: [] for kind in KINDS},
    }
    results = [result]
    if given.json and given.json.exists():
        results = [*map(json.loads, given.json.read_text().splitlines()), result]
    for _ in range(-(-given.count // given.together)):
        for kind, pairs in measure(random, given).items():
            result["kinds"][kind] += pairs
        if given.json:
            write_figures(given.json, results)
    print(table(results))


if __name__ == "__main__":
    main()
