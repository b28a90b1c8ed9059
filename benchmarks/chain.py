"""The paper's chain on the CPU, against other engines and under the paper's strategies.

    python -m benchmarks.chain prepare
    python -m benchmarks.chain compare    [--seconds 90] [--only TEXT]
    python -m benchmarks.chain strategies [--seconds 90]
    python -m benchmarks.chain report

``prepare`` compiles everything once, so that the others find it in the caches.  ``compare`` and
``strategies`` start no case after their seconds are over, and go on where they were when they are
started again; ``--json`` keeps what was measured, with the machine.  ``report`` prints tables and
writes the plot.  Each engine has a process of its own; the engines run in turn.  Times include
reading NCHW and writing NCHW.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chain_cases import CASES, Case, export_onnx, inputs_of
from benchmarks.chain_report import print_tables, write_plot
from benchmarks.figures import Results
from minidnn.bench.alternate import alternate
from minidnn.bench.process import EngineProcess

ROUNDS = 9
BURST_SECONDS = 0.12
HOPELESS = 3.0
"""An engine that takes that many times as long as the best peer, in the better of two runs, is no
candidate for the best: it is not measured further."""

STRATEGIES = ("layers", "one", "five", "unrestricted", "model")
BLOCKS = (*range(1, 9), *range(10, 41, 2))
STRATEGY_SIZES = ("56x56", "224x224")

Target = tuple[str, dict[str, Any]]
Job = Callable[[int], dict[str, Any]]


def peers_and_own(case: Case, folder: Path, threads: int) -> dict[str, Target]:
    """For each engine its target and options; writes the files that they read into a folder."""
    model = folder / "network.onnx"
    # In a process of its own: exporting runs the network and keeps much memory.
    export = multiprocessing.get_context("spawn").Process(target=export_onnx, args=(case, model))
    export.start()
    export.join()
    if export.exitcode:
        raise SystemExit(f"{case.key}: exporting it failed")
    shared = _shared(case, folder, threads)
    on_file = shared | {"model": str(model)}
    module = shared | {"network": "benchmarks.chain_cases:with_torch", "options": case.options}
    return {
        "minidnn": ("own:minidnn", shared | _own(case)),
        "onnxruntime": ("peers:onnxruntime", on_file),
        "openvino": ("peers:openvino", on_file | {"precision": "f32"}),
        "torch compile": ("peers:torch", module | {"mode": "compile"}),
        "torch channels_last": ("peers:torch", module | {"mode": "channels_last"}),
        "torch eager": ("peers:torch", module | {"mode": "eager"}),
    }


def strategies(case: Case, folder: Path, threads: int) -> dict[str, Target]:
    """minidnn under each strategy."""
    shared = _shared(case, folder, threads) | _own(case)
    return {name: ("own:minidnn", shared | {"strategy": name}) for name in STRATEGIES}


def _shared(case: Case, folder: Path, threads: int) -> dict[str, Any]:
    inputs = folder / "inputs.npz"
    np.savez(inputs, inputs_of(case))
    return {"inputs": str(inputs), "threads": threads}


def _own(case: Case) -> dict[str, Any]:
    return {"network": "benchmarks.chain_cases:with_minidnn", "options": case.options}


def start(targets: Mapping[str, Target], stack: ExitStack) -> dict[str, EngineProcess]:
    """The engines, one made after the other."""
    return {
        name: stack.enter_context(EngineProcess(name, f"minidnn.bench.{target}", options))
        for name, (target, options) in targets.items()
    }


def compare(case: Case, threads: int) -> dict[str, Any]:
    """Measures all engines on one case."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        engines = start(peers_and_own(case, Path(folder), threads), stack)
        outputs = {name: engine.outputs()[0] for name, engine in engines.items()}
        first = {name: min(engine.run(2)) for name, engine in engines.items()}
        best = min(seconds for name, seconds in first.items() if name != "minidnn")
        racing = {n: e for n, e in engines.items() if first[n] <= HOPELESS * best}
        times = alternate(racing, ROUNDS, BURST_SECONDS)
        expected = outputs["torch eager"]
        largest = float(np.abs(expected).max())
        rows = {
            name: {
                "seconds": times.get(name),
                "first_seconds": first[name],
                "deviation": float(np.abs(outputs[name] - expected).max()) / largest,
                "make_seconds": engine.seconds,
                "about": engine.about,
            }
            for name, engine in engines.items()
        }
    return {**case.describe(), "threads": threads, "engines": rows}


def measure_strategies(case: Case, threads: int) -> dict[str, Any]:
    """Measures all strategies on one case."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        engines = start(strategies(case, Path(folder), threads), stack)
        times = alternate(engines, 7, 0.05, 0.01)
        rows = {
            name: {"seconds": times[name], "kernels": engine.about["kernels"]}
            for name, engine in engines.items()
        }
    return {**case.describe(), "threads": threads, "strategies": rows}


def jobs(command: str, only: str) -> dict[str, Job]:
    """What a command measures, by name."""
    if command == "compare":
        found = {case.key: _bound(compare, case) for case in CASES}
    else:
        cases = [Case("paper", n, size) for size in STRATEGY_SIZES for n in BLOCKS]
        found = {case.key: _bound(measure_strategies, case) for case in cases}
    return {key: job for key, job in found.items() if only in key}


def _bound(function: Callable[[Case, int], dict[str, Any]], case: Case) -> Job:
    return lambda threads: function(case, threads)


def prepare(options: argparse.Namespace) -> None:
    """Makes every engine once, and runs nothing."""
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            for name, target in peers_and_own(case, Path(folder), options.threads).items():
                with ExitStack() as stack:
                    start({name: target}, stack)
        print(case.key, flush=True)
    for job in jobs("strategies", "").values():
        job(options.threads)


def measure(options: argparse.Namespace, results: Results) -> None:
    """Measures what the file lacks, until the seconds are over."""
    end = time.monotonic() + options.seconds
    todo = jobs(options.command, options.only)
    missing = [key for key in todo if key not in results.part(options.command)]
    while missing and time.monotonic() < end:
        key = missing.pop(0)
        begin = time.monotonic()
        results.add(options.command, key, todo[key](options.threads))
        print(f"{key}: measured in {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{len(missing)} of {len(todo)} left" if missing else "all measured")


def main() -> None:
    parser = argparse.ArgumentParser(description="The paper's chain against other engines.")
    parser.add_argument("command", choices=("prepare", "compare", "strategies", "report"))
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/chain_cpu.json"))
    parser.add_argument("--svg", type=Path, default=Path("docs/chain-strategies.svg"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=90, help="start no case after that many")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options)
        return
    results = Results(options.json, measures=options.command != "report")
    if options.command == "report":
        print_tables(results)
        write_plot(results, options.svg)
    else:
        measure(options, results)


if __name__ == "__main__":
    main()
