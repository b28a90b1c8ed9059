"""Studies as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from .ceilings import fastest
from .explain import explain
from .step import Ladder

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
    """The metric of that name."""
    times = (cell["predicted_seconds"], cell["measured_seconds"])
    return float(max(times) / min(times))


def table(study: Mapping[str, Any], ladder: Ladder | None = None) -> list[str]:
    """A study as lines of text.

    >>> from minidnn import lab
    >>> lines = lab.table(lab.load_study(lab.recorded_studies()["conv"]))

    Args:
        study: what :func:`model`, :func:`run` or :func:`load_study` gave.
        ladder: that it is of; with it, what limits each step stands under what was measured.

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
        found = document["libraries"][number]
        rows = found.get("algorithms", [])
        columns = (*_CPU_MEASURED, *_of_peak(machine)) if cpu else _MEASURED
        lines += _lines(cells, (*columns, *_ceiling(rows)))
        lines += _libraries(rows, cells, 1e9 if cpu else 1e12)
        if "failed" in found:
            lines += [f"  libraries: {found['failed']}"]
        if ladder is not None:
            lines += _explanations(cells, machine, ladder)
    if "why_not" in (counters := study.get("counters", {})):
        lines += ["", *wrap(f"no counters: {counters['why_not']}", _WIDTH)]
    return lines[1:]


def best_cells(cells: Sequence[Cell]) -> list[Cell]:
    """The fastest cell of each step that was measured."""
    best: dict[str, Cell] = {}
    for cell in cells:
        if "measured_seconds" in cell:
            other = best.setdefault(cell["step"], cell)
            if cell["measured_seconds"] < other["measured_seconds"]:
                best[cell["step"]] = cell
    return list(best.values())


def _explanations(
    cells: Sequence[Cell], machine: Mapping[str, Any], ladder: Ladder
) -> Iterator[str]:
    """What limits each step where it is fastest."""
    for cell in best_cells(cells):
        told = f"{cell['step']} {_configuration(cell)}".rstrip()
        text = f"{told}: {explain(cell, machine, ladder)}"
        yield from wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")


def _of_peak(machine: Mapping[str, Any]) -> tuple[_Column, ...]:
    """The part of the measured peak: of operations, or of bytes where there are none."""

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
    """Block and parameters."""
    own = [f"{name}={number}" for name, number in cell["parameters"].items()]
    block = ["x".join(map(str, cell["block"]))] if cell["block"] else []
    return " ".join([*block, *own])


def _reason(cell: Cell) -> list[str] | None:
    if "why_not" in cell:
        return [f"no: {cell['why_not']}"]
    return [f"failed: {cell['failed'].partition(chr(10))[0]}"] if "failed" in cell else None


def _laid_out(heads: Sequence[Sequence[str]], bodies: Sequence[list[str]]) -> list[str]:
    """Heads to the left, numbers to the right, the last column as it is; a body of one part is a
    sentence."""
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
    """Each algorithm of a library, its operations a second in such units."""
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
