"""The numbers in docs/explanation/graph.md are true."""

from __future__ import annotations

import re
from pathlib import Path

from minidnn import models


def test_the_summary_is_as_shown(root: Path) -> None:
    text = (root / "docs/explanation/graph.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"```\n(ResNet: .*?)```", text, re.DOTALL)
    lines = models.resnet18().summary((1, 3, 224, 224)).splitlines()
    for line in table.splitlines():
        assert line == "..." or line in lines
