"""The paper's chain on the CPU, against other engines and under the paper's strategies.

    python -m benchmarks.chain screen     [--seconds 90] [--only TEXT]
    python -m benchmarks.chain compare    [--seconds 90] [--only TEXT]
    python -m benchmarks.chain prepare
    python -m benchmarks.chain strategies [--seconds 90] [--only TEXT]
    python -m benchmarks.chain report

``screen`` runs every engine once or twice: outputs are compared, and what is far from the fastest
is left out.  ``compare`` measures the others in turn.  ``strategies`` measures minidnn alone under
each strategy, once ``prepare`` has compiled it.  These commands start no case after their seconds
are over, and go on where they were when they are started again; ``--json`` keeps what was
measured, with the machine.  ``report`` prints tables and writes the plot.  Each engine has a
process of its own.  Times include reading NCHW and writing NCHW.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
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
HOPELESS = 2.5
"""A peer that takes that many times as long as the best of them, in the best of three runs, cannot
be the best: it is not measured further."""

STRATEGIES = ("layers", "one", "five", "unrestricted", "model")
BLOCKS = (1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 36, 40)
STRATEGY_CASES = [Case("paper", n, size) for size in ("56x56", "224x224") for n in BLOCKS]

Target = tuple[str, dict[str, Any]]
Job = Callable[[int], dict[str, Any]]


def peers_and_own(case: Case, folder: Path, threads: int) -> dict[str, Target]:
    """For each engine its target and options; writes the files that they read into a folder."""
    model = folder / "network.onnx"
    # In a process of its own, since exporting runs the network and keeps much memory.
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


def screen(case: Case, threads: int) -> dict[str, Any]:
    """Runs all engines, and says which are to be compared."""
    with tempfile.TemporaryDirectory() as folder:
        rows: dict[str, Any] = {}
        outputs = {}
        for name, target in peers_and_own(case, Path(folder), threads).items():
            with ExitStack() as stack:
                (engine,) = start({name: target}, stack).values()
                (outputs[name],) = engine.outputs()
                rows[name] = {
                    "seconds": min(engine.run(3)),
                    "make_seconds": engine.seconds,
                    "about": engine.about,
                }
    expected = outputs["torch eager"]
    best = min(row["seconds"] for name, row in rows.items() if name != "minidnn")
    for name, row in rows.items():
        row["deviation"] = float(np.abs(outputs[name] - expected).max() / np.abs(expected).max())
        row["races"] = name == "minidnn" or row["seconds"] <= HOPELESS * best
    return {**case.describe(), "threads": threads, "engines": rows}


def compare(case: Case, threads: int, racing: Sequence[str]) -> dict[str, Any]:
    """Measures some engines in turn."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        targets = peers_and_own(case, Path(folder), threads)
        engines = start({name: targets[name] for name in racing}, stack)
        times = alternate(engines, ROUNDS, BURST_SECONDS)
    return {**case.describe(), "threads": threads, "engines": times}


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


def jobs(command: str, results: Results) -> dict[str, Job]:
    """What a command measures, by name."""
    if command == "strategies":
        return {case.key: partial(measure_strategies, case) for case in STRATEGY_CASES}
    if command == "screen":
        return {case.key: partial(screen, case) for case in CASES}
    found: dict[str, Job] = {}
    for case in CASES:
        if case.key in results.part("screen"):
            rows = results.part("screen")[case.key]["engines"]
            racing = [name for name, row in rows.items() if row["races"]]
            found[case.key] = partial(compare, case, racing=racing)
    if len(found) < len(CASES):
        print(f"{len(CASES) - len(found)} cases are not screened yet and are left out")
    return found


def prepare(threads: int) -> None:
    """Compiles minidnn's kernels for all strategies."""
    for case in STRATEGY_CASES:
        with tempfile.TemporaryDirectory() as folder:
            for name, target in strategies(case, Path(folder), threads).items():
                with ExitStack() as stack:
                    start({name: target}, stack)
        print(case.key, flush=True)


def measure(options: argparse.Namespace, results: Results) -> None:
    """Measures what the file lacks, until the seconds are over."""
    end = time.monotonic() + options.seconds
    todo = {k: job for k, job in jobs(options.command, results).items() if options.only in k}
    missing = [key for key in todo if key not in results.part(options.command)]
    while missing and time.monotonic() < end:
        key = missing.pop(0)
        begin = time.monotonic()
        results.add(options.command, key, todo[key](options.threads))
        print(f"{key}: {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{len(missing)} of {len(todo)} left" if missing else "all measured")


def main() -> None:
    parser = argparse.ArgumentParser(description="The paper's chain against other engines.")
    commands = ("screen", "compare", "prepare", "strategies", "report")
    parser.add_argument("command", choices=commands)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/chain_cpu.json"))
    parser.add_argument("--svg", type=Path, default=Path("docs/chain-strategies.svg"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=90, help="start no case after that many")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.threads)
        return
    results = Results(options.json, measures=options.command != "report")
    if options.command == "report":
        print_tables(results)
        if results.part("strategies"):
            write_plot(results, options.svg)
    else:
        measure(options, results)


if __name__ == "__main__":
    main()
