"""The examples in docs/graphs.md run, in order, and its numbers are true."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from minidnn import models


def test_the_examples_run(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (root / "docs" / "graphs.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 6
    # Dataclasses look up their module.
    module = types.ModuleType("docs_graphs")
    monkeypatch.setitem(sys.modules, "docs_graphs", module)
    monkeypatch.chdir(tmp_path)
    for example in examples:
        exec(compile(example, "docs/graphs.md", "exec"), module.__dict__)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["resnet18.safetensors", "resnet18.svg"]


def test_the_summary_is_as_shown(root: Path) -> None:
    text = (root / "docs" / "graphs.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"```\n(ResNet: .*?)```", text, re.DOTALL)
    lines = models.resnet18().summary((1, 3, 224, 224)).splitlines()
    for line in table.splitlines():
        assert line == "..." or line in lines
