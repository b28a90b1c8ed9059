"""Training on many GPUs, on paper: what adding up gradients takes, by a simulation.

python -m benchmarks.scale_plan > docs/explanation/a-thousand-gpus.md

An all-reduce is simulated message by message: by a ring, by two binary trees that share the data,
and within hosts first and then between them.  A message takes a latency and its bytes over a
bandwidth; a rank begins when its gradients are there, which stragglers have later.  The buckets,
and when each is ready, are those of the network's own training step, whose arithmetic before a
bucket is taken for time.  ``--measured`` is what ``benchmarks/distributed_step.py`` printed, a line
a run: its first time alone is taken for that of a step, and each is predicted beside what was
measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "distributed_2_h100.jsonl"

Times = np.ndarray
"""Seconds at which something is there, one for each rank."""


@dataclass(frozen=True)
class Link:
    """What carries messages: seconds for the first byte, and bytes a second in one direction."""

    latency: float
    bandwidth: float

    def seconds(self, size: float) -> float:
        return self.latency + size / self.bandwidth


AllReduce = Callable[[float, Times], Times]
"""When each rank has the sum of so many bytes, of which each has its own at these times."""


def ring(link: Link) -> AllReduce:
    """Each rank sends a part to the next one, 2 (n - 1) times, what it has received before."""

    def seconds(size: float, ready: Times) -> Times:
        return _around(ready, 2 * (len(ready) - 1), link.seconds(size / len(ready)))

    return seconds


def _around(ready: Times, steps: int, each: float) -> Times:
    now = ready
    for _ in range(steps):
        now = np.maximum(now, np.roll(now, 1)) + each
    return now


def trees(link: Link, chunk: float = 1 << 19) -> AllReduce:
    """Two binary trees add up one half each, and hand it down again, chunk by chunk.

    A rank is a leaf in one tree and has two children in the other: by four messages at once, two
    from these and one from each parent, everything that it receives passes its link.
    """
    edge = Link(link.latency, link.bandwidth / 4)

    def seconds(size: float, ready: Times) -> Times:
        count = len(ready)
        if count == 1:
            return ready
        half = size / 2
        chunks = max(1, ceil(half / chunk))
        wire = half / chunks / edge.bandwidth
        done = ready.copy()
        for order in (np.arange(count), np.arange(count)[::-1]):
            # In the order of a heap the children of place i are 2i + 1 and 2i + 2.
            there = np.repeat(ready[order][:, None], chunks, axis=1)
            for place in range(count - 1, 0, -1):
                parent = (place - 1) // 2
                arrived = _sent(there[place], wire) + edge.latency
                there[parent] = np.maximum(there[parent], arrived)
            for place in range(1, count):
                there[place] = _sent(there[(place - 1) // 2], wire) + edge.latency
            done[order] = np.maximum(done[order], there[:, -1])
        return done

    return seconds


def _sent(there: Times, wire: float) -> Times:
    """When chunks have passed a wire, one after another: the last of max(there, before) + wire."""
    count = np.arange(1, len(there) + 1)
    found: Times = np.maximum.accumulate(there - wire * (count - 1)) + wire * count
    return found


def by_hosts(inside: Link, between: Link, gpus: int, across: str = "ring") -> AllReduce:
    """Within each host parts are added up, each GPU's part then between hosts, by its own adapter,
    and handed round within hosts again."""

    def seconds(size: float, ready: Times) -> Times:
        if len(ready) <= gpus:
            return ring(inside)(size, ready)
        hosts = ready.reshape(-1, gpus)
        each = inside.seconds(size / gpus)
        scattered = np.stack([_around(host, gpus - 1, each) for host in hosts])
        other = {"ring": ring, "trees": trees}[across](between)
        summed = np.stack([other(size / gpus, part) for part in scattered.T]).T
        return np.concatenate([_around(host, gpus - 1, each) for host in summed])

    return seconds


@dataclass(frozen=True)
class Step:
    """A training step of one rank: its seconds, and of each bucket its bytes and after which part
    of these seconds it is ready; ``launch`` is what beginning and awaiting a sum takes."""

    seconds: float
    buckets: tuple[tuple[float, float], ...]
    launch: float = 0.0


@dataclass(frozen=True)
class Stragglers:
    """By how much steps of ranks differ: a part of their time, always by chance, and one in so many
    that takes longer by another part."""

    spread: float = 0.0
    rare: float = 0.0
    longer: float = 0.0

    def factors(self, random: np.random.Generator, ranks: int) -> Times:
        found = 1.0 + self.spread * np.abs(random.standard_normal(ranks))
        slow: Times = found + np.where(random.random(ranks) < self.rare, self.longer, 0.0)
        return slow


def step_seconds(
    step: Step,
    ranks: int,
    all_reduce: AllReduce,
    stragglers: Stragglers = Stragglers(),
    tries: int = 5,
    seed: int = 0,
) -> float:
    """The mean of a step's seconds: buckets are added up one after another, beside arithmetic, and
    a step ends when the last rank has all."""
    random = np.random.default_rng(seed)
    total = 0.0
    for _ in range(tries):
        own = step.seconds * stragglers.factors(random, ranks)
        done = np.zeros(ranks)
        for size, part in step.buckets:
            ready = np.maximum(own * part, done)
            done = all_reduce(size, ready) + step.launch if ranks > 1 else ready
        total += float(np.maximum(own, done).max())
    return total / tries


def step_of(network: str, seconds: float, launch: float, batch: int, size: int = 224) -> Step:
    """The step of a network: its buckets, and the arithmetic before each is ready."""
    import minidnn as md
    from minidnn import models
    from minidnn.training.step import Objective, Ranks, step_graph

    graph = step_graph(
        getattr(models, network)(),
        [(batch, 3, size, size)],
        Objective(md.losses.CrossEntropy(), {}),
        md.optim.SGD(0.1, momentum=0.9),
        ranks=Ranks(2),
    )
    before = np.zeros(len(graph.nodes) + 1)
    for i, node in enumerate(graph.nodes):
        inputs, outputs = (tuple(v.type for v in some) for some in (node.inputs, node.outputs))
        before[i + 1] = before[i] + node.op.cost(inputs, outputs).operations
    buckets = []
    for node in graph.nodes:
        if node.op.lasts:
            made = [graph.position[v.producer] for v in node.inputs if v.producer is not None]
            bytes = sum(value.type.bytes for value in node.inputs)
            buckets.append((float(bytes), float(before[max(made) + 1] / before[-1])))
    return Step(seconds, tuple(sorted(buckets, key=lambda bucket: bucket[1])), launch)


@dataclass(frozen=True)
class Plan:
    """What a training takes in all.

    Attributes:
        picture_bytes: of a picture as it is stored.
        decoded: pictures that a core decodes and augments in a second.
        failure_hours: after so many hours, on average, a GPU or what it needs fails.
        save_seconds, restart_seconds: that a checkpoint takes, and a restart.
    """

    ranks: int
    batch: int
    pictures: float
    epochs: float
    picture_bytes: float = 110e3
    decoded: float = 400.0
    failure_hours: float = 50_000.0
    save_seconds: float = 5.0
    restart_seconds: float = 180.0

    def figures(self, step: float) -> dict[str, float]:
        """What follows from the seconds of a step."""
        rate = self.ranks * self.batch / step
        apart = self.failure_hours * 3600 / self.ranks  # seconds from one failure to the next
        interval = sqrt(2 * self.save_seconds * apart)  # Young's rule
        lost = self.save_seconds / interval + (interval / 2 + self.restart_seconds) / apart
        days = self.pictures * self.epochs / rate / 86400 / (1 - lost)
        return {
            "images_per_second": rate,
            "bytes_per_second": rate * self.picture_bytes,
            "stored_bytes": self.pictures * self.picture_bytes,
            "cores_to_decode": rate / self.decoded,
            "failures": days * 86400 / apart,
            "seconds_between_checkpoints": interval,
            "part_lost_to_failures": lost,
            "days": days,
        }


KEYS = {"ranks", "ms_alone", "ms_together", "batch", "network", "precision"}


def read_measured(path: Path) -> list[dict[str, Any]]:
    """The lines of JSON among what a benchmark printed; ValueError if there is none of it."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("{"):
            one = json.loads(line)
            if one.keys() >= KEYS:
                found.append(one)
    if not found:
        raise ValueError(f"{path}: no line is a result of benchmarks/distributed_step.py")
    return found


@dataclass(frozen=True)
class Setting:
    """What is assumed: hosts of so many GPUs, what links them, and how steps differ."""

    gpus: int = 8
    inside: Link = Link(8e-6, 330e9)
    between: Link = Link(15e-6, 45e9)
    launch: float = 20e-6
    stragglers: Stragglers = Stragglers(0.01, 1e-4, 0.5)

    def ways(self) -> dict[str, AllReduce]:
        return {
            "ring": ring(self.between),
            "trees": trees(self.between),
            "hosts, ring": by_hosts(self.inside, self.between, self.gpus),
            "hosts, trees": by_hosts(self.inside, self.between, self.gpus, "trees"),
        }

    def predicted(self, step: Step, measured: Mapping[str, Any]) -> float:
        """Milliseconds of a step of as many ranks as were measured, on one host."""
        own = replace(step, seconds=measured["ms_alone"] / 1e3)
        return 1e3 * step_seconds(own, measured["ranks"], ring(self.inside))

    def efficiencies(self, step: Step, ranks: int) -> dict[str, float]:
        """By each way, beside as many times one GPU whose steps never differ."""
        return {
            name: step.seconds / step_seconds(step, ranks, way, self.stragglers)
            for name, way in self.ways().items()
            if ranks <= self.gpus or ranks % self.gpus == 0 or not name.startswith("hosts")
        }


def table(rows: Sequence[Sequence[object]]) -> str:
    """Rows as a table of Markdown, the first its head."""
    lines = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in row] for row in rows]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


