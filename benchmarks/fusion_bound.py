"""The most that fusion by itself can gain: the time of layers that a contraction could take.

    python -m benchmarks.fusion_bound densenet121 squeezenet1_1 --batch 1 16 [--json FILE]

A network whose layers run one by one spends a part of its time in convolutions and linear layers.
Fusion can make all the rest vanish and no more, so layers over contractions bounds what it gains
(`benchmarks/fusion.py` measures what it does gain), unless contractions become faster by it.
What stays after fusion (poolings that no contraction takes, the first and the last layer's other
order of values) is told as well.  The network with each layer by itself and with everything fused
run in turn, every kernel timed; medians of the rounds' ratios with 95 % intervals.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import minidnn as md
from benchmarks.figures import Results
from minidnn import models
from minidnn.backends.cpu.backend import CpuProgram
from minidnn.bench.results import commit, interval
from minidnn.measure import median, ratio
from minidnn.report.explain import contracts
from minidnn.runtime.cores import usable_cores

ALONE, FUSED = "layers", "model"


def measure(name: str, batch: int, threads: int, rounds: int) -> dict[str, Any]:
    """Seconds of contractions and of all else, in each round, by strategy."""
    network = models.get_model(name)
    shape = (batch, *network.input_shape)
    programs = {
        strategy: md.compile(
            network, shape, device="cpu", strategy=strategy, threads=threads
        ).program
        for strategy in (ALONE, FUSED)
    }
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    found: dict[str, Any] = {s: {"contractions": [], "other": []} for s in programs}
    for number in range(rounds + 1):
        for strategy, program in programs.items():
            assert isinstance(program, CpuProgram)
            contractions, other = _parts(program, x)
            if number:  # the first run finds memory that nobody has used
                found[strategy]["contractions"].append(contractions)
                found[strategy]["other"].append(other)
    about = {"network": name, "batch": batch, "threads": threads, "commit": commit()}
    return {**about, **figures_of(found)}


def figures_of(found: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    """What is kept of the seconds in each round: medians, the gain and its bound."""
    alone, fused = (found[strategy]["contractions"] for strategy in (ALONE, FUSED))
    total, after = (
        [a + b for a, b in zip(parts["contractions"], parts["other"], strict=True)]
        for parts in (found[ALONE], found[FUSED])
    )
    times = {ALONE: total, f"{ALONE}, contractions": alone}
    times |= {FUSED: after, f"{FUSED}, contractions": fused}
    return {
        "rounds": len(total),
        "seconds": {name: vars(median(seconds)) for name, seconds in times.items()},
        "bound": vars(ratio(total, alone)),
        "gain": vars(ratio(total, after)),
    }


def _parts(program: CpuProgram, x: np.ndarray) -> tuple[float, float]:
    outputs = [np.empty(value.shape, np.float32) for value in program.plan.graph.outputs]
    program.run([x], outputs)
    times = program.seconds_of_nodes([x], outputs)
    contractions = sum(seconds for node, seconds in times.items() if contracts(node))
    return contractions, sum(times.values()) - contractions


def line(record: Mapping[str, Any]) -> str:
    """A row of the table."""
    cells = [record["network"], str(record["batch"])]
    for strategy, gain in ((ALONE, "bound"), (FUSED, "gain")):
        for name in (strategy, f"{strategy}, contractions"):
            cells.append(f"{1e3 * record['seconds'][name]['value']:.2f}")
        cells.append(interval(record[gain], 1.0, 3))
    return f"| {' | '.join(cells)} |"


TITLES = (
    "| network | batch | layers, ms | of these contractions | bound of the gain | fused, ms | "
    "of these contractions | gain |\n|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description="The most that fusion by itself can gain.")
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="add the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        results = Results(options.json or Path(temporary) / "figures.json")
        print(f"{results.machine}; {options.threads} threads\n\n{TITLES}")
        for name in options.networks:
            for batch in options.batch:
                record = measure(name, batch, options.threads, options.rounds)
                results.add("fusion bound", f"{name}, batch {batch}", record)
                print(line(record), flush=True)


if __name__ == "__main__":
    main()
