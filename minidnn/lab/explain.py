"""What limits a step, which number says so, and what would help: rules over a cell's figures.

Each rule reads figures of a cell as a study has it, counters where there are any, and says what it
sees.  The first that sees something names the limit: faults of a launch, which make all other
figures misleading, come before the parts of the machine, and what is left is waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from .cpu.machine import CHAINS
from .step import Ladder

BUSY = 0.6
"""A part that works for this share of the time is what one waits for."""
_FEW_WARPS = 0.35
_TAIL = 0.7
_CONFLICTS = 1.5
_SCATTERED, _WANTED = 8.0, 0.5
"""Sectors that a warp touches, and the part of their bytes that it asked for: many sectors of which
all is asked for are vectors."""
_SCHEDULERS = 4
_GATHERED = 0.5
_NO_TURNS = {"shared": 0.0, "global": 0.0}

ADVICE = {
    "too few blocks": "give each thread less to do, or use smaller blocks",
    "spills": "use fewer registers: smaller register tiles, or a smaller block by launch bounds",
    "tail": "choose a block or a tile with which blocks come out even, or much smaller ones",
    "bank conflicts": "change the block's width, or pad rows of shared memory",
    "uncoalesced accesses": "let neighbouring lanes read neighbouring addresses",
    "shared memory": "read less of it for each product: register tiles, vectors",
    "load units": "read less for each product: tiles in shared memory and in registers, vectors",
    "L2": "use larger tiles",
    "memory": "move fewer bytes: fusion, smaller types; the step is near the roofline's slope",
    "issue": "spend fewer instructions beside multiply-adds: unrolling, vectors",
    "arithmetic": "choose a better algorithm, or tensor cores; nothing else does",
    "empty lanes": "compute several outputs at once, one in each lane of a vector",
    "gathers": "let lanes read neighbouring numbers: pack weights, or let lanes be something else",
    "occupancy": "let more warps run at once: fewer registers, less shared memory, other blocks",
    "launch": "use fewer and larger blocks, or give each thread more to do",
    "latency": "give each thread more independent work, or let more warps run",
}
"""What helps against each limit."""


@dataclass(frozen=True)
class Explanation:
    """Why a step is not faster.

    Attributes:
        limit: a key of :data:`ADVICE`.
        evidence: the number that says so, in words.
        source: whether the number is counted ("ncu"), or calculated ("model").
        next_step: the name of the next step that is about it; None if the ladder has none.

    >>> from minidnn import lab
    >>> str(lab.Explanation("issue", "busy for 80 % of the time", "ncu")).partition(".")[0]
    'issue: busy for 80 % of the time (ncu)'
    """

    limit: str
    evidence: str
    source: str
    next_step: str | None = None

    @property
    def advice(self) -> str:
        return ADVICE[self.limit]

    def __str__(self) -> str:
        next_step = f"; next: {self.next_step}" if self.next_step else ""
        return (
            f"{self.limit}: {self.evidence} ({self.source}). It helps to {self.advice}{next_step}"
        )


@dataclass(frozen=True)
class _Figures:
    """A cell, and the machine that it is of."""

    cell: Mapping[str, Any]
    machine: Mapping[str, Any]

    def counted(self, metric: str) -> float | None:
        """What was counted of a metric; None where there are no counters."""
        value = self.cell.get("counters", {}).get(metric)
        return None if value is None else float(value)

    def best(self, metric: str, calculated: str) -> tuple[float, str]:
        """A figure and its source: counted if it was, else calculated."""
        counted = self.counted(metric)
        return (float(self.cell[calculated]), "model") if counted is None else (counted, "ncu")

    def busy(self) -> dict[str, tuple[float, str]]:
        """The share of the time that each part of the machine works, and who says so."""
        seconds = self.cell.get("measured_seconds", self.cell["predicted_seconds"])
        parts = {
            part: (time / seconds, "model")
            for part, time in self.cell["seconds_by_part"].items()
            if part != "latency"
        }
        memory = self.counted("memory bandwidth utilization")
        instructions = self.counted("instructions per cycle")
        if memory is not None:
            parts["memory"] = (memory, "ncu")
        if instructions is not None:
            parts["issue"] = (instructions / _SCHEDULERS, "ncu")
        return parts


_Rule = Callable[[_Figures], Explanation | None]


def _too_few_blocks(figures: _Figures) -> Explanation | None:
    blocks, multiprocessors = prod(figures.cell["grid"]), figures.machine["multiprocessors"]
    if blocks >= multiprocessors:
        return None
    evidence = f"{blocks} blocks for {multiprocessors} multiprocessors"
    return Explanation("too few blocks", evidence, "model")


def _spills(figures: _Figures) -> Explanation | None:
    if not (spilled := figures.cell["spill_bytes"]):
        return None
    evidence = f"{spilled} bytes of registers are kept in memory"
    return Explanation("spills", evidence, "compiler")


def _tail(figures: _Figures) -> Explanation | None:
    waves = figures.cell["waves"]
    if waves < 1 or waves / ceil(waves) >= _TAIL:
        return None
    idle = 100 * (1 - waves / ceil(waves))
    evidence = f"{waves:.2f} waves of blocks: {idle:.0f} % of the places for them stay empty"
    return Explanation("tail", evidence, "model")


def _empty_lanes(figures: _Figures) -> Explanation | None:
    if (lanes := figures.cell["lanes"]) > 1:
        return None
    evidence = f"a multiply-add computes {lanes} number; a vector of {figures.machine['isa']} more"
    return Explanation("empty lanes", evidence, "model")


def _gathers(figures: _Figures) -> Explanation | None:
    if (share := figures.cell["gathered"]) < _GATHERED:
        return None
    evidence = f"{100 * share:.0f} % of the reads are lanes of gathers"
    return Explanation("gathers", evidence, "model")


def _few_sums(figures: _Figures) -> Explanation | None:
    parts = figures.cell["seconds_by_part"]
    if max(parts, key=lambda name: float(parts[name])) != "latency" or not parts["latency"]:
        return None
    count = figures.cell["chains"]
    evidence = f"{count} sum{'s' * (count != 1)} a thread at once; {CHAINS} keep the units busy"
    return Explanation("latency", evidence, "model")


def _busiest(figures: _Figures) -> Explanation | None:
    parts = figures.busy()
    name = max(parts, key=lambda part: parts[part][0])
    share, source = parts[name]
    if share < BUSY:
        return None
    evidence = f"busy for {min(100.0, 100 * share):.0f} % of the time"
    if name in ("load units", "L2", "memory"):
        return _accesses(figures, name) or Explanation(_units(figures, name), evidence, source)
    return Explanation(name, evidence, source)


def _accesses(figures: _Figures, name: str) -> Explanation | None:
    """Why a part that moves data has more to do than it should."""
    if (turns := figures.cell.get("load_turns")) is None:
        return None
    conflicts, source = figures.best("bank conflicts", "bank_conflicts")
    if name == "load units" and turns["shared"] > turns["global"] and conflicts >= _CONFLICTS:
        evidence = f"shared memory takes {conflicts:.1f} times the turns that its words need"
        return Explanation("bank conflicts", evidence, source)
    if turns["shared"] > turns["global"]:
        return None
    sectors, source = figures.best("sectors a request", "sectors_a_request")
    wanted, _ = figures.best("coalescing", "coalescing")
    if sectors >= _SCATTERED and wanted <= _WANTED:
        evidence = (
            f"a load of a warp touches {sectors:.1f} sectors; {wanted * sectors:.1f} would do"
        )
        return Explanation("uncoalesced accesses", evidence, source)
    sectors, wanted = (
        figures.cell.get(key, 1.0) for key in ("sectors_a_store", "store_coalescing")
    )
    if sectors >= _SCATTERED and wanted <= _WANTED:
        evidence = (
            f"a store of a warp touches {sectors:.1f} sectors; {wanted * sectors:.1f} would do"
        )
        return Explanation("uncoalesced accesses", evidence, "model")
    return None


def _units(figures: _Figures, name: str) -> str:
    turns = figures.cell.get("load_turns", _NO_TURNS)
    return "shared memory" if name == "load units" and turns["shared"] > turns["global"] else name


def _few_warps(figures: _Figures) -> Explanation | None:
    share, source = figures.best("occupancy", "occupancy")
    if share >= _FEW_WARPS:
        return None
    why = figures.cell["occupancy_limit"]
    evidence = f"{100 * share:.0f} % of the warps that could run; {why} limits them"
    return Explanation("occupancy", evidence, source)


def _waiting(figures: _Figures) -> Explanation:
    parts = figures.busy()
    name = max(parts, key=lambda part: parts[part][0])
    share, source = parts[name]
    evidence = f"no part is busy, {name} most of all with {100 * share:.0f} % of the time"
    return Explanation("latency", evidence, source)


RULES: tuple[_Rule, ...] = (_too_few_blocks, _spills, _tail, _busiest, _few_warps, _waiting)

"""Of launches on a GPU."""
CPU_RULES: tuple[_Rule, ...] = (_empty_lanes, _gathers, _few_sums, _busiest, _waiting)
"""Of kernels on a CPU."""


def explain(
    cell: Mapping[str, Any], machine: Mapping[str, Any], ladder: Ladder | None = None
) -> Explanation:
    """What limits a step, which number says so, and which later step is about that.

    >>> from minidnn import lab
    >>> study = lab.load_study(lab.recorded_studies()["conv"])
    >>> cell = next(cell for cell in study["cells"] if "measured_seconds" in cell)
    >>> print(lab.explain(cell, study["machine"], lab.ladder_of("conv")))

    Args:
        cell: of a study, measured or predicted: one with ``why_not`` has no figures.
        machine: of the study.
        ladder: whose later steps are asked; None for none.

    Returns:
        The limit, with its evidence; printed, a sentence.
    """
    figures = _Figures(cell, machine)
    rules = CPU_RULES if "isa" in machine else RULES
    found = next(one for rule in rules if (one := rule(figures)) is not None)
    if ladder is None:
        return found
    step = next((one for one in ladder.after(cell["step"]) if found.limit in one.helps), None)
    return Explanation(found.limit, found.evidence, found.source, step.name if step else None)
