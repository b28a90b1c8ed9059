"""How near the price model's choices for contractions come to the measured best ones.

    python -m benchmarks.choices resnet50 vgg16_bn --batch 1 16 [--json FILE] [--merge FILE ...]

Every contraction's candidates are measured where they stand in the network, as ``tune=True`` does
(see docs/explanation/cpu-engine.md), and the network of all the fastest is measured once more
against that by price: the ratios are of this last measurement.  A cell of the table is the sum of
the contractions' times by price over that of the fastest; beside it stand the share of problems (by
number) whose choice is within 5 % of the best, and the largest ratio.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import minidnn as md
from benchmarks.figures import markdown
from minidnn import models
from minidnn.backends.cpu.backend import CpuProgram, builder
from minidnn.backends.cpu.contraction import Question
from minidnn.backends.cpu.isa import best_isa
from minidnn.backends.cpu.machine import describe_machine
from minidnn.backends.cpu.tuning import Measured, Tuning
from minidnn.bench.networks import case_of
from minidnn.bench.results import commit
from minidnn.measure import write_figures
from minidnn.runtime.cores import usable_cores

KEPT = 3


def measure(
    network: str, batch: int, threads: int, isa: str, most: int, budget: float, seconds: float
) -> dict[str, Any]:
    """The contractions of a network; see :func:`row_of`."""
    shape = case_of(network, batch).shape
    layer = getattr(models, network)()
    # Who observes the passes keeps the graph's constants, of which variants are packed.
    keep: dict[str, Any] = {"observe": lambda *_: None}
    executable = md.compile(layer, shape, device="cpu", threads=threads, isa=isa, **keep)
    program = executable.program
    assert isinstance(program, CpuProgram)
    plan, tasks = executable.plan, program.tasks
    questions = list(dict.fromkeys(t.question for t in tasks if t.question is not None))
    build = builder(plan, program.isa, threads)
    tuning = Tuning(
        plan, program.isa, threads, "normal", tasks, questions, build, race_seconds=seconds
    )
    found = tuning.measure(most, budget)
    nodes = {question: set[str]() for question in questions}
    for task in tasks:
        if task.question is not None:
            nodes[task.question].add(task.node.name)
    rows = [row_of(question, found[question], len(nodes[question])) for question in found]
    return {
        "network": network,
        "batch": batch,
        "threads": threads,
        "isa": isa,
        "machine": describe_machine().line(),
        "commit": commit(),
        **summed(rows),
    }


def summed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of problems: seconds of all, how many there are and are within 5 % of the best,
    and the KEPT whose choice by price is farthest from it."""
    named = {row["problem"]: row for row in rows}

    def ratio(row: dict[str, Any]) -> float:
        return float(row["by_price"] / row["best"])

    return {
        "by_price": sum(row["by_price"] for row in rows),
        "best": sum(row["best"] for row in rows),
        "problems": len(named),
        "near": sum(ratio(row) <= 1.05 for row in named.values()),
        "worst": sorted(named.values(), key=ratio, reverse=True)[:KEPT],
    }


def row_of(question: Question, measured: Measured, count: int) -> dict[str, Any]:
    """Seconds of all ``count`` contractions of a run that are this problem, by price and by the
    fastest candidate, and which that is."""
    problem = question.problem
    text = f"{problem.in_channels}>{problem.out_channels} {problem.kernel[0]}x{problem.kernel[1]}"
    text += f"/{problem.stride[0]}" if problem.stride != (1, 1) else ""
    text += f" @{problem.out_size[0]}x{problem.out_size[1]}"
    return {
        "problem": text + (f", {problem.groups} groups" if problem.groups > 1 else ""),
        "images": [problem.batch, question.images],
        "threads": question.threads,
        "count": count,
        "by_price": measured.first_seconds,
        "best": measured.chosen_seconds,
        "algorithm": measured.choice.algorithm.name,
    }


def table(results: list[dict[str, Any]]) -> str:
    """A line for each network and batch."""
    titles = ["network", "batch", "ms by price", "ms of the best", "ratio", "within 5 %", "largest"]
    rows = []
    for result in results:
        by_price, best, worst = result["by_price"], result["best"], result["worst"][0]
        cells = [result["network"], result["batch"]]
        cells += [f"{1e3 * by_price:.2f}", f"{1e3 * best:.2f}", f"{by_price / best:.3f}"]
        cells += [f"{result['near']} of {result['problems']}"]
        rows.append([*cells, f"{worst['by_price'] / worst['best']:.2f}", worst["problem"]])
    return markdown([*titles, ""], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="The price model's choices against the best.")
    parser.add_argument("networks", nargs="*", help="networks of the zoo (resnet50)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--isa", help="avx512 or avx2 (the best)")
    parser.add_argument("--most", type=int, default=8, help="candidates for a problem (8)")
    parser.add_argument("--budget", type=float, default=110, help="seconds for a network (110)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of two programs in turn (1)")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="figures to begin with")
    options = parser.parse_args()
    results = [result for path in options.merge for result in json.loads(path.read_text())]
    isa = options.isa or best_isa().name
    for network in options.networks:
        for batch in options.batch:
            effort = options.most, options.budget, options.seconds
            results.append(measure(network, batch, options.threads, isa, *effort))
            if options.json:
                write_figures(options.json, results)
    if options.json:
        write_figures(options.json, results)
    print(table(results))


if __name__ == "__main__":
    main()
