"""Mutated models: no crash, no hang, no great allocation, always one of our exceptions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from .mutate import MOST_SECONDS

OURS = {"GraphError", "OpenSizesError", "UnsupportedError", "OpenInputsError", "OutOfMemoryError"}


def read_mutated(root: Path, folder: Path, first: int, count: int) -> None:
    (folder / "link").symlink_to("/etc")
    (folder / "model.onnx").touch()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.onnx.mutate", f"{first}", f"{count}", folder],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60 + count,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == count, f"ended with {done.returncode} after {len(lines)}: {done.stderr}"
    wrong = [line for line in lines if line["outcome"] not in {"read", *OURS}]
    assert not wrong, f"seed {wrong[0]['seed']}: {wrong[0]['outcome']}"
    assert max(line["seconds"] for line in lines) < MOST_SECONDS
    counts = Counter(line["outcome"] for line in lines)
    # The mutations are neither harmless nor always fatal, and reach every kind of refusal.
    assert counts["read"] > 0.03 * count and counts["GraphError"] > 0.2 * count, counts
    assert counts["UnsupportedError"] > 0, counts


def test_mutated_models(root: Path, tmp_path: Path) -> None:
    read_mutated(root, tmp_path, 0, 500)


@pytest.mark.full
@pytest.mark.parametrize("first", range(500, 10_500, 1000))
def test_many_mutated_models(first: int, root: Path, tmp_path: Path) -> None:
    read_mutated(root, tmp_path, first, 1000)