PAGE = """\
<!-- Generated by python -m benchmarks.scale_plan -->

# A thousand GPUs and 10⁹ pictures, on paper

What `md.Trainer(distributed=True)` would take there, by a simulation of the sums over ranks:
{network} in {precision}, {batch} pictures a GPU, {ms} ms a step of one. Its gradients are
{megabytes} MB, added up in {count} sums beside the backward pass.

## What is assumed

Hosts of {gpus} GPUs. Within one a message takes {inside}. Between hosts each GPU has an adapter
of its own, by which a message takes {between}. To begin and to await a sum takes {launch} us.
Steps differ by chance by {spread}%, and one in {rare} takes {longer}% longer on some rank, for
which all wait.

## Two GPUs, measured

{machine}; [all figures](../../benchmarks/results/distributed_2_h100.jsonl).

{measured}

The simulation lacks that sums take multiprocessors from the arithmetic beside them, and what it
takes to write gradients of half precision in float32.

## More of them

Efficiency is the time of a step of one GPU over that of all, by four ways of adding up: a ring
over all ranks, two binary trees over all ranks, and both between hosts only, after each has added
up its own.

{efficiency}

A ring over all ranks sends 2 (n - 1) messages after one another, so that its latency grows with
the ranks. Trees send as many as the logarithm. NCCL chooses among such ways by itself; what
remains to the trainer is to begin early.

## The plan

{ranks} GPUs by "{way}", each picture seen {epochs} times, checkpoints as often as loses least
(Young's rule):

{plan}

- **Storage** must give {gigabytes} GB/s in large sequential reads: shards of thousands of
  pictures, spread over hosts, a host's share on its own disks where it fits.
- **Decoding** takes {cores} cores at {decoded} pictures a second each, which is {per_gpu} for each
  GPU. Pictures that are stored smaller, or decoded by the GPU, take fewer.
- **Batch**: {global_batch} pictures a step. The learning rate is warmed up, and scaled, as large
  batches want; where accuracy suffers, fewer GPUs are the remedy.
- **Failures** are restarts from the last checkpoint: Ray Train starts the workers again, and
  `RayReport(every=)` says how often a checkpoint is written.
- **A slow host** slows all. The watch ends a run for a host that hangs, not for one that is slow:
  what each rank takes for its own step is worth a metric.
"""


