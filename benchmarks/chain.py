"""The paper's chain on the CPU, against other engines and under the paper's strategies.

    python -m benchmarks.chain prepare    [--only TEXT]
    python -m benchmarks.chain compare    [--seconds 90] [--only TEXT]
    python -m benchmarks.chain strategies [--seconds 90] [--only TEXT]
    python -m benchmarks.chain report

``prepare`` makes every engine once, so that what they compile is in their caches.  ``compare``
measures minidnn in turn with the fast peers, then once more in turn with the slow ones, which get
fewer runs; outputs are compared.  ``strategies`` measures minidnn alone under each strategy.  These
two start no case after their seconds are over, and go on where they were when they are started
again; ``--json`` keeps what was measured, with the machine.  ``report`` prints tables and writes
the plot.  Each engine has a process of its own.  Times include reading NCHW and writing NCHW.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from timeit import repeat, timeit
from typing import Any

import numpy as np

import minidnn as md
from benchmarks.chain_cases import CASES, Case, export_onnx, inputs_of, with_minidnn
from benchmarks.chain_report import OWN, tables
from benchmarks.figures import Results
from minidnn.bench.measure import alternate
from minidnn.bench.process import EngineError, EngineProcess
from minidnn.measure import compared, interleaved, median

ROUNDS = 9
SLOW_ROUNDS = STRATEGY_ROUNDS = 7
BURST_SECONDS = 0.12

FAST, SLOW = PACES = ("fast", "slow")
"""Peers by what they take: PyTorch's runs last up to seconds each."""
PEERS = ("onnxruntime", "openvino", "torch compile", "torch channels_last", "torch eager")

STRATEGIES = ("layers", "one", "five", "unrestricted", "model")
BLOCKS = (1, 4, 16, 8, 24, 32, 40, 12, 2, 20, 28, 36, 6, 10, 14)
"""In the order in which they are measured: a plot of the first few is a plot already."""
LONG_SECONDS = 2.0
"""A strategy that takes longer (tiny patches: a thousand times as much work) runs once."""
STRATEGY_CASES = [Case("paper", n, size) for n in BLOCKS for size in ("56x56", "224x224")]

Target = tuple[str, dict[str, Any]]
Job = Callable[[Path, int], dict[str, Any]]


def own_and(pace: str, case: Case, folder: Path, threads: int) -> dict[str, Target]:
    """For minidnn and the peers of that pace, what makes them, and options."""
    shared = _shared(case, folder, threads)
    found = {OWN: ("peers:minidnn", shared | _own(case))}
    if pace == FAST:
        on_file = shared | {"model": str(_exported(case, folder))}
        found["onnxruntime"] = ("peers:onnxruntime", on_file)
        found["openvino"] = ("peers:openvino", on_file | {"precision": "f32"})
    else:
        module = shared | {"network": "benchmarks.chain_cases:with_torch", "options": case.options}
        for mode in ("compile", "channels_last", "eager"):
            found[f"torch {mode}"] = ("peers:torch", module | {"mode": mode})
    return found


def _exported(case: Case, folder: Path) -> Path:
    """The chain's ONNX file, which is written if it is not there yet."""
    path = folder / f"{case.key}.onnx"
    if not path.exists():
        # In a process of its own, since exporting runs the network and keeps much memory.
        job = multiprocessing.get_context("spawn").Process(target=export_onnx, args=(case, path))
        job.start()
        job.join()
        if job.exitcode:
            raise SystemExit(f"{case.key}: exporting it failed")
    return path


def _shared(case: Case, folder: Path, threads: int) -> dict[str, Any]:
    inputs = folder / f"{case.size}.npz"
    if not inputs.exists():
        np.savez(inputs, inputs_of(case))
    return {"inputs": str(inputs), "threads": threads}


def _own(case: Case) -> dict[str, Any]:
    return {"network": "benchmarks.chain_cases:with_minidnn", "options": case.options}


def start(targets: Mapping[str, Target], stack: ExitStack) -> dict[str, EngineProcess]:
    """The engines, two of them made at a time; peers that cannot be made are told and left out."""

    def made(name: str) -> EngineProcess:
        target, options = targets[name]
        return EngineProcess(name, f"minidnn.bench.{target}", options)

    with ThreadPoolExecutor(2) as pool:
        pending = {name: pool.submit(made, name) for name in targets}
    engines = {}
    for name, future in pending.items():
        error = future.exception()
        if error is None:
            engines[name] = stack.enter_context(future.result())
        elif name in PEERS and isinstance(error, EngineError):
            print(f"left out: {error}")
        else:
            raise error
    return engines


