"""The zoo on GPUs: minidnn beside PyTorch, every cell's engines in turn in one process.

    python -m benchmarks.cuda_zoo results.jsonl --seconds 500
    python -m benchmarks.cuda_zoo results.jsonl --networks resnet50 --batches 1 128
    python -m benchmarks.cuda_zoo results.jsonl --gpus 0 1 --workers 6
    python -m benchmarks.cuda_zoo_report results.jsonl

A cell is a network, a precision and a batch size.  Engines are

- ``minidnn``: compiled with the default tuning, bound to its arrays (a CUDA graph); networks
  beyond the classics are taken from torchvision's modules.  ``minidnn-contractions`` and
  ``minidnn-layers`` fuse less, by the strategies of these names (``--regions`` times regions too);
- ``torch``, ``torch-channels-last``: PyTorch's modules with cudnn.benchmark, captured as a CUDA
  graph; ``torch-calls`` is NCHW with every kernel launched by Python;
- ``torch-compile``: torch.compile(mode="reduce-overhead") with freezing, on weights and images in
  the layout in which eager was faster; ``torch-max-autotune`` likewise, where it is asked for.

All of them read one input on the GPU and are timed in turn, round after round, by events around
several calls; the median over the rounds counts, and its 95 % interval from order statistics.

Compiling takes processor time above all, so several workers a GPU prepare cells side by side; what
is measured, by the engines' own tuning too, is measured by one worker a GPU at a time.  Where there
are enough cores, two for each GPU are kept for that.

Errors are the largest deviations of an engine's output from PyTorch's in float32 (without TF32), by
the largest value.

Cells come in the order of ``STAGES``, all networks of a stage before the next, so that what there
is so far is of use; ``--beyond`` puts networks beyond the classics among them.  Finished cells of
this commit are skipped, those in which something failed come again.  After ``--seconds`` all is
ended, and starting the command again goes on.  An engine that fails stands in its cell with its
error; a worker that dies, or leaves the GPU unusable, is started again, and its cell tried once
more.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.cuda_zoo_queue import Cell, Pool, Setting
from minidnn import models
from minidnn.bench.devices import PEERS, PRECISIONS, visible
from minidnn.bench.engines import OWN
from minidnn.bench.networks import BEYOND
from minidnn.measure import line_of

USUAL = (OWN, *PEERS[:3])
ENGINES = (OWN, *PEERS, f"{OWN}-contractions", f"{OWN}-layers")
NETWORKS = models.CLASSIC
BEYOND_AFTER = ("float16", 32)
BEYOND_STAGES = (("float16", 1), ("float16", 32), ("float32", 1), ("float32", 32))
STAGES = (
    *(("float16", 128), ("float16", 1), ("float32", 128), ("tf32", 128), ("float16", 32)),
    *(("float32", 1), ("tf32", 1), ("float32", 32), ("tf32", 32)),
)
KEY = ("commit", "network", "precision", "batch")
UNUSABLE = 3
GIGABYTES = 125.0
"""Of a GPU's memory, for what its workers hold at once."""
MEASURING_CORES = 2


@dataclass(frozen=True)
class Stage:
    """All networks of the zoo, or all beyond it, in one precision at one batch size."""

    precision: str
    batch: int
    beyond: bool

    @staticmethod
    def of(text: str) -> Stage:
        """What ``tf32:128`` or ``beyond:float16:1`` says."""
        *place, precision, batch = ["", *text.split(":")]
        if place not in ([""], ["", "beyond"]) or precision not in PRECISIONS:
            batch = ""
        if not batch.isdecimal() or int(batch) < 1:
            raise argparse.ArgumentTypeError(
                f"{text!r}; valid is PRECISION:BATCH, or beyond:PRECISION:BATCH for the networks "
                f"beyond the classics, PRECISION one of {', '.join(PRECISIONS)}"
            )
        return Stage(precision, int(batch), len(place) == 2)


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, _exit)
    found = list(missing(cells(options), options))
    pool = Pool(
        found,
        [setting(options, index, gpu) for index, gpu in enumerate(options.gpus)],
        gigabytes=GIGABYTES,
        cell_seconds=options.cell_seconds,
        report=lambda cell: report(cell, options.results),
    )
    left = pool.run(options.seconds)
    if left:
        print(f"{left} cells are left; start again to go on", flush=True)
    else:
        print("all cells are measured", flush=True)


