"""The examples of README.md and of docs/using.md run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import minidnn as md
from minidnn import models
from minidnn.backends.backend import default_device


def blocks_of(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_examples_run(root: Path, tmp_path: Path) -> None:
    md.save_weights(models.resnet18().state_dict(), tmp_path / "resnet18.safetensors")
    blocks = blocks_of(root / "README.md")
    assert len(blocks) == 2
    end = "assert y.shape == (16, 64, 28, 28)\n"
    run_blocks([*blocks, end], root, tmp_path)


def test_examples_of_using_run(root: Path, tmp_path: Path) -> None:
    if default_device()[0] == "reference":
        pytest.skip("the reference does not time regions")
    run_blocks(blocks_of(root / "docs" / "using.md"), root, tmp_path)


def run_blocks(blocks: list[str], root: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "explain() printed nothing"
