"""The benchmark that learns Fashion-MNIST, on a few pictures of its format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fashion_mnist import main


def write(folder: Path, name: str, array: np.ndarray) -> None:
    kind = 2051 if array.ndim == 3 else 2049
    head = np.array([kind, *array.shape], ">i4").tobytes()
    (folder / name).write_bytes(head + array.astype(np.uint8).tobytes())


def test_it_learns_what_is_easy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pictures whose brightness is their class."""
    for part, count in (("train", 320), ("t10k", 40)):
        labels = np.arange(count) % 2
        bright = (labels * 200 + 20)[:, None, None]
        pictures = np.broadcast_to(bright, (count, 28, 28))
        write(tmp_path, f"{part}-images-idx3-ubyte", pictures)
        write(tmp_path, f"{part}-labels-idx1-ubyte", labels)
    options = ["--device", "reference", "--width", "2", "--batch", "32", "--epochs", "2"]
    main([str(tmp_path), *options, "--rate", "0.03"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["accuracy"] >= 0.9 and found["device"] == "reference"
