"""Runs ``minidnn bench`` and reads what it wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minidnn.cli import main


def bench(
    capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0
) -> tuple[list[str], str]:
    """The lines that it prints, and what it says of errors."""
    assert main(["bench", *map(str, arguments)]) == code
    printed = capsys.readouterr()
    return printed.out.splitlines(), printed.err


def entries(path: Path) -> dict[str, Any]:
    """The cases in a file of results of one commit and machine."""
    (machines,) = json.loads(path.read_text())["runs"].values()
    (cases,) = machines.values()
    return dict(cases)
