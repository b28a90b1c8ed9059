"""The examples of README.md run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import minidnn as md
from minidnn import models


def test_examples_run(root: Path, tmp_path: Path) -> None:
    md.save_weights(tmp_path / "resnet18.safetensors", models.resnet18().state_dict())
    readme = (root / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    end = "assert y.shape == (16, 64, 28, 28)\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join([*blocks, end])],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "explain() printed nothing"
