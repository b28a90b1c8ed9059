"""The examples of the pages about CUDA and cuDNN run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import minidnn as md
from minidnn import layers as L

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")


def run(page: Path, names: dict[str, Any]) -> dict[str, Any]:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), page.name, "exec"), names)
    return names


def channels_last(n: int, c: int, rows: int, columns: int) -> Any:
    made = cupy.random.uniform(-1, 1, (n, rows, columns, c), dtype="float32")
    return made.astype("float16").transpose(0, 3, 1, 2)


def test_the_engine(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = L.Sequential(L.Conv2d(3, 16, 3, padding=1), L.ReLU())
    x = cupy.random.uniform(-1, 1, (16, 3, 224, 224), dtype="float32").astype("float16")
    names = run(root / "docs/explanation/cuda-engine.md", {"md": md, "net": net, "x": x})
    assert names["y"].shape == (16, 16, 224, 224)
    assert capsys.readouterr().out.strip()


def test_the_binding(root: Path) -> None:
    given = {
        "x_array": channels_last(8, 64, 56, 56),
        "w_array": channels_last(64, 64, 3, 3),
        "b_array": channels_last(1, 64, 1, 1),
        "z_array": channels_last(8, 64, 56, 56),
    }
    names = run(root / "docs/reference/cudnn.md", given)
    assert names["y"].shape == (8, 64, 28, 28)
    assert float(names["y_array"].min()) == 0.0