def page(
    measured: Sequence[Mapping[str, Any]], given: Setting, counts: Sequence[int], plan: Plan
) -> str:
    """The figures as a page."""
    first = measured[0]
    step = step_of(first["network"], first["ms_alone"] / 1e3, given.launch, first["batch"])
    efficiency = {ranks: given.efficiencies(step, ranks) for ranks in (*counts, plan.ranks)}
    best = efficiency[plan.ranks]
    way = max(best, key=best.__getitem__)
    figures = plan.figures(step.seconds / best[way])
    checks = [
        (one["ranks"], one["ms_alone"], one["ms_together"], given.predicted(step, one))
        for one in measured
    ]
    heads = ("ranks", "ms alone", "ms together", "ms predicted")
    ways = list(given.ways())
    spent = ((name.replace("_", " "), number) for name, number in figures.items())
    return PAGE.format(
        network=first["network"],
        batch=first["batch"],
        ms=f"{first['ms_alone']:.4g}",
        precision=first["precision"],
        machine=first.get("machine", "Measured"),
        megabytes=f"{sum(size for size, _ in step.buckets) / 1e6:.4g}",
        count=len(step.buckets),
        gpus=given.gpus,
        inside=_said(given.inside),
        between=_said(given.between),
        launch=f"{given.launch * 1e6:.3g}",
        spread=f"{given.stragglers.spread * 100:.3g}",
        rare=f"{1 / given.stragglers.rare:,.0f}",
        longer=f"{given.stragglers.longer * 100:.3g}",
        measured=table([heads, *checks]),
        efficiency=table(
            [("ranks", *ways), *((n, *(e.get(w, "") for w in ways)) for n, e in efficiency.items())]
        ),
        ranks=plan.ranks,
        way=way,
        epochs=f"{plan.epochs:g}",
        plan=table([("what", "figure"), *spent]),
        gigabytes=f"{figures['bytes_per_second'] / 1e9:.3g}",
        cores=f"{figures['cores_to_decode']:,.0f}",
        decoded=f"{plan.decoded:g}",
        per_gpu=f"{figures['cores_to_decode'] / plan.ranks:.3g}",
        global_batch=f"{plan.ranks * plan.batch:,}",
    )


def _said(link: Link) -> str:
    return f"{link.latency * 1e6:.3g} us and its bytes over {link.bandwidth / 1e9:.4g} GB/s"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    usual = Setting()
    add = parser.add_argument
    add("--measured", type=Path, default=RESULTS, help="what distributed_step.py printed")
    add("--ranks", type=int, default=1000, help="of the plan")
    add("--gpus", type=int, default=usual.gpus, help="of a host")
    add("--inside", type=float, nargs=2, help="a host: seconds of latency, bytes a second")
    add("--between", type=float, nargs=2, help="a GPU's adapter: the same")
    add("--pictures", type=float, default=1e9)
    add("--epochs", type=float, default=5.0)
    given = parser.parse_args(arguments)

    measured = read_measured(given.measured)
    setting = Setting(
        given.gpus,
        Link(*given.inside) if given.inside else usual.inside,
        Link(*given.between) if given.between else usual.between,
    )
    counts = [n for n in (1, 2, 8, 64, 256) if n < given.ranks]
    plan = Plan(given.ranks, measured[0]["batch"], given.pictures, given.epochs)
    print(page(measured, setting, counts, plan), end="")


if __name__ == "__main__":
    main()
