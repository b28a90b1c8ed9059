"""How far networks are from their floors on the CPU, and in which regions the time goes.

    python -m benchmarks.floors resnet50 densenet121 --batch 1 16 [--json FILE]

The floor of a region is what the machine allows at least, whichever of these takes longest:

- multiply-adds that its algorithm takes (without transforms, and without the rows of taps that it
  leaves out) at the rate of a loop of multiply-adds on registers, which runs before and after
  every run of the network: the faster one counts, since clocks drift;
- bytes that must come from memory at the rate of a loop that reads, measured beside the network:
  packed weights if the network's do not fit the last cache, values that do not fit it;
- all bytes, each once, at the rate at which second-level caches are read.

A region's share is the median over runs of its floor over its time; a network's floor is the sum.
Runs count during which the threads had their cores; where there are too few, all count ("*").
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import minidnn as md
from benchmarks.convolution import LEAST_QUIET, Peak, timed
from benchmarks.figures import markdown
from benchmarks.linear import READ_BYTES, Read
from minidnn import models
from minidnn.backends.cpu.backend import CpuProgram
from minidnn.backends.cpu.execution.bind import Task
from minidnn.backends.cpu.execution.program import shared_pool
from minidnn.backends.cpu.isa import best_isa, usable_isa
from minidnn.backends.cpu.machine import describe_machine, measured_rates
from minidnn.bench.networks import case_of
from minidnn.bench.results import commit
from minidnn.fusion.region import Region
from minidnn.graph.ir import Constant, Node, Value
from minidnn.graph.types import ITEMSIZE
from minidnn.measure import median, ratio, write_figures
from minidnn.measure import timed as clocked
from minidnn.report.explain import contracts, describe, work
from minidnn.runtime.cores import usable_cores

QUIET_SHARE = 0.85
"""A run whose threads got less of the cores than this was disturbed; networks let them wait."""

KEPT = 6
"""So many regions of a network are kept, those that lose most."""

MOST_TRIES = 3
"""So many times the runs that are asked for are made at most, to have them undisturbed."""


@dataclass(frozen=True)
class Work:
    """What a region must do.

    Attributes:
        operations: in multiply-adds' time; those that are none take twice that.
        far: bytes that come from memory or go there.
        bytes: all of them, each once.
    """

    operations: int
    far: int
    bytes: int


@dataclass(frozen=True)
class Row:
    """A region: seconds and floor are medians over runs, ``share`` that of their ratio."""

    name: str
    kind: str
    text: str
    algorithm: str
    seconds: float
    floor: float
    share: float
    bound: str


def measure(name: str, batch: int, isa: str, threads: int, runs: int) -> dict[str, Any]:
    """A network's regions and the rates beside them."""
    case = case_of(name, batch)
    layer = getattr(models, name)()
    options: dict[str, Any] = {"device": "cpu", "threads": threads, "isa": isa}
    program = md.compile(layer, case.shape, **options).program
    assert isinstance(program, CpuProgram)
    graph = program.plan.graph
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(value.shape, np.float32) for value in graph.inputs]
    outputs = [np.empty(value.shape, np.float32) for value in graph.outputs]
    pool = shared_pool(threads)
    peak, read = Peak(usable_isa(isa), pool), Read(usable_isa(isa), pool)
    reads = [timed(read.program, read.bases, threads)[0] for _ in range(4)]
    program.run(inputs, outputs)
    rounds = []
    for _ in range(MOST_TRIES * runs):
        timed(peak.program, peak.bases, threads)  # wakes the threads
        before, calm = timed(peak.program, peak.bases, threads)
        program.run(inputs, outputs)
        times: dict[Node, float] = {}

        def run(times: dict[Node, float] = times) -> None:
            times |= program.seconds_of_nodes(inputs, outputs)

        _, let_alone = clocked(run, threads, QUIET_SHARE)
        after, still = timed(peak.program, peak.bases, threads)
        rounds.append((calm and let_alone and still, peak.operations / min(before, after), times))
        if sum(quiet for quiet, *_ in rounds) == runs:
            break
    undisturbed = sum(quiet for quiet, *_ in rounds) >= LEAST_QUIET
    taken = [(rate, times) for quiet, rate, times in rounds if quiet or not undisturbed]
    flops, times_of = [rate for rate, _ in taken], [times for _, times in taken]
    reads += [timed(read.program, read.bases, threads)[0] for _ in range(4)]
    reading = READ_BYTES / min(reads)
    works = works_of(program)
    rows = [
        row_of(program, node, works[node], [each[node] for each in times_of], flops, reading)
        for node in times_of[0]
    ]
    return {
        "network": name,
        "batch": batch,
        "threads": threads,
        "isa": isa,
        "machine": describe_machine().line(),
        "commit": commit(),
        "runs": len(taken),
        "undisturbed": undisturbed,
        "peak": median(flops).value,
        "read": reading,
        "seconds": sum(row.seconds for row in rows),
        "floor": sum(row.floor for row in rows),
        "regions": len(rows),
        **losses(rows, sum(row.seconds for row in rows)),
    }


def losses(rows: Sequence[Row], total: float) -> dict[str, Any]:
    """What is kept of regions: seconds over the floor by kind, and the KEPT that lose most, with
    what they lose as a part of the network's ``total``."""
    lost: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        lost[row.algorithm or row.kind] += row.seconds - row.floor
    worst = sorted(rows, key=lambda row: row.floor - row.seconds)[:KEPT]
    fields = ("name", "text", "algorithm", "seconds", "floor", "share", "bound")
    kept = [
        {field: getattr(row, field) for field in fields}
        | {"lost": (row.seconds - row.floor) / total}
        for row in worst
    ]
    return {"lost": lost, "worst": kept}


