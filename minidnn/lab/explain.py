"""Explains cells of a study, and prints studies as tables of text.

An explanation is a limit, the figure that shows it, and advice.  Rules read the figures of a cell,
hardware counters first, and are tried in order; the first that applies names the limit.  Faults of
a launch come first, since they make all other figures misleading, then the parts of the machine.
What remains is latency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from textwrap import wrap
from typing import Any

from .ceilings import fastest
from .cpu.machine import CHAINS
from .step import Ladder

BUSY = 0.6
"""The share of the time for which a part of the machine must work to be the limit."""
_FEW_WARPS = 0.35
_TAIL = 0.7
_CONFLICTS = 1.5
_SCATTERED, _WANTED = 8.0, 0.5
"""An access is uncoalesced if a warp touches at least so many sectors, and asks for at most this
part of their bytes.  Vector accesses touch as many sectors, but ask for all of their bytes."""
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
    """A cell of a study and its machine, as rules read them."""

    cell: Mapping[str, Any]
    machine: Mapping[str, Any]

    def counted(self, metric: str) -> float | None:
        """The value of a metric from counters; None where there are none."""
        value = self.cell.get("counters", {}).get(metric)
        return None if value is None else float(value)

    def best(self, metric: str, calculated: str) -> tuple[float, str]:
        """A figure and its source: "ncu" if it was counted, else "model"."""
        counted = self.counted(metric)
        return (float(self.cell[calculated]), "model") if counted is None else (counted, "ncu")

    def busy(self) -> dict[str, tuple[float, str]]:
        """The share of the time that each part of the machine is busy, and the source of the
        figure."""
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
    """The access pattern that makes a memory part do more than necessary; None if none does."""
    if (turns := figures.cell.get("load_turns")) is None:
        return None
    conflicts, source = figures.best("bank conflicts", "bank_conflicts")
    if name == "load units" and turns["shared"] > turns["global"] and conflicts >= _CONFLICTS:
        evidence = f"shared memory takes {conflicts:.1f} times the wavefronts that its words need"
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
"""The rules for launches on a GPU, in order."""
CPU_RULES: tuple[_Rule, ...] = (_empty_lanes, _gathers, _few_sums, _busiest, _waiting)
"""The rules for kernels on a CPU, in order."""


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
    explanation = next(one for rule in rules if (one := rule(figures)) is not None)
    if ladder is None:
        return explanation
    step = next((one for one in ladder.after(cell["step"]) if explanation.limit in one.helps), None)
    return Explanation(
        explanation.limit, explanation.evidence, explanation.source, step.name if step else None
    )


Cell = Mapping[str, Any]
_WIDTH = 100
_Column = tuple[str, Callable[[Cell], str]]

_MODEL: tuple[_Column, ...] = (
    ("regs", lambda cell: str(cell["registers"])),
    ("shared", lambda cell: str(cell["shared_bytes"])),
    ("occupancy", lambda cell: f"{100 * cell['occupancy']:.0f}% {cell['occupancy_limit']}"),
    ("waves", lambda cell: f"{cell['waves']:.1f}"),
    ("coalesced", lambda cell: f"{cell['coalescing']:.2f}"),
    ("conflicts", lambda cell: f"{cell['bank_conflicts']:.2f}"),
    ("L2 MB", lambda cell: f"{cell['bytes']['L2'] / 1e6:.0f}"),
    ("ms", lambda cell: f"{1e3 * cell['predicted_seconds']:.3f}"),
    ("TFLOP/s", lambda cell: f"{cell['operations'] / cell['predicted_seconds'] / 1e12:.1f}"),
    ("limit", lambda cell: str(cell["predicted_limit"])),
)
_MEASURED: tuple[_Column, ...] = (
    ("regs", lambda cell: str(cell["registers"])),
    ("spills", lambda cell: str(cell["spill_bytes"])),
    ("shared", lambda cell: str(cell["shared_bytes"])),
    ("occupancy", lambda cell: f"{100 * cell['occupancy']:.0f}%"),
    ("ms", lambda cell: f"{1e3 * cell['measured_seconds']:.4f}"),
    ("+-%", lambda cell: f"{100 * cell['variability']:.1f}"),
    ("TFLOP/s", lambda cell: f"{cell['operations'] / cell['measured_seconds'] / 1e12:.2f}"),
    ("GB/s", lambda cell: f"{cell['bytes']['memory'] / cell['measured_seconds'] / 1e9:.0f}"),
    ("model ms", lambda cell: f"{1e3 * cell['predicted_seconds']:.4f}"),
    ("error", lambda cell: f"{model_error(cell):.2f}"),
    ("limit", lambda cell: str(cell["predicted_limit"])),
)
_CPU: tuple[_Column, ...] = (
    ("tasks", lambda cell: str(cell["tasks"])),
    ("sums", lambda cell: str(cell["chains"])),
    ("lanes", lambda cell: str(cell["lanes"])),
    ("ms", lambda cell: f"{1e3 * cell['predicted_seconds']:.4f}"),
    ("GFLOP/s", lambda cell: f"{cell['operations'] / cell['predicted_seconds'] / 1e9:.1f}"),
    ("limit", lambda cell: str(cell["predicted_limit"])),
)
_CPU_MEASURED: tuple[_Column, ...] = (
    ("ms", lambda cell: f"{1e3 * cell['measured_seconds']:.4f}"),
    ("+-%", lambda cell: f"{100 * cell['variability']:.1f}" + "*" * cell["disturbed"]),
    ("GFLOP/s", lambda cell: f"{cell['operations'] / cell['measured_seconds'] / 1e9:.1f}"),
    ("GB/s", lambda cell: f"{cell['bytes']['memory'] / cell['measured_seconds'] / 1e9:.1f}"),
    ("model ms", lambda cell: f"{1e3 * cell['predicted_seconds']:.4f}"),
    ("error", lambda cell: f"{model_error(cell):.2f}"),
    ("limit", lambda cell: str(cell["predicted_limit"])),
)


def model_error(cell: Cell) -> float:
    """The metric "model error": predicted over measured time, or the inverse if that is larger."""
    times = (cell["predicted_seconds"], cell["measured_seconds"])
    return float(max(times) / min(times))


def table(study: Mapping[str, Any], ladder: Ladder | None = None) -> list[str]:
    """A study as lines of text.

    >>> from minidnn import lab
    >>> lines = lab.table(lab.load_study(lab.recorded_studies()["conv"]))

    Args:
        study: what :func:`model`, :func:`run` or :func:`load_study` gave.
        ladder: of the study; with it, an explanation of each step follows its measurements.

    Returns:
        The lines, shape by shape; where a cell has no figures, the reason stands.
    """
    lines = []
    document, machine = study, study["machine"]
    cpu = "isa" in machine
    for number, shape in enumerate(document["shapes"]):
        cells = [cell for cell in document["cells"] if cell["shape"] == number]
        lines += ["", ", ".join(f"{name} {size}" for name, size in shape.items())]
        if "libraries" not in document:
            lines += _lines(cells, _CPU if cpu else _MODEL)
            continue
        libraries = document["libraries"][number]
        rows = libraries.get("algorithms", [])
        columns = (*_CPU_MEASURED, *_of_peak(machine)) if cpu else _MEASURED
        lines += _lines(cells, (*columns, *_ceiling(rows)))
        lines += _libraries(rows, cells, 1e9 if cpu else 1e12)
        if "failed" in libraries:
            lines += [f"  libraries: {libraries['failed']}"]
        if ladder is not None:
            lines += _explanations(cells, machine, ladder)
    if "why_not" in (counters := study.get("counters", {})):
        lines += ["", *wrap(f"no counters: {counters['why_not']}", _WIDTH)]
    return lines[1:]


def best_cells(cells: Sequence[Cell], time: str = "measured_seconds") -> list[Cell]:
    """The cell of each step with the least time, measured or predicted; cells without are left
    out."""
    best: dict[str, Cell] = {}
    for cell in cells:
        if time in cell and cell[time] < best.setdefault(cell["step"], cell)[time]:
            best[cell["step"]] = cell
    return list(best.values())


def _explanations(
    cells: Sequence[Cell], machine: Mapping[str, Any], ladder: Ladder
) -> Iterator[str]:
    """Explains the fastest cell of each step."""
    for cell in best_cells(cells):
        name = f"{cell['step']} {_configuration(cell)}".rstrip()
        text = f"{name}: {explain(cell, machine, ladder)}"
        yield from wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")


def _of_peak(machine: Mapping[str, Any]) -> tuple[_Column, ...]:
    """A column with the share of the peak that was reached: operations a second, or bytes a second
    where nothing is computed."""

    def share(cell: Cell) -> str:
        seconds = cell["measured_seconds"]
        if not cell["operations"]:
            return f"{100 * cell['bytes']['memory'] / seconds / machine['bandwidth']:.0f}% copy"
        return f"{100 * cell['operations'] / seconds / machine['peak_operations']:.0f}%"

    return (("of peak", share),)


def _ceiling(rows: list[dict[str, Any]]) -> tuple[_Column, ...]:
    if fastest(rows) is None:
        return ()

    def share(cell: Cell) -> str:
        best = fastest(rows, precision=cell.get("precision", "float32"))
        return f"{100 * best['measured_seconds'] / cell['measured_seconds']:.1f}%" if best else "-"

    return (("of library", share),)


def _lines(cells: Sequence[Cell], columns: Sequence[_Column]) -> list[str]:
    heads = [(cell["step"], _configuration(cell)) for cell in cells]
    bodies = [_reason(cell) or [tell(cell) for _, tell in columns] for cell in cells]
    return _laid_out([("step", "block"), *heads], [[name for name, _ in columns], *bodies])


def _configuration(cell: Cell) -> str:
    """The block and the parameters of a cell, as text."""
    parameters = [f"{name}={number}" for name, number in cell["parameters"].items()]
    block = ["x".join(map(str, cell["block"]))] if cell["block"] else []
    return " ".join([*block, *parameters])


def _reason(cell: Cell) -> list[str] | None:
    if "why_not" in cell:
        return [f"no: {cell['why_not']}"]
    return [f"failed: {cell['failed'].partition(chr(10))[0]}"] if "failed" in cell else None


def _laid_out(heads: Sequence[Sequence[str]], bodies: Sequence[list[str]]) -> list[str]:
    """Aligns a table: heads to the left, numbers to the right, the last column as it is.  A body of
    one part is a sentence, which no column bounds."""
    left = [max(len(head[i]) for head in heads) for i in range(len(heads[0]))]
    full = [body for body in bodies if len(body) > 1]
    widths = [max(len(body[i]) for body in full) for i in range(len(full[0]))] if full else []
    lines = []
    for head, body in zip(heads, bodies, strict=True):
        parts = [part.ljust(width) for part, width in zip(head, left, strict=True)]
        if len(body) > 1:
            parts += [part.rjust(w) for part, w in zip(body[:-1], widths[:-1], strict=True)]
        lines.append("  " + "  ".join([*parts, body[-1]]).rstrip())
    return lines


def _libraries(rows: list[dict[str, Any]], cells: Sequence[Cell], unit: float) -> list[str]:
    """The table of the libraries' algorithms; ``unit``: operations a second of the second
    column."""
    if not rows:
        return []
    operations = next((cell["operations"] for cell in cells if "operations" in cell), 0)
    heads = [("library", "precision"), *((row["name"], row["precision"]) for row in rows)]
    bodies = [["ms", "GFLOP/s" if unit < 1e12 else "TFLOP/s", "MB", "error", "deterministic"]]
    for row in rows:
        if "why_not" in row:
            bodies.append([f"no: {row['why_not']}"])
            continue
        seconds = row["measured_seconds"]
        bodies.append(
            [
                f"{1e3 * seconds:.4f}",
                f"{operations / seconds / unit:.2f}",
                f"{row.get('workspace', 0) / 1e6:.1f}",
                f"{row['error']:.1e}",
                "yes" if row["deterministic"] else "no",
            ]
        )
    return _laid_out(heads, bodies)
