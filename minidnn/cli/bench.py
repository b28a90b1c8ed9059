"""``minidnn bench``: measures networks on minidnn and on other engines, in interleaved rounds."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from minidnn.cli.arguments import add_tune, count, positive, size
from minidnn.errors import DeviceError, MiniDNNError, UnsupportedError

if TYPE_CHECKING:
    from minidnn.bench.devices import Cpu, Gpu
    from minidnn.bench.measure import Earlier, Step
    from minidnn.bench.networks import Case
    from minidnn.bench.results import Record, Results

HELP = "measure networks against other engines"
DESCRIPTION = """\
Runs networks of the zoo on minidnn and on other engines, one after another in short bursts, and
prints medians with 95 % confidence intervals. The weights are random (normalizations calibrated on
data) and the same for all; PyTorch's outputs in float32 are what all are compared with.

On the CPU each engine is in a process of its own and in its best exact float32 setting, unless its
name (openvino-bf16) or --precision says otherwise. On a GPU
(--device cuda) all are in one process for each case, timed by events, and the others are PyTorch's
modes: torch and torch-channels-last (with cudnn.benchmark, replayed as a CUDA graph) and
torch-compile (reduce-overhead with freezing, in whichever layout was faster); torch-max-autotune
and torch-calls (every kernel launched by Python) if --against names them.

With --train, steps are measured (forward, loss, backward, SGD with momentum), not predictions. The
others are PyTorch's: torch and torch-channels-last, torch-compile and torch-reduce-overhead (in
whichever layout was faster), with autocast and fused optimizer, all in one process. What deviates
is then the loss of the first step, which dropout changes.

On the CPU NET may be an ONNX file with one input of images and one output: then its weights are
those that it has, ONNX Runtime's outputs, without rewrites, are what all are compared with, and
engines that take PyTorch's modules are left out.

With --json, results are added to a file, by commit and machine; what it has for this commit and
machine is not measured again (--again does). With --seconds, a run that ends early leaves the
rounds so far there (on a GPU, the cases), and the next one goes on with them."""

PRECISIONS_OF_CPUS = ("float32", "bfloat16")
"""Precisions of minidnn on the CPU; each peer has its own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "networks", metavar="NET", nargs="*", help="networks of the zoo (resnet18), or ONNX files"
    )
    parser.add_argument(
        "--batch", type=_counts, default=[1], metavar="N,...", help="images a run (1)"
    )
    parser.add_argument("--size", type=size, help="224 or 192x256 (the network's own)")
    parser.add_argument("--device", default="cpu", help="cpu (that) or cuda, cuda:1")
    parser.add_argument(
        "--precision",
        type=_names,
        default=["float32"],
        metavar="PRECISION,...",
        help="minidnn's: float32 (that), bfloat16; on cuda also tf32 and float16",
    )
    parser.add_argument("--threads", type=count, help="threads of every engine (all usable cores)")
    parser.add_argument("--isa", help="avx512 or avx2: limits minidnn and peers that can be")
    add_tune(parser)
    parser.add_argument("--train", action="store_true", help="measure training steps")
    parser.add_argument(
        "--against", type=_names, metavar="ENGINE,...", help="peers (all that are installed)"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="add the results to this file")
    parser.add_argument("--again", action="store_true", help="measure what the file has, too")
    parser.add_argument(
        "--merge", metavar="FILE", type=Path, nargs="+", default=[], help="take in other results"
    )
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw the ratios as SVG")
    parser.add_argument(
        "--markdown", action="store_true", help="print one table, with ratios, at the end"
    )
    effort = parser.add_argument_group("effort")
    effort.add_argument("--rounds", type=count, default=9, help="bursts of each engine (9)")
    effort.add_argument("--burst", type=positive, default=0.3, help="seconds of a burst (0.3)")
    effort.add_argument(
        "--seconds",
        type=positive,
        help="begin no round (on a GPU, no case) that would end later than that",
    )
    effort.add_argument(
        "--folder", type=Path, help="keep the prepared networks here (a temporary folder)"
    )
    effort.add_argument(
        "--prepare", action="store_true", help="prepare them and minidnn's kernels, nothing more"
    )