def works_of(program: CpuProgram) -> dict[Node, Work]:
    """What each region of a program must do."""
    found: dict[Node, Work] = {}
    cache = describe_machine().caches.l3
    cold = program.constant_bytes > cache
    for task in program.tasks:
        if task.node in found:
            continue
        weights = weights_of(task)
        images = 1 if task.group is None else task.node.outputs[0].shape[0]
        values = [_bytes(value) for value in _values(task.node)]
        far = weights if cold else 0
        # Image after image, each thread has one; of a batch at once, all are in use.
        far += sum(size for size in values if size * program.threads // images > cache)
        operations = work(task.node)[0] - program.spared_operations(task.node)
        operations *= 1 if contracts(task.node) else 2
        found[task.node] = Work(operations, far, weights + sum(values))
    return found


def weights_of(task: Task) -> int:
    """Bytes of packed weights that a region reads, or of its constants."""
    if task.choice is not None:
        return task.choice.algorithm.weight_bytes(task.choice.scheme)
    op = task.node.op
    return op.constant_bytes if isinstance(op, Region) else 0


def _values(node: Node) -> Iterator[Value]:
    yield from (v for v in dict.fromkeys(node.inputs) if not isinstance(v, Constant))
    yield from node.outputs


def _bytes(value: Value) -> int:
    return int(np.prod(value.shape, dtype=np.int64)) * ITEMSIZE[value.dtype]


def row_of(
    program: CpuProgram,
    node: Node,
    work: Work,
    seconds: Sequence[float],
    flops: Sequence[float],
    reading: float,
) -> Row:
    near = measured_rates().l2 * program.threads / describe_machine().cores
    moved = {"memory": work.far / reading, "cache": work.bytes / near}
    bound = max(moved, key=moved.__getitem__)
    floors = [max(work.operations / rate, moved[bound]) for rate in flops]
    floor = median(floors).value
    if floor > moved[bound]:
        bound = "arithmetic"
    return Row(
        node.name,
        "contraction" if contracts(node) else "other",
        describe(node),
        program.details(node),
        median(seconds).value,
        floor,
        ratio(floors, seconds).value,
        bound,
    )


def row(found: dict[str, Any]) -> tuple[str, ...]:
    """A network's row of the table."""
    parts = sorted(found["lost"].items(), key=lambda item: -item[1])
    return (
        found["network"],
        str(found["batch"]) + ("" if found["undisturbed"] else "*"),
        f"{found['peak'] / 1e9:.0f}",
        f"{found['read'] / 1e9:.0f}",
        f"{1e3 * found['seconds']:.2f}",
        f"{1e3 * found['floor']:.2f}",
        f"{found['floor'] / found['seconds']:.2f}",
        ", ".join(f"{kind} {1e3 * seconds:.2f}" for kind, seconds in parts),
    )


REASONS = {
    "F(4x4": "transforms, and waiting for inputs, are no products",
    "F(2x2": "transforms, and waiting for inputs, are no products",
    "MaxPool": "values of the last cache count at the second level's rate",
    "Linear": "weights come from memory",
    "(conv1)": "three channels fill no vector",
    "(features.0)": "three channels fill no vector",
}
"""What is known of regions that are far from their floors, by what stands in their texts."""


def why(row: dict[str, Any]) -> str:
    text = f"{row['text']} {row['algorithm']}"
    return next((reason for name, reason in REASONS.items() if name in text), "")


def far(results: Sequence[dict[str, Any]], count: int) -> list[list[str]]:
    """The regions that lose most time against their floors, as a part of their network's."""
    regions = [(found, row) for found in results for row in found["worst"]]
    worst = sorted(regions, key=lambda pair: float(pair[1]["lost"]), reverse=True)[:count]
    return [
        [f"{found['network']}, {found['batch']}", row["name"], row["text"], row["algorithm"],
         f"{1e6 * row['seconds']:.0f}", f"{1e6 * row['floor']:.0f}", row["bound"],
         f"{100 * row['share']:.0f} %", f"{100 * row['lost']:.1f} %", why(row)]
        for found, row in worst
    ]  # fmt: skip


def tables(results: Sequence[dict[str, Any]], count: int) -> str:
    titles = ["network", "batch", "peak, GFLOP/s", "reading, GB/s", "regions, ms", "floor, ms"]
    titles += ["floor / ms", "lost, ms"]
    of_regions = ["network, batch", "region", "what", "algorithm", "us", "floor, us", "bound"]
    of_regions += ["share", "lost of the network", "why"]
    parts = [markdown(titles, map(row, results)), markdown(of_regions, far(results, count))]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Networks and regions against their floors.")
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--isa", default=best_isa().name, help="avx512 or avx2 (the best)")
    parser.add_argument("--far", type=int, default=10, help="regions to name (10)")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="figures to begin with")
    options = parser.parse_args()
    results = [found for path in options.merge for found in json.loads(path.read_text())]
    for name in options.networks:
        for batch in options.batch:
            found = measure(name, batch, options.isa, options.threads, options.runs)
            results.append(found)
            if options.json:
                write_figures(options.json, results)
    print(
        f"{describe_machine().line()}; {options.threads} threads\n\n{tables(results, options.far)}"
    )


if __name__ == "__main__":
    main()
