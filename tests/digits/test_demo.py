"""``make demo``: what it prints, and the picture it draws."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from demo.digits import COLUMNS, HEADER, WRONG, contact_sheet
from minidnn.backends.cpu.compilers.toolchain import find_cc, find_ispc
from minidnn.errors import DeviceError

RED = np.array([int(WRONG[i : i + 2], 16) for i in (1, 3, 5)])


def red_pixels(sheet: Image.Image) -> int:
    return int((np.asarray(sheet) == RED).all(axis=2).sum())


@pytest.mark.full
@pytest.mark.early
def test_demo_trains_and_reads_the_held_out_digits(root: Path, tmp_path: Path) -> None:
    try:
        find_ispc()
        find_cc()
    except DeviceError as error:
        pytest.skip(str(error))
    output = tmp_path / "new"
    arguments = ["--device", "cpu", "--output", str(output)]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(root / "demo" / "digits.py"), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (accuracy,) = re.findall(r"^accuracy: (\d+\.\d) %$", done.stdout, flags=re.MULTILINE)
    assert float(accuracy) >= 98.0
    with Image.open(output / "digits.png") as sheet:
        assert sheet.width > 1000
        mistakes = red_pixels(sheet.convert("RGB"))
    assert mistakes > 0, "no network of this size reads them all; are mistakes drawn?"
    curves = (output / "digits-training.svg").read_text(encoding="utf-8")
    assert all(f">{word}</text>" in curves for word in ("loss", "accuracy", "held out"))


def test_contact_sheet_marks_mistakes_only() -> None:
    images = np.random.default_rng(0).random((COLUMNS + 1, 1, 8, 8), np.float32)
    labels = np.arange(COLUMNS + 1) % 10
    right = contact_sheet(images, labels, labels, "all right")
    assert red_pixels(right) == 0
    guessed = labels.copy()
    guessed[COLUMNS] += 1  # the only digit of the second row
    wrong = contact_sheet(images, guessed, labels, "one wrong")
    changed = (np.asarray(right) != np.asarray(wrong)).any(axis=2)[HEADER:]
    rows, columns = np.nonzero(changed)
    assert rows.min() >= (right.height - HEADER) // 2 - 2
    assert columns.max() < right.width // COLUMNS * 2
    assert red_pixels(wrong) > 100