def _counts(text: str) -> list[int]:
    return [count(part) for part in text.split(",")]


def _names(text: str) -> list[str]:
    return text.split(",")


def run(options: argparse.Namespace) -> int:
    from minidnn.bench.engines import OWN
    from minidnn.bench.measure import Effort
    from minidnn.bench.results import Results, commit, text

    bench = _bench(options)
    cases = _cases(options)
    results = Results.read(options.json) if options.json else Results({})
    for path in options.merge:
        if not path.exists():
            raise MiniDNNError(f"--merge {path}: there is no such file")
        results.merge(Results.read(path))
    for option, path in (("--json", options.json), ("--plot", options.plot)):
        if path is not None:
            _require_writable(option, path)
    if bench.notice and cases:
        print(f"minidnn bench: {bench.notice}", file=sys.stderr)
    key = commit(), bench.machine()
    end, longest = time.monotonic() + (options.seconds or math.inf), 0.0
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number, case in enumerate(cases):
            names = bench.suited(case)
            step = _step(case, number, len(cases))
            if options.prepare:
                step("preparing", 0, 1)
                bench.prepare(case, names, folder)
                continue
            records = results.records(*key, case)
            missing = names if options.again else _unmeasured(names, records, options.rounds)
            begin = time.monotonic()
            ahead = 0.0 if bench.in_pieces else longest
            # One case is always begun: otherwise repeated runs would make no progress.
            if missing and (begin + ahead < end or not longest):
                step("preparing", 0, 1)
                effort = Effort(options.rounds, options.burst, end)
                earlier = None if options.again else _earlier(missing, records)
                records |= bench.measure(case, missing, folder, effort, step, earlier)
                longest = max(longest, time.monotonic() - begin)
            if options.json and records:
                results.write(options.json)
            shown = {name: records[name] for name in names if name in records}
            if OWN in shown:
                _print(text(case.name, shown))
    if options.json and options.merge:
        results.write(options.json)
    return _conclude(options, results, key, [] if options.prepare else cases)


def _bench(options: argparse.Namespace) -> Cpu | Gpu:
    """The bench of the device that was asked for; all benches have the same methods."""
    from minidnn.bench.devices import cpu_bench, gpu_bench, trained_bench

    if options.train:
        _refuse(options, ("isa",), "it does not limit --train")
        _refuse(options, ("tune",), "valid is it without --train")
    if options.device == "cpu":
        if options.train:
            return trained_bench("cpu", options.against)
        return cpu_bench(options.against)
    if not options.device.startswith("cuda"):
        raise DeviceError(f"--device {options.device!r}: valid are cpu, cuda and cuda:1")
    why = f"it is of the CPU, not of {options.device!r}"
    _refuse(options, ("threads", "isa", "tune"), why)
    make = trained_bench if options.train else gpu_bench
    return make(options.device, options.against)


