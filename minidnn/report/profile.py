"""profile: what each region takes, measured, beside what the machine could do."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minidnn.errors import GraphError, UnsupportedError
from minidnn.graph.types import plain
from minidnn.report.explain import (
    contracts,
    describe,
    inner_nodes,
    kind_of,
    predicted_seconds,
    short,
    work,
)
from minidnn.runtime.plan import Plan
from minidnn.runtime.program import CountedProgram, DescribedProgram, Program, TimedProgram

__all__ = ["Profile", "RegionTime", "profile"]


@dataclass(frozen=True)
class RegionTime:
    """One region: the median of its time over the runs, and what it does in it.

    Attributes:
        name, kind, layers: as in ``explain``.
        operations: scalar operations, a multiply-add counting as two.
        bytes: read and written once, weights included.
        seconds: measured, on all threads.
        predicted_seconds: by the cost model that chose how to fuse.
        executed: the operations that its algorithm takes, which may be fewer.
        arithmetic_seconds: what these take at the machine's rate, if nothing else did.
        memory_seconds: what the bytes take at the rate of the memory that they fit, likewise.
        launch_seconds: what the cost model counts for starting a kernel.
    """

    name: str
    kind: str
    layers: tuple[str, ...]
    operations: int
    bytes: int
    seconds: float
    predicted_seconds: float
    executed: int
    arithmetic_seconds: float
    memory_seconds: float
    launch_seconds: float

    @property
    def bound_seconds(self) -> float:
        """What the machine's rates allow at least: arithmetic and memory work at the same time."""
        return max(self.arithmetic_seconds, self.memory_seconds)

    @property
    def causes(self) -> dict[str, float]:
        """The measured seconds, split: those of the slower of memory and arithmetic, of the launch,
        and what neither of these explains.  No part is larger than what the others leave of it."""
        bound = min(self.seconds, self.bound_seconds)
        is_memory = self.memory_seconds >= self.arithmetic_seconds
        launch = min(self.seconds - bound, self.launch_seconds)
        return {
            "memory": bound if is_memory else 0.0,
            "arithmetic": 0.0 if is_memory else bound,
            "launch": launch,
            "unexplained": self.seconds - bound - launch,
        }

    @property
    def roofline(self) -> float:
        """The fraction of the roofline that is reached.  Above 1 where the data lies in a cache
        that is faster than the level it was counted against."""
        return self.bound_seconds / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Profile:
    """The regions in order, and the whole run; ``str`` gives the table."""

    regions: tuple[RegionTime, ...]
    descriptions: tuple[str, ...]
    runs: int
    #: Why algorithms do not compute regions, and how many regions say so.
    refusals: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The sum over the regions."""
        return sum(region.seconds for region in self.regions)

    def __str__(self) -> str:
        lines = [
            f"{'region':<28} {'kind':<12} {'Mop':>9} {'MB':>7} {'us':>8} {'share':>6} "
            f"{'predicted':>9} {'roofline':>8}  layers"
        ]
        whole = self.seconds or 1.0
        for region, text in zip(self.regions, self.descriptions, strict=True):
            lines.append(
                f"{short(region.name, 28):<28} {region.kind:<12} {region.operations / 1e6:9.2f} "
                f"{region.bytes / 1e6:7.2f} {region.seconds * 1e6:8.1f} "
                f"{100 * region.seconds / whole:5.1f}% {region.predicted_seconds * 1e6:9.1f} "
                f"{100 * region.roofline:7.0f}%  {text}"
            )
        bound = sum(region.bound_seconds for region in self.regions)
        lines.append(
            f"{len(self.regions)} kernels, {self.seconds * 1e3:.3f} ms measured (medians of "
            f"{self.runs} runs), {100 * bound / whole:.0f}% of the roofline"
        )
        for name, reasons in self.refusals.items():
            counted = ", ".join(f"{reason} ({count})" for reason, count in reasons.items())
            lines.append(f"not by {name}: {counted}")
        return "\n".join(lines)


def profile(
    plan: Plan,
    program: Program,
    device: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    runs: int,
) -> Profile:
    """Times every region ``runs`` times.

    GraphError if ``runs`` is no number of runs, UnsupportedError if the program cannot time
    regions.
    """
    runs = plain(runs)
    if type(runs) is not int or runs < 1:
        raise GraphError(f"runs={runs!r}; valid is a number of runs of at least 1")
    if not isinstance(program, TimedProgram):
        raise UnsupportedError(f"device {device!r} does not time regions; 'cpu' and 'cuda' do")
    program.run(inputs, outputs)  # memory is touched for the first time
    measured = [program.seconds_of_nodes(inputs, outputs) for _ in range(runs)]
    regions, descriptions = [], []
    refusals: dict[str, Counter[str]] = defaultdict(Counter)
    for node in measured[0]:
        operations, moved = work(node)
        seconds = statistics.median(times[node] for times in measured)
        executed = operations
        if isinstance(program, CountedProgram):
            executed -= program.spared_operations(node)
        multiplies = contracts(node)
        regions.append(
            RegionTime(
                node.name,
                kind_of(plan, node),
                tuple(dict.fromkeys(inner.source for inner in inner_nodes(node))),
                operations,
                moved,
                seconds,
                predicted_seconds(plan, node),
                executed,
                program.bound_seconds(executed, 0, multiplies),
                program.bound_seconds(0, moved, multiplies),
                plan.target.device.overhead,
            )
        )
        said = program.details(node) if isinstance(program, DescribedProgram) else ""
        descriptions.append(describe(node) + (f" [{said}]" if said else ""))
        refused = program.refusals(node) if isinstance(program, DescribedProgram) else {}
        for name, reason in refused.items():
            refusals[name][reason] += 1
    return Profile(tuple(regions), tuple(descriptions), runs, refusals)
