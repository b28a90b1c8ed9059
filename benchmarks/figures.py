"""Figures of a benchmark that is run in pieces, in a file of JSON beside the machine's name, and
tables of figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from minidnn.backends.cpu.machine import describe_machine
from minidnn.measure import write_figures


def markdown(titles: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown."""
    titles = list(titles)
    return "\n".join([line(titles), "|" + "---|" * len(titles), *map(line, rows)])


def line(cells: Iterable[object]) -> str:
    """A row of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def machine(on_gpu: bool) -> dict[str, str]:
    """What a row says of where it was measured."""
    if not on_gpu:
        return {"machine": describe_machine().line()}
    from minidnn.cudnn import machine

    return {"machine": machine.device_name(0), "versions": machine.library_name()}


class Results:
    """What was measured so far: records by part and name, written after each.

    Raises:
        SystemExit: the file was measured on another machine, unless it is only read.
    """

    def __init__(self, path: Path, measures: bool = True) -> None:
        self.path = path
        machine = describe_machine().line()
        if path.exists():
            self._data = json.loads(path.read_text(encoding="utf-8"))
        else:
            self._data = {"machine": machine}
        if measures and self.machine != machine:
            raise SystemExit(
                f"{path} was measured on {self.machine}; this is {machine}: name another file"
            )

    @property
    def machine(self) -> str:
        return str(self._data["machine"])

    def part(self, name: str) -> dict[str, Any]:
        """The records of one part, by name, in the order in which they were measured."""
        records: dict[str, Any] = self._data.setdefault(name, {})
        return records

    def add(self, part: str, name: str, record: Mapping[str, Any]) -> None:
        """Adds a record and writes the file, which is never half written."""
        self.part(part)[name] = dict(record)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_figures(self.path, self._data)