def _exit(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def cells(options: argparse.Namespace) -> list[tuple[str, str, int]]:
    """What is to be measured: STAGES in their order, then what else was asked for."""
    networks = mixed(options.networks)
    if options.stages:
        return [
            (name, stage.precision, stage.batch)
            for stage in options.stages
            for name in (BEYOND if stage.beyond else networks)
        ]
    asked = [(p, b) for p in options.precisions for b in options.batches]
    stages = [one for one in STAGES if one in asked] + [one for one in asked if one not in STAGES]
    found = []
    for stage in stages:
        found += [(name, *stage) for name in networks]
        if options.beyond and stage == BEYOND_AFTER:
            found += [(name, *one) for one in BEYOND_STAGES for name in BEYOND]
    return found


def mixed(networks: Sequence[str]) -> list[str]:
    """Networks of one family far apart: much of them is equal, and what workers tune side by side
    they tune twice."""
    families: dict[str, list[str]] = {}
    for name in networks:
        families.setdefault(name.rstrip("bn0123456789_"), []).append(name)
    turns = itertools.zip_longest(*families.values())
    return [name for turn in turns for name in turn if name is not None]


def engines(precision: str, options: argparse.Namespace) -> list[str]:
    """Those of a cell."""
    left_out = set(options.leave_out)
    return [e for e in options.engines if left_out.isdisjoint((e, f"{e}:{precision}"))]


def left_out(text: str) -> str:
    """An engine, or one in one precision, such as "torch-channels-last:float32".

    Raises:
        ArgumentTypeError: there is no such engine or precision.
    """
    engine, colon, precision = text.partition(":")
    if engine not in ENGINES or (colon and precision not in PRECISIONS):
        valid = f"one of {', '.join(ENGINES)}, alone or with one of :{', :'.join(PRECISIONS)}"
        raise argparse.ArgumentTypeError(f"{text!r}: valid is {valid}")
    return text


def missing(asked: Iterable[tuple[str, str, int]], options: argparse.Namespace) -> list[Cell]:
    """Those without a result, then those in which something failed."""
    done = finished(options.results, options.any_commit)
    found: list[Cell] = []
    again: list[Cell] = []
    for name, precision, batch in asked:
        key = (None if options.any_commit else options.commit, name, precision, batch)
        failed = done.get((*key, tuple(engines(precision, options))))
        if failed is False:
            continue
        cell = dict(zip(KEY, (options.commit, *key[1:]), strict=True))
        cell["engines"] = engines(precision, options)
        cell["workers"] = options.workers
        (again if failed else found).append(Cell(cell, gigabytes(precision, batch)))
    return found + again


def gigabytes(precision: str, batch: int) -> float:
    """What a worker may hold, all engines together; an estimate for the largest networks."""
    each = 0.08 if precision in ("float16", "bfloat16") else 0.13
    return 3.0 + each * batch


def setting(options: argparse.Namespace, index: int, gpu: int) -> Setting:
    """How the workers of one GPU are started."""
    cores = sorted(os.sched_getaffinity(0))
    workers = options.workers * len(options.gpus)
    kept: list[int] = []
    if len(cores) >= 2 * MEASURING_CORES * len(options.gpus) + workers:
        kept = cores[: MEASURING_CORES * len(options.gpus)]
    own = kept[index * MEASURING_CORES : (index + 1) * MEASURING_CORES]
    command = [sys.executable, "-m", "benchmarks.cuda_zoo_cell"]
    command += ["--rounds", str(options.rounds), "--tune", options.tune]
    command += [] if options.regions is None else ["--regions", str(options.regions)]
    command += ["--cores", *map(str, own)]
    threads = str(max(1, (len(cores) - len(kept)) // workers))
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": visible(gpu),
        "OMP_NUM_THREADS": threads,
        "TORCHINDUCTOR_COMPILE_THREADS": threads,
    }
    return Setting(tuple(command), environment, frozenset(cores) - set(kept), options.workers)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=[*NETWORKS, *BEYOND])
    usual = ["float16", "float32", "tf32"]
    parser.add_argument("--precisions", nargs="+", default=usual, choices=PRECISIONS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32, 128])
    parser.add_argument("--engines", nargs="+", default=list(USUAL), choices=ENGINES)
    parser.add_argument(
        "--leave-out",
        nargs="+",
        default=[],
        type=left_out,
        help="such as torch-compile:float32",
    )
    parser.add_argument("--beyond", action="store_true", help=f"also {', '.join(BEYOND)}")
    parser.add_argument(
        "--stages", nargs="+", type=Stage.of, help="such as tf32:128 beyond:float16:1, in order"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--gpus", nargs="+", type=int, default=[0])
    parser.add_argument("--workers", type=int, default=1, help="of each GPU")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--cell-seconds", type=float, default=600.0, help="at most for one cell")
    parser.add_argument("--commit", default=commit(), help="where there is no git repository")
    parser.add_argument("--any-commit", action="store_true", help="skip other commits' cells too")
    parser.add_argument("--tune", default="quick")
    parser.add_argument(
        "--regions", type=int, help="time minidnn's regions one by one, keep so many slowest"
    )
    return parser.parse_args()


def commit() -> str:
    try:
        asked = ["git", "rev-parse", "--short=12", "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def finished(results: Path, any_commit: bool = False) -> dict[tuple[Any, ...], bool]:
    """Of the cells that were measured last under each key: whether something failed."""
    found: dict[tuple[Any, ...], bool] = {}
    for cell in read(results):
        commit = None if any_commit else cell["commit"]
        key = (commit, *(cell[name] for name in KEY[1:]), tuple(cell["engines"]))
        found[key] = bool(cell["failed"])
    return found


def read(results: Path) -> list[dict[str, Any]]:
    """The cells of a file; a line that was not written to its end is none."""
    if not results.exists():
        return []
    found = []
    for text in results.read_text().splitlines():
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            print(f"{results}: a line of {len(text)} characters is broken and left out")
    return found


def report(cell: dict[str, Any], results: Path) -> None:
    """Appends a cell to the file, and says what was found."""
    with results.open("a+b") as file:
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":  # a line that was not written to its end
                file.write(b"\n")
        file.write(line_of(cell).encode() + b"\n")
    print(line(cell), flush=True)


def shown(error: float | None) -> str:
    """A deviation, which is None where results are not finite."""
    return "not finite" if error is None else f"{error:.1e}"


def summed(found: list[dict[str, Any]], most: int) -> dict[str, Any]:
    """What is kept of regions: how many, milliseconds with a convolution or linear layer and
    without, one by one, and the slowest."""
    contracting = sum(one["us"] for one in found if one["contracts"]) / 1e3
    return {
        "count": len(found),
        "contracting_ms": contracting,
        "other_ms": sum(one["us"] for one in found) / 1e3 - contracting,
        "slowest": sorted(found, key=lambda one: -float(one["us"]))[:most],
    }


def line(cell: dict[str, Any]) -> str:
    ms = cell["ms"]
    own = ms.get(OWN)
    peers = [value for engine, value in ms.items() if engine != OWN]
    ratio = f"{min(peers) / own:5.2f}x" if own and peers else "     -"
    texts = " ".join(f"{engine} {value:8.3f}" for engine, value in ms.items())
    errors = ", ".join(f"{engine} {shown(most)}" for engine, most in cell["errors"].items())
    failed = "".join(f"; {engine} failed: {text}" for engine, text in cell["failed"].items())
    return (
        f"{cell['network']:<14} {cell['precision']:<8} {cell['batch']:>4} {ratio} {texts} ms; "
        f"ready after {cell['compile_seconds']} s; errors {errors}{failed}"
    )


if __name__ == "__main__":
    main()