def compare(case: Case, pace: str, folder: Path, threads: int) -> dict[str, Any]:
    """Measures minidnn and the peers of that pace in turn."""
    with ExitStack() as stack:
        engines = start(own_and(pace, case, folder, threads), stack)
        (own,) = engines[OWN].outputs()
        rows: dict[str, Any] = {}
        for name, engine in engines.items():
            (output,) = engine.outputs()
            deviation = float(np.abs(output - own).max() / np.abs(own).max())
            rows[name] = {"about": engine.about, "deviation": deviation}
        times = (
            alternate(engines, ROUNDS, BURST_SECONDS)
            if pace == FAST
            else alternate(engines, SLOW_ROUNDS, 0.03, least_runs=1)
        )
    found = compared(times, OWN)
    return {**case.describe(), "threads": threads, "engines": rows, **found}


def measure_strategies(case: Case, folder: Path, threads: int) -> dict[str, Any]:
    """Measures all strategies on one case, in turn, in this process: they share their threads."""
    x = inputs_of(case)
    runs, kernels = {}, {}
    for name in STRATEGIES:
        compiled = md.compile(
            with_minidnn(**case.options), case.shape, device="cpu", threads=threads, strategy=name
        )
        runs[name] = partial(compiled, x, out=compiled(x))
        kernels[name] = len(compiled.plan.graph.nodes)
    times = {name: [timeit(run, number=1)] for name, run in runs.items()}
    counts = {name: max(1, round(0.03 / once)) for name, (once,) in times.items()}
    quick = [name for name, (once,) in times.items() if once < LONG_SECONDS]

    def burst(name: str) -> float:
        runs[name]()
        return statistics.median(repeat(runs[name], number=1, repeat=counts[name]))

    times |= interleaved({name: partial(burst, name) for name in quick}, STRATEGY_ROUNDS)
    seconds = {name: vars(median(times[name])) for name in STRATEGIES}
    return {**case.describe(), "threads": threads, "kernels": kernels, "seconds": seconds}


def jobs(command: str) -> dict[str, Job]:
    """What a command measures, by name."""
    if command == "strategies":
        return {f"{c.key}, strategies": partial(measure_strategies, c) for c in STRATEGY_CASES}
    return {f"{c.key}, {pace} peers": partial(compare, c, pace) for pace in PACES for c in CASES}


def prepare(folder: Path, threads: int, only: str) -> None:
    """Makes every engine once."""
    Make = Callable[[Case, Path, int], dict[str, Target]]
    todo: dict[str, tuple[Make, Case]] = {}
    for pace in PACES:
        todo |= {f"{c.key}, {pace} peers": (partial(own_and, pace), c) for c in CASES}
    for key, (make, case) in todo.items():
        if only in key:
            with ExitStack() as stack:
                start(make(case, folder, threads), stack)
            print(key, flush=True)
    for case in STRATEGY_CASES:
        if only in f"{case.key}, strategies":
            for name in STRATEGIES:
                network = with_minidnn(**case.options)
                md.compile(network, case.shape, device="cpu", threads=threads, strategy=name)
            print(f"{case.key}, strategies", flush=True)


def measure(options: argparse.Namespace, results: Results) -> None:
    """Measures what the file lacks, until the seconds are over."""
    end = time.monotonic() + options.seconds
    todo = {k: job for k, job in jobs(options.command).items() if options.only in k}
    missing = [key for key in todo if key not in results.part(options.command)]
    while missing and time.monotonic() < end:
        key = missing.pop(0)
        begin = time.monotonic()
        results.add(options.command, key, todo[key](options.folder, options.threads))
        print(f"{key}: {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{len(missing)} of {len(todo)} left" if missing else "all measured")


def main() -> None:
    parser = argparse.ArgumentParser(description="The paper's chain against other engines.")
    commands = ("prepare", "compare", "strategies", "report")
    parser.add_argument("command", choices=commands)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/chain_cpu.json"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=90, help="start no case after that many")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--folder", type=Path, help="for inputs and ONNX files, kept if named")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.folder is None:
            options.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options.folder.mkdir(parents=True, exist_ok=True)
        run(options)


def run(options: argparse.Namespace) -> None:
    if options.command == "prepare":
        prepare(options.folder, options.threads, options.only)
        return
    results = Results(options.json, measures=options.command != "report")
    if options.command == "report":
        print(results.machine, tables(results), sep="\n\n")
    else:
        measure(options, results)


if __name__ == "__main__":
    main()
