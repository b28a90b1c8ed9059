"""Tables of what ``optimize.py`` measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.figures import Results, markdown


def row(name: str, record: Mapping[str, Any], way: str) -> list[str]:
    """A row of the table."""
    whole, halves = record["whole"][way], record.get("split", {}).get(way, {})
    cells = [name, _ms(whole, "zoo"), _ms(whole, "optimize"), _shown(whole, "optimize")]
    cells += [_ms(halves, "split") if halves else ""]
    for layer in ("layer", "in eager"):
        there = halves and layer in halves["seconds"]
        cells += [_ms(halves, layer), _shown(halves, layer)] if there else ["", ""]
    return cells


def _ms(figures: Mapping[str, Any], name: str) -> str:
    return f"{1e3 * figures['seconds'][name]['value']:.3g}"


def _shown(figures: Mapping[str, Any], name: str) -> str:
    return "{value:.3f} ({low:.3f} to {high:.3f})".format(**figures["ratio"][name])


def table(results: Results, part: str) -> str:
    titles = ["network", "zoo, ms", "optimize, ms", "ratio", "split, ms"]
    titles += ["layer, ms", "ratio", "in eager, ms", "ratio"]
    records = results.part(part)
    lines = []
    for way in ("call", "latency"):
        rows = [row(name, one, way) for name, one in records.items() if way in one["whole"]]
        lines += [f"{part}, {way}:", "", markdown(titles, rows), ""] if rows else []
    return "\n".join(lines)
