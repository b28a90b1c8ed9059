"""What fusion alone gains in training: steps of each network under strategies, in turn.

    python -m benchmarks.fusion_step results.jsonl --gpus 0 1 2 3 --seconds 300
    python -m benchmarks.fusion_step results.jsonl --stages float32:64 --networks resnet50
    python -m benchmarks.fusion_step results.jsonl --device cpu --networks digits \
--stages float32:16 --strategies layers model

- layers: every layer by itself, one after another, by our kernels and cuDNN's convolutions.
- cudnn: every layer by cuDNN's function for it, where there is one, forwards and backwards.
- model: everything that minidnn does, with the same convolutions to choose from.

Each strategy has a process of its own, all of a network are made side by side and then take steps
in turn, round after round; a network has its GPU to itself.  A burst of steps is timed from an idle
device to an idle device, and medians count.  "contracting" and "other" are milliseconds of regions
with a convolution or product and of those without, timed one by one, so that they are more than the
whole.  "losses" are those of the third step, which starts from the same weights on the same batch.

Where the strategies do not fit in the GPU's memory side by side, all of them take half the batch.
Each row is written when it is ready; rows of this commit that the file has are skipped.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

import numpy as np

import minidnn as md
from benchmarks.figures import machine
from minidnn import models
from minidnn.bench.devices import visible
from minidnn.bench.process import EngineError, EngineProcess
from minidnn.bench.results import commit
from minidnn.bench.worker import LoadedEngine
from minidnn.measure import compared, interleaved, line_of
from minidnn.report.explain import contracts
from minidnn.runtime.program import TimedProgram

STRATEGIES = ("layers", "cudnn", "model")
NETWORKS = models.CLASSIC
STAGES = ("bfloat16:128", "float32:64")
TARGET = "benchmarks.fusion_step:engine"
WARM_UP, LONGEST = 3, 1e6
KEY = ("commit", "network", "precision", "asked")


@dataclass(frozen=True)
class Stage:
    """A precision and a batch."""

    precision: str
    batch: int

    @staticmethod
    def of(text: str) -> Stage:
        """What ``bfloat16:128`` says."""
        precision, _, batch = text.partition(":")
        if not precision or not batch.isdecimal() or int(batch) < 1:
            raise argparse.ArgumentTypeError(f"{text!r}; valid is PRECISION:BATCH")
        return Stage(precision, int(batch))


# One strategy, in a process of its own


def engine(
    network: str, shape: Sequence[int], precision: str, device: str, strategy: str, burst: float
) -> LoadedEngine:
    """A trainer whose run is a burst of steps of about so many seconds; it gives those of a step,
    and tells of its regions if the device times them."""
    trainer = md.Trainer(
        models.get_model(network),
        tuple(shape),
        md.losses.CrossEntropy(),
        md.optim.SGD(0.01, momentum=0.9, weight_decay=5e-4),
        device=device,
        precision=precision,
        strategy=strategy,
    )
    random = np.random.default_rng(0)
    x: Any = random.standard_normal(shape, np.float32)
    target: Any = random.integers(0, 10, shape[0])
    on_gpu = device.startswith("cuda")
    if on_gpu:
        import cupy

        x, target = cupy.asarray(x), cupy.asarray(target)

    def seconds(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            loss = trainer.step(x, target)
        float(loss)  # waits for the device
        return (time.perf_counter() - begin) / count

    losses = [float(trainer.step(x, target)) for _ in range(WARM_UP)]
    program = trainer.step_program
    about: dict[str, Any] = {"loss": losses[-1], "nodes": len(program.graph.nodes)}
    about |= {"bytes": getattr(program.program, "bytes", None)}  # a GPU's program knows
    about |= {"regions": regions(trainer), "machine": machine(on_gpu)}
    count = max(1, round(burst / seconds(1)))
    return LoadedEngine(partial(seconds, count), about=about)


def regions(trainer: md.Trainer) -> dict[str, float] | None:
    """Milliseconds of regions with a convolution or product, and of all others, one by one; None
    if the device does not time them."""
    program = trainer.step_program
    if not isinstance(program.program, TimedProgram):
        return None
    nodes = {node.name: node for node in program.graph.nodes}
    found = program.profile(*program.random_inputs(), runs=3).regions
    parts = {"contracting": 0.0, "other": 0.0}
    for region in found:
        part = "contracting" if contracts(nodes[region.name]) else "other"
        parts[part] += 1e3 * region.seconds
    return parts


# All strategies of a network


def measured(name: str, stage: Stage, gpu: int, given: argparse.Namespace) -> dict[str, Any]:
    """A row."""
    size = models.get_model(name).input_shape
    row: dict[str, Any] = {"commit": given.commit, "network": name, "precision": stage.precision}
    row |= {"asked": stage.batch, "batch": stage.batch}
    while True:
        try:
            return row | of_batch(name, (row["batch"], *size), stage.precision, gpu, given)
        except EngineError as error:
            if "OutOfMemory" not in str(error) or row["batch"] == 1:
                return row | {"failed": str(error)[-300:]}
        row["batch"] = max(1, row["batch"] // 2)


def of_batch(
    name: str, shape: Sequence[int], precision: str, gpu: int, given: argparse.Namespace
) -> dict[str, Any]:
    """Times of all strategies, and what they say of themselves."""
    options = {"network": name, "shape": shape, "precision": precision, "device": given.device}
    options |= {"burst": given.burst}
    environment = {"CUDA_VISIBLE_DEVICES": visible(gpu)} if given.device == "cuda" else {}

    def start(strategy: str) -> EngineProcess:
        mine = {**options, "strategy": strategy}
        left = max(1.0, min(given.end - time.monotonic(), LONGEST))
        return EngineProcess(f"{name} {strategy}", TARGET, mine, environment, left)

    with ExitStack() as stack, ThreadPoolExecutor(len(given.strategies)) as pool:
        begun = {strategy: pool.submit(start, strategy) for strategy in given.strategies}
        for future in begun.values():
            if future.exception() is None:
                stack.enter_context(future.result())
        made = {strategy: future.result() for strategy, future in begun.items()}
        takes = {s: partial(_seconds, process) for s, process in made.items()}
        times = interleaved(takes, given.rounds)
    about = {strategy: process.about for strategy, process in made.items()}
    return {
        **about[given.strategies[0]]["machine"],
        **compared(times, given.strategies[-1]),
        "made in": {s: round(process.seconds, 2) for s, process in made.items()},
        "losses": {s: one["loss"] for s, one in about.items()},
        "bytes": {s: one["bytes"] for s, one in about.items()},
        "nodes": {s: one["nodes"] for s, one in about.items()},
        "regions": {s: one["regions"] for s, one in about.items()},
    }


def _seconds(process: EngineProcess) -> float:
    return float(process.outputs()[0])


# All networks


def wanted(given: argparse.Namespace) -> Iterator[tuple[str, Stage]]:
    """What the file has not yet: stage by stage, the deepest networks first."""
    done = {tuple(row[key] for key in KEY) for row in read(given.results) if "failed" not in row}
    for stage in given.stages:
        for name in sorted(given.networks, key=_depth, reverse=True):
            if (given.commit, name, stage.precision, stage.batch) not in done:
                yield name, stage


def _depth(name: str) -> int:
    """About how many layers a network has: the number in its name, for DenseNets twice that."""
    number = "".join(c for c in name.partition("_")[0] if c.isdecimal())
    unnamed = 96 if name.startswith("inception") else 8
    return int(number or unnamed) * (2 if name.startswith("densenet") else 1)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def line(row: Mapping[str, Any]) -> str:
    """A row, to be read meanwhile."""
    head = f"{row['network']:<14} {row['precision']:<9} {row['batch']:>4}"
    if "failed" in row:
        return f"{head} failed: {row['failed']}"
    times = " ".join(f"{s} {1e3 * one['value']:8.3f}" for s, one in row["seconds"].items())
    ratios = " ".join(f"{one['value']:5.2f}" for one in row["ratio"].values())
    return f"{head} {times} ms; ratios {ratios}; made in {max(row['made in'].values()):.0f} s"


def measure_all(given: argparse.Namespace) -> None:
    """Measures what is wanted, a network a GPU at a time, until the time is over."""
    lanes: SimpleQueue[int] = SimpleQueue()
    for gpu in given.gpus:
        lanes.put(gpu)
    writing = Lock()

    def one(name: str, stage: Stage) -> None:
        if time.monotonic() >= given.end:
            return
        gpu = lanes.get()
        try:
            row = measured(name, stage, gpu, given)
        finally:
            lanes.put(gpu)
        with writing:
            with given.results.open("a", encoding="utf-8") as file:
                file.write(line_of(row) + "\n")
            print(line(row), flush=True)

    with ThreadPoolExecutor(len(given.gpus)) as pool:
        for future in [pool.submit(one, *each) for each in wanted(given)]:
            future.result()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("results", type=Path)
    add("--networks", nargs="+", default=NETWORKS, choices=models.list_models(), metavar="NETWORK")
    stages = [Stage.of(text) for text in STAGES]
    add("--stages", nargs="+", type=Stage.of, default=stages, help=" ".join(STAGES))
    add("--strategies", nargs="+", default=STRATEGIES, help="the last is what others are beside")
    add("--device", choices=("cuda", "cpu", "reference"), default="cuda")
    add("--gpus", nargs="+", type=int, default=[0])
    add("--rounds", type=int, default=9)
    add("--burst", type=float, default=0.1, help="seconds of steps a round")
    add("--seconds", type=float, default=math.inf, help="for all")
    add("--commit", default=commit(), help="where there is no git repository")
    given = parser.parse_args(arguments)
    given.end = time.monotonic() + given.seconds
    measure_all(given)


if __name__ == "__main__":
    main()
