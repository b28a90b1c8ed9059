"""How much faster networks become with more threads on the CPU, beside other engines.

    python -m benchmarks.scaling resnet50 vgg16 --batch 64 --threads 1 2 4 8 16 \\
        --against onnxruntime torch --json FILE

Every engine is a process of its own, and one runs at a time; all may use the same cores, one
logical core of each physical one, as many as the largest number of threads.  First minidnn and the
peers run in turn on the largest number of threads, then minidnn alone on one thread and on the
others, then, as far as ``--seconds`` allow, the peers there, too. What the file has is not measured
again. Beside the networks stands how a loop of multiply-adds scales: clocks fall when many cores
are busy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Results, markdown
from minidnn.backends.cpu.isa import best_isa
from minidnn.backends.cpu.machine import measured_rates
from minidnn.bench.engines import KINDS, OWN, Kind, chosen
from minidnn.bench.measure import deviation
from minidnn.bench.networks import Case, Prepared, case_of, prepare
from minidnn.bench.process import EngineProcess
from minidnn.bench.results import commit
from minidnn.measure import LoadWatch, median, ratio

TOPOLOGY = Path("/sys/devices/system/cpu")

REST_SECONDS = 0.05
"""Before a burst: threads of the engine before it stop spinning."""

SHORT_SECONDS = 0.5


def physical_cores(usable: Sequence[int]) -> list[int]:
    """The first usable logical core of every physical one."""
    found: dict[str, int] = {}
    for core in sorted(usable):
        path = TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list"
        try:
            siblings = path.read_text(encoding="ascii").strip()
        except OSError:
            siblings = str(core)
        found.setdefault(siblings, core)
    return list(found.values())


@contextmanager
def on(cores: Sequence[int]) -> Iterator[None]:
    """This process, and those that it starts meanwhile, on these cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run_engines(
    kinds: Sequence[Kind], prepared: Prepared, cores: Sequence[int], rounds: int
) -> dict[str, Any]:
    """Records of the engines on these cores; "others" is the largest share of these cores that
    other processes had during a round."""
    expected = np.load(prepared.expected)
    records: dict[str, Any] = {}
    with on(cores), ExitStack() as stack:
        engines = {kind.name: stack.enter_context(kind.start(prepared)) for kind in kinds}
        for name, engine in engines.items():
            (output,) = engine.outputs()
            records[name] = {"deviation": deviation(output, expected), **engine.about}
        found = [{name: _burst(e) for name, e in engines.items()} for _ in range(rounds)]
    times = {name: [each[name][0] for each in found] for name in engines}
    for name, seconds in times.items():
        records[name]["seconds"] = median(seconds).value
        records[name]["others"] = max(each[name][1] for each in found)
        if name != OWN:
            records[name]["ratio"] = vars(ratio(seconds, times[OWN]))
    return records


def _burst(engine: EngineProcess) -> tuple[float, float]:
    """Seconds of a run, the median of three short ones; the share that other processes had."""
    time.sleep(REST_SECONDS)
    watch = LoadWatch(engine.pid)
    seconds = engine.run(1)[0]
    if seconds < SHORT_SECONDS:
        seconds = statistics.median(engine.run(3))
    return seconds, watch.others()


def measure(options: argparse.Namespace, results: Results, folder: Path) -> None:
    end = time.monotonic() + options.seconds
    cores = physical_cores(list(os.sched_getaffinity(0)))[: max(options.threads)]
    if len(cores) < max(options.threads):
        raise SystemExit(f"--threads {max(options.threads)}: there are {len(cores)} cores")
    peers = chosen(options.against)
    counts = sorted(options.threads, reverse=True)

    def case(network: str, threads: int) -> Case:
        return case_of(network, options.batch, threads=threads)

    with on(cores):
        rates = measured_rates(len(cores))
        isa = best_isa().name
        peak = {str(n): rates.peak(isa, n) for n in (1, len(cores))}
        results.add("machine rates", isa, {"flops by threads": peak, "copy": rates.copy})
        ready = {network: prepare(case(network, counts[0]), folder) for network in options.networks}
    own, every = [KINDS[OWN]], [KINDS[OWN], *peers]
    most, *fewer = counts
    plan = [(most, every), *((n, own) for n in (*fewer[-1:], *fewer[:-1]))]
    plan += [(n, every) for n in reversed(fewer)]
    for n, kinds, network in ((n, kinds, net) for n, kinds in plan for net in options.networks):
        known = results.part(network).get(str(n), {})
        if all(kind.name in known.get("engines", ()) for kind in kinds):
            continue
        if time.monotonic() > end:
            break
        prepared = Prepared(case(network, n), ready[network].folder)
        records = run_engines(kinds, prepared, cores, options.rounds)
        about = {"commit": commit(), "batch": options.batch}
        results.add(network, str(n), {**about, "engines": records})
        shown = ", ".join(f"{k} {1e3 * r['seconds']:.0f} ms" for k, r in records.items())
        print(f"{network}, {n} threads: {shown}", flush=True)


def report(results: Results, networks: Sequence[str]) -> Iterator[str]:
    """A table: times, how much faster than on one thread, and the peers' ratios."""
    part = {network: results.part(network) for network in networks}
    names = {k: None for p in part.values() for r in p.values() for k in r["engines"]}
    peers = [name for name in names if name != OWN]
    for isa, record in results.part("machine rates").items():
        rates = {int(n): rate for n, rate in record["flops by threads"].items()}
        text = ", ".join(f"{n}: {rate / 1e9:.0f} GFLOP/s" for n, rate in sorted(rates.items()))
        yield f"multiply-adds, {isa}, by threads: {text} ({max(rates.values()) / rates[1]:.1f})\n"
    rows = []
    for network, records in part.items():
        one = records.get("1", {}).get("engines", {})
        for n, record in sorted(records.items(), key=lambda item: int(item[0])):
            engines = record["engines"]
            cells = [network, n, f"{1e3 * engines[OWN]['seconds']:.0f}"]
            cells.append(_faster(one, engines, OWN))
            for name in peers:
                found = engines.get(name)
                text = "" if found is None else "{value:.2f} [{low:.2f}, {high:.2f}]"
                own = "" if found is None else _faster(one, engines, name)
                text = text.format(**found["ratio"]) if found else text
                cells.append(f"{text}; {own}" if own else text)
            rows.append(cells)
    titles = ["network", "threads", f"{OWN}, ms", "faster than 1", *peers]
    yield from markdown(titles, rows).splitlines()


def _faster(one: dict[str, Any], engines: dict[str, Any], name: str) -> str:
    if name not in one:
        return ""
    return f"{one[name]['seconds'] / engines[name]['seconds']:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--against", nargs="*", default=[], help="peers (none)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing after that")
    parser.add_argument("--folder", type=Path, help="keep the prepared networks here")
    parser.add_argument("--json", type=Path, help="add the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        results = Results(options.json or Path(temporary) / "scaling.json")
        measure(options, results, options.folder or Path(temporary))
        print(results.machine, "", *report(results, options.networks), sep="\n")


if __name__ == "__main__":
    main()
