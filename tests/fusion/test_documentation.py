"""The worked example of docs/explanation/depth-first-fusion.md prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def test_the_worked_example(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (root / "docs/explanation/depth-first-fusion.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```\n", text, re.DOTALL)
    assert found is not None
    code, printed = found.groups()
    exec(compile(code, "docs/explanation/depth-first-fusion.md", "exec"), {})
    assert capsys.readouterr().out == printed
