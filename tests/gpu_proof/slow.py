"""Where the time of a run went, from the lines that the plugin wrote for each test."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

_PHASES = ("setup", "call", "teardown")
_LONGEST = 40


def table(folder: Path) -> str:
    """Returns the seconds of each file and of the longest tests, and what never ended."""
    ended: dict[str, dict[str, Any]] = {}
    begun: set[str] = set()
    last = 0.0
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_text("utf-8").splitlines():
            line = json.loads(text)
            last = max(last, line["at"])
            if "begins" in line:
                begun.add(line["begins"])
            else:
                ended[line["test"]] = line
    seconds = {test: sum(line.get(phase, 0) for phase in _PHASES) for test, line in ended.items()}
    files: dict[str, list[float]] = defaultdict(list)
    for test, taken in seconds.items():
        files[test.split("::")[0]].append(taken)
    lines = [f"{len(ended):,} tests, {sum(seconds.values()):.0f} s in {last:.0f} s", ""]
    lines += ["| file | tests | seconds | longest |", "|---|---|---|---|"]
    for file, each in sorted(files.items(), key=lambda item: -sum(item[1])):
        lines.append(f"| {file} | {len(each)} | {sum(each):.1f} | {max(each):.1f} |")
    lines += ["", "| test | seconds |", "|---|---|"]
    longest = sorted(seconds.items(), key=lambda item: -item[1])[:_LONGEST]
    lines += [f"| {test} | {taken:.1f} |" for test, taken in longest]
    lines += [f"never ended: {test}" for test in sorted(begun - set(ended))]
    for test, line in sorted(ended.items()):
        if line["outcome"] == "failed":
            lines += [f"failed: {test}", *(f"    {each}" for each in line["why"].splitlines())]
    return "\n".join(lines)