def _refuse(options: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """UnsupportedError if one of these options was given."""
    for name in names:
        value = getattr(options, name)
        if value not in (None, False):
            text = f"--{name}" if value is True else f"--{name} {value}"
            raise UnsupportedError(f"{text}: {why}")


def _cases(options: argparse.Namespace) -> list[Case]:
    from minidnn.backends.cpu.isa import usable_isa
    from minidnn.bench.devices import PRECISIONS
    from minidnn.bench.files import file_case
    from minidnn.bench.networks import case_of
    from minidnn.cli.networks import in_options, is_onnx
    from minidnn.runtime.cores import usable_cores

    if not options.networks and not options.merge:
        raise MiniDNNError("NET: name a network of the zoo, or results with --merge")
    on_cpu = options.device == "cpu"
    valid = PRECISIONS_OF_CPUS if on_cpu else PRECISIONS
    for precision in options.precision:
        if precision not in valid:
            raise UnsupportedError(f"--precision {precision!r}: valid are {', '.join(valid)}")
    isa = usable_isa(options.isa).name if options.isa else None
    files = list(filter(is_onnx, options.networks))
    if files and not on_cpu:
        raise UnsupportedError(
            f"NET {files[0]!r}: PyTorch's modes, which are the peers on {options.device!r}, take "
            "networks of the zoo"
        )
    if files and options.train:
        raise UnsupportedError(f"NET {files[0]!r}: --train takes networks of the zoo")
    threads = options.threads or usable_cores()
    with in_options("--size gives rows and columns"):
        cases = [
            (file_case if is_onnx(network) else case_of)(
                network, batch, options.size, threads, isa, options.tune
            )
            for network in dict.fromkeys(options.networks)
            for batch in dict.fromkeys(options.batch)
        ]
    cases = [replace(case, training=options.train) for case in cases]
    device = "cpu" if on_cpu else "cuda"
    return [
        replace(case, dtype=precision, device=device)
        for case in cases
        for precision in dict.fromkeys(options.precision)
    ]


def _require_writable(option: str, path: Path) -> None:
    """Raises MiniDNNError if a file cannot be written, before minutes of measuring."""
    existed = path.exists()
    try:
        path.open("a").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise MiniDNNError(f"{option} {path} cannot be written: {error.strerror}") from error


def _unmeasured(names: Sequence[str], records: dict[str, Record], rounds: int) -> list[str]:
    """minidnn and the engines that have fewer than ``rounds`` rounds; nothing if all have them."""
    own, *peers = names
    without = [name for name in peers if _rounds(name, records) < rounds]
    if not without and _rounds(own, records) >= rounds:
        return []
    return [own, *without]  # a ratio needs both engines in the same rounds


def _rounds(name: str, records: dict[str, Record]) -> int:
    return len(records.get(name, {}).get("rounds", ()))


def _earlier(names: Sequence[str], records: dict[str, Record]) -> Earlier | None:
    """The rounds of an earlier run in which all of these engines took part; None if there are
    none."""
    from minidnn.bench.measure import Earlier

    by_engine = {name: records.get(name, {}) for name in names}
    ((begun, count), *others) = {
        (record.get("begun"), len(record.get("rounds", ()))) for record in by_engine.values()
    }
    if others or begun is None or not count:
        return None
    return Earlier(begun, {name: record["rounds"] for name, record in by_engine.items()})


def _step(case: Case, number: int, count: int) -> Step:
    """Makes the function that draws the progress over all cases, of which this is the
    ``number``-th."""
    from minidnn.backends.cpu.compilers.process import terminal_progress

    watch, parts = terminal_progress(), 1000

    def step(what: str, done: int, total: int) -> None:
        at = number * parts + parts * done // total
        watch(f"{case.network} {case.batch}: {what}", at, count * parts)

    return step


def _print(table: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")  # the progress bar
    print(table, flush=True)


def _conclude(
    options: argparse.Namespace, results: Results, where: tuple[str, str], cases: list[Case]
) -> int:
    """Writes the table and the picture of the measured cases, or of all merged ones; returns the
    exit code."""
    from minidnn.bench.engines import OWN
    from minidnn.bench.results import failed, markdown, to_svg

    shown = {case.name: results.records(*where, case) for case in cases}
    if not cases:
        places = {(commit, machine) for commit, machine, *_ in results.cases()}
        for commit, machine, case, entry in results.cases():
            name = case if len(places) == 1 else f"{case}; {machine}; {commit}"
            if OWN in entry["engines"]:
                shown[name] = entry["engines"]
    if options.markdown:
        print(markdown(list(shown.items())))
    if options.plot:
        title = f"{where[1]}, {where[0]}" if cases else "minidnn bench"
        try:
            options.plot.write_text(to_svg(list(shown.items()), title), encoding="utf-8")
        except OSError as error:
            raise MiniDNNError(
                f"--plot {options.plot} cannot be written: {error.strerror}"
            ) from error
    return int(any(failed(record) for records in shown.values() for record in records.values()))
