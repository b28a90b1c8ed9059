"""The laboratory's pages: the tutorial's step is right, and the metrics are those of the code."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from minidnn import lab
from tools.metrics_page import page as metrics_page

from .emulated import Case, check


def test_the_step_of_the_tutorial_is_right(root: Path, tmp_path: Path) -> None:
    page = (root / "docs/tutorials/first-kernel.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    (written,) = [block for block in blocks if "lab.CudaStep" in block]
    ladder = lab.ladder_of("conv")
    given: dict[str, Any] = {"lab": lab}
    exec(written[: written.index("longer =")], given)
    odd = replace(ladder.shape, batch=2, channels=3, height=7, width=6, filters=5, padding=1)
    shapes = [odd, replace(odd, filters=4, stride=2, dilation=2)]
    check(ladder, given["pair"], [Case(shape, (16, 2)) for shape in shapes], tmp_path)


def test_the_page_of_metrics_is_that_of_the_code(root: Path) -> None:
    found = (root / "docs/reference/laboratory-metrics.md").read_text(encoding="utf-8")
    assert found == metrics_page(), "python -m tools.metrics_page prints it"
