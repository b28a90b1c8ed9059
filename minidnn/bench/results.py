"""Results in one JSON file: by commit, then by machine, then by case, then by engine.

    {"format": "minidnn bench 1",
     "runs": {commit: {machine: {case: {"network": ..., ..., "engines": {engine: {...}}}}}}}

So files of several runs, commits and machines merge by putting together what each has.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import minidnn
from minidnn.bench.networks import Case
from minidnn.errors import MiniDNNError
from minidnn.measure.figures import write_figures

FORMAT = "minidnn bench 1"
#: What a record has so that a run can go on, and what is no part of a result.
WORKING = ("rounds", "begun")
Record = dict[str, Any]


@dataclass
class Results:
    """What a file has: ``runs[commit][machine][case]["engines"][engine]`` is a record."""

    runs: dict[str, dict[str, dict[str, Record]]]

    @classmethod
    def read(cls, path: Path) -> Results:
        """The results in a file; none when it is not there.

        Raises:
            MiniDNNError: it cannot be read, or is something else.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls({})
        except (OSError, ValueError) as error:
            raise MiniDNNError(f"{path} cannot be read as results of bench: {error}") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise MiniDNNError(f"{path} has no results of bench (no 'format': {FORMAT!r})")
        runs = document.get("runs")
        if not isinstance(runs, dict):
            raise MiniDNNError(f"{path} is damaged: its 'runs' are {type(runs).__name__}, no dict")
        return cls(runs)

    def write(self, path: Path) -> None:
        """Replaces the file in one step.

        Raises:
            MiniDNNError: it cannot be written.
        """
        try:
            write_figures(path, {"format": FORMAT, "runs": self.runs})
        except OSError as error:
            raise MiniDNNError(f"{path} cannot be written: {error.strerror}") from error

    def merge(self, other: Results) -> None:
        """Takes over what ``other`` has, but for the rounds' own times; of an engine that both have
        measured, the later."""
        for commit, machine, case, entry in other.cases():
            mine = self.entry(commit, machine, case, entry)
            for engine, record in entry["engines"].items():
                old = mine.get(engine)
                if old is None or old["measured"] <= record["measured"]:
                    mine[engine] = {k: v for k, v in record.items() if k not in WORKING}

    def cases(self) -> Iterator[tuple[str, str, str, Record]]:
        """Commit, machine, name and entry of every case."""
        for commit, machines in self.runs.items():
            for machine, cases in machines.items():
                for case, entry in cases.items():
                    yield commit, machine, case, entry

    def entry(self, commit: str, machine: str, case: str, about: Record) -> dict[str, Record]:
        """The records of a case by engine, to be added to."""
        cases = self.runs.setdefault(commit, {}).setdefault(machine, {})
        fresh = {key: value for key, value in about.items() if key != "engines"}
        engines: dict[str, Record] = cases.setdefault(case, fresh | {"engines": {}})["engines"]
        return engines

    def records(self, commit: str, machine: str, case: Case) -> dict[str, Record]:
        """The records of this case by engine, to be added to."""
        return self.entry(commit, machine, case.name, asdict(case))


def commit() -> str:
    """What is being measured: the commit of minidnn's checkout, and a digest of changes since.

    An installed copy is known by its version.
    """
    folder = Path(minidnn.__file__).parent
    head = _git(folder, "rev-parse", "--short=12", "HEAD")
    listed = _git(folder, "ls-files", "--error-unmatch", "__init__.py")
    if not head or not listed:
        return f"version {minidnn.__version__}"
    changes = _git(folder, "diff", "HEAD", "--", ":/minidnn", ":/models")
    changed = hashlib.sha256(changes.encode()).hexdigest()[:8] if changes else ""
    return head.strip() + (f"+{changed}" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    """What git prints, or nothing where there is no git or no repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def failed(record: Mapping[str, Any]) -> bool:
    return "error" in record
