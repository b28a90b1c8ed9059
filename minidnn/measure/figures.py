"""How figures are kept: six digits of each, compact, in files that are never half written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DIGITS = 6
WIDTH = 400
"""Of a line of a file, in characters."""


def write_figures(path: Path, data: Any) -> None:
    """Writes figures to a file of JSON, or of lines of JSON (``.jsonl``), in one step."""
    text = "\n".join(map(line_of, data)) if path.suffix == ".jsonl" else _spread(rounded(data))
    work = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        work.write_text(text + "\n", encoding="utf-8")
        os.replace(work, path)
    finally:
        work.unlink(missing_ok=True)


def line_of(figures: Any) -> str:
    """Figures in one line of JSON."""
    return json.dumps(rounded(figures), separators=(",", ":"), allow_nan=False)


def rounded(figures: Any) -> Any:
    """The same with six digits of each number, which are more than times are known to."""
    if isinstance(figures, float):
        return float(f"{figures:.{DIGITS}g}")
    if isinstance(figures, Mapping):
        return {key: rounded(value) for key, value in figures.items()}
    return [rounded(each) for each in figures] if isinstance(figures, list | tuple) else figures


def _spread(figures: Any) -> str:
    """JSON in which what is longer than a line's width has a line for each of its parts."""
    text = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    if len(text) <= WIDTH or not isinstance(figures, dict | list):
        return text
    if isinstance(figures, list):
        return "[\n" + ",\n".join(map(_spread, figures)) + "\n]"
    parts = (f"{json.dumps(key)}: {_spread(value)}" for key, value in figures.items())
    return "{\n" + ",\n".join(parts) + "\n}"
