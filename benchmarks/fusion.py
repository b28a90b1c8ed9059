"""What fusion alone gains: one network, the same convolution kernels, depth-first on and off.

    python -m benchmarks.fusion --net densenet121 squeezenet1_1 --batch 1 16 --json FILE
    python -m benchmarks.fusion --json FILE --table

Every network is compiled under three strategies and run in turn within one process:

- layers: every layer by itself, one after another, as the BrainSlug paper's baseline does; joins
  of channels are copied.
- contractions: convolutions and linear layers take the bias, activation and residual behind them
  and normalization and activation before them, as frameworks with fused kernels do; no stacks,
  joins are copied.
- model: everything that minidnn does.

Normalizations behind convolutions are folded, and kernels and layouts are the same, in all of them.
With --json, what the file has already is not measured again (--again does), and each network and
batch is written when it is ready.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import minidnn as md
from benchmarks.figures import line, markdown
from minidnn import models
from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cpu.compilers.kernels import compile_kernels
from minidnn.backends.cpu.isa import best_isa
from minidnn.backends.cpu.lower import lower_plan
from minidnn.backends.cpu.machine import describe_machine
from minidnn.backends.cpu.target import CpuTarget, device_for
from minidnn.bench.results import interval
from minidnn.executable import Executable
from minidnn.fusion.collapse import check_strategy
from minidnn.fusion.region import FusedContraction, FusedSequence
from minidnn.graph.operator import Contraction
from minidnn.layers.build import to_graph
from minidnn.measure import compared, orders, undisturbed, write_figures
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.report.explain import kind_of
from minidnn.runtime.cores import usable_cores
from minidnn.runtime.plan import make_plan

STRATEGIES = ("layers", "contractions", "model")
TRIES = 4
NETWORKS = models.CLASSIC


def fill_cache(name: str, batch: int, threads: int | None) -> None:
    """Compiles the kernels, without weights."""
    network = models.get_model(name)
    graph = to_graph(network, (batch, *network.input_shape))
    isa, count = best_isa(), threads or usable_cores()
    sources = []
    for strategy in STRATEGIES:
        context = Context(CpuTarget(device_for(isa, count), isa.lanes), check_strategy(strategy))
        plan = make_plan(optimize(graph, context), context)
        texts = (task.source for task in lower_plan(plan, isa, count))
        sources += [text for text in texts if isinstance(text, KernelSource)]
    compile_kernels(sources, isa)


def compiled(name: str, batch: int, threads: int | None) -> tuple[dict[str, Executable], Any]:
    """The executables by strategy, and an input."""
    network = models.get_model(name)
    shape = (batch, *network.input_shape)
    options: dict[str, Any] = {} if threads is None else {"threads": threads}
    made = {
        strategy: md.compile(network, shape, device="cpu", strategy=strategy, **options)
        for strategy in STRATEGIES
    }
    return made, np.random.default_rng(0).standard_normal(shape, np.float32)


def fused(exe: Executable) -> dict[str, int]:
    """What became of the layers, counted."""
    graph, found = exe.graph, Counter[str]()
    for node in graph.nodes:
        kind = kind_of(exe.plan, node)
        if kind in ("view", "in place"):
            found["joins in place"] += kind == "in place"
            continue
        found["kernels"] += 1
        found["conversions"] += node.op.name == "Reorder"
        found["joins copied"] += kind.startswith("copy")
        if isinstance(node.op, FusedContraction):
            inner = node.op.body.nodes
            found["contractions that took others"] += 1
            found["layers that they took"] += len(inner) - 1
            at = next(i for i, n in enumerate(inner) if isinstance(n.op, Contraction))
            found["of these before them"] += at
        if isinstance(node.op, FusedSequence) and len(node.op.body.nodes) > 1:
            found["stacks"] += 1
            found["layers in stacks"] += len(node.op.body.nodes)
    return dict(+found)


def measure(name: str, batch: int, rounds: int, seconds: float, threads: int | None) -> Any:
    """One row of the table."""
    made, x = compiled(name, batch, threads)
    outputs = {strategy: exe(x) for strategy, exe in made.items()}
    expected = outputs["model"].tobytes()
    runs = _runs(made["layers"], x, seconds)
    times: dict[str, list[float]] = {strategy: [] for strategy in made}
    for _, order in zip(range(rounds), orders(STRATEGIES), strict=False):
        for strategy, taken in _round({s: made[s] for s in order}, x, runs).items():
            times[strategy].append(taken)
    return {
        "network": name,
        "batch": batch,
        "runs": runs,
        **compared(times, "model"),
        "same bits": all(y.tobytes() == expected for y in outputs.values()),
        "fused": fused(made["model"]),
        "kernels by layers": fused(made["layers"])["kernels"],
    }


def _round(made: Mapping[str, Executable], x: np.ndarray, runs: int) -> dict[str, float]:
    """One burst of each, taken again while other processes have the cores."""

    def bursts() -> dict[str, float]:
        return {strategy: _burst(exe, x, runs) for strategy, exe in made.items()}

    return undisturbed(bursts, os.getpid(), TRIES)[1]


def _burst(exe: Executable, x: np.ndarray, runs: int) -> float:
    """The median time of a run."""
    out = exe(x)  # its memory has been used
    found = []
    for _ in range(runs):
        start = time.perf_counter()
        exe(x, out=out)
        found.append(time.perf_counter() - start)
    return float(np.median(found))


def _runs(exe: Executable, x: np.ndarray, seconds: float) -> int:
    start = time.perf_counter()
    exe(x)
    return max(1, round(seconds / (time.perf_counter() - start)))


def cells_of(row: Mapping[str, Any]) -> list[str]:
    """A row of the table."""
    times = row["seconds"]
    cells = [row["network"], str(row["batch"])]
    cells += [f"{1e3 * times[s]['value']:.2f}" for s in STRATEGIES]
    cells += [interval(row["ratio"][s], 1.0, 3) for s in ("contractions", "layers")]
    count = row["fused"].get
    took, before = count("layers that they took", 0), count("of these before them", 0)
    cells += [f"{count('kernels')} ({row['kernels by layers']})"]
    cells += [
        f"{took - before} + {before}",
        f"{count('layers in stacks', 0)} in {count('stacks', 0)}",
    ]
    return [*cells, f"{count('joins in place', 0)}", "yes" if row["same bits"] else "**no**"]


def table(rows: list[Any]) -> str:
    titles = (
        "network", "batch", "layers, ms", "contractions, ms", "depth-first, ms",
        "gain over contractions", "gain over layers", "kernels (layers)",
        "taken after + before", "in stacks", "joins in place", "same bits",
    )  # fmt: skip
    ordered = sorted(rows, key=lambda row: (row["batch"], NETWORKS.index(row["network"])))
    return markdown(titles, map(cells_of, ordered))


def read(path: str | None, printing: bool) -> dict[str, Any]:
    """What the file has; figures of two machines do not go into one."""
    machine = describe_machine().line()
    if path is None or not os.path.exists(path):
        return {"machine": machine, "rows": []}
    with open(path, encoding="utf-8") as file:
        document = dict(json.load(file))
    if not printing and document["machine"] != machine:
        raise SystemExit(f"{path} is of another machine: {document['machine']}; this: {machine}")
    return document


def write(path: str | None, document: Mapping[str, Any]) -> None:
    if path is not None:
        write_figures(Path(path), document)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--net", nargs="+", default=NETWORKS, choices=NETWORKS, metavar="NET")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=9, help="alternations (9)")
    parser.add_argument("--seconds", type=float, default=0.3, help="a burst's length (0.3)")
    parser.add_argument("--threads", type=int, help="all cores by default")
    parser.add_argument("--json", help="where to write the figures, and which are there")
    parser.add_argument("--again", action="store_true", help="measure also what is there")
    parser.add_argument("--compile", action="store_true", help="only fill the cache of kernels")
    parser.add_argument("--table", action="store_true", help="only print what the file has")
    options = parser.parse_args()
    document = read(options.json, options.table)
    rows: list[Any] = document["rows"]
    for name in options.net if not options.table else ():
        for batch in options.batch:
            there = [r for r in rows if (r["network"], r["batch"]) == (name, batch)]
            if options.compile:
                fill_cache(name, batch, options.threads)
            elif not there or options.again:
                row = measure(name, batch, options.rounds, options.seconds, options.threads)
                print(line(cells_of(row)), flush=True)
                rows[:] = [r for r in rows if r not in there] + [row]
                write(options.json, document)
    if options.table:
        print(table(rows))


if __name__ == "__main__":
    main()
