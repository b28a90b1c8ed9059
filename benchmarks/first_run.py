"""From an imported library to the end of a network's first run, beside other engines.

    python -m benchmarks.first_run resnet50 vgg16_bn --against openvino,onnxruntime,ncnn --json FILE

Every start is a process of its own, with minidnn's kernels in its cache and the engines' files
prepared; engines start in turn, each round beginning with another one, since the first one to
take much memory waits longest for it where a host has to provide it.  Medians with 95 % intervals.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import Results
from minidnn.bench.engines import KINDS, OWN, Kind, chosen
from minidnn.bench.networks import Prepared, case_of, prepare
from minidnn.bench.results import commit, interval
from minidnn.measure import interleaved, median
from minidnn.runtime.cores import usable_cores


def first_seconds(kind: Kind, prepared: Prepared) -> float:
    """Seconds that a new engine takes to be made and to run once."""
    with kind.start(prepared) as engine:
        return engine.seconds + engine.run(1)[0]


def measure(kinds: Sequence[Kind], prepared: Prepared, rounds: int) -> dict[str, Any]:
    """Records by engine: the median of the rounds' seconds."""
    found = interleaved({k.name: partial(first_seconds, k, prepared) for k in kinds}, rounds)
    return {name: {"seconds": vars(median(times))} for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--against", default="openvino,onnxruntime,ncnn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="keep the prepared networks here")
    parser.add_argument("--json", type=Path, help="add the figures to this file")
    options = parser.parse_args()
    kinds = [KINDS[OWN], *chosen(options.against.split(","))]
    with tempfile.TemporaryDirectory() as temporary:
        results = Results(options.json or Path(temporary) / "figures.json")
        print(f"{results.machine}; {options.threads} threads; seconds\n")
        print(f"| network | batch | {' | '.join(kind.name for kind in kinds)} |")
        print("|" + "---|" * (2 + len(kinds)))
        for network in options.networks:
            for batch in options.batch:
                case = case_of(network, batch, threads=options.threads)
                prepared = prepare(case, options.folder or Path(temporary))
                for kind in kinds:
                    kind.prepare(prepared)
                engines = measure(kinds, prepared, options.rounds)
                results.add("first run", case.name, {"commit": commit(), "engines": engines})
                cells = [interval(engines[kind.name]["seconds"], 1.0, 2) for kind in kinds]
                print(f"| {network} | {batch} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
