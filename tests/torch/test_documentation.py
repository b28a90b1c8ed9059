"""The page on fine-tuning torchvision's networks, how-to/fine-tune-torchvision.md, as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from minidnn.frontends.torch.torchvision import make_importable
from tests.torch.steps import trained_programs

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/fine-tune-torchvision.md"


@pytest.mark.full
def test_fine_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    make_importable()
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    found: dict[str, Any] = {}
    exec(compile(block, PAGE.name, "exec"), found)
    assert found["accuracy"] > 0.5
    (program,) = trained_programs(found["fast"])
    assert len(program.parts) == 1 and not program.left
    assert (tmp_path / "digits.pt").is_file()
