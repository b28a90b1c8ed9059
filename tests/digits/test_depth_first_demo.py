"""``make demo``'s second part: what it computes and prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from demo.depth_first import PIXELS, chain, compare, crops, photographs, space_to_depth
from minidnn import layers as L


def test_photographs_are_normalized() -> None:
    images = photographs()
    assert images.shape == (2, 3, 424, 640) and images.dtype == np.float32
    assert 0.5 < images.std() < 2 and np.abs(images).max() < 3


def test_space_to_depth_keeps_pixels() -> None:
    images = photographs()
    blocks = space_to_depth(images)
    assert blocks.shape == (2, 3 * PIXELS**2, 424 // PIXELS, 640 // PIXELS)
    assert (
        blocks[1, PIXELS**2 + 2 * PIXELS + 3, 7, 9] == images[1, 1, 7 * PIXELS + 2, 9 * PIXELS + 3]
    )


def test_half_of_the_chains_scales_are_negative() -> None:
    state = chain(3, 48).state_dict()
    scales = [array for name, array in state.items() if name.endswith(".weight")]
    assert len(scales) == 3 and all((scale < 0).sum() == 24 for scale in scales)


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    x = crops(photographs(), 24)
    net = md.Sequential(L.Conv2d(3, 8, 3, padding=1), L.ReLU(), chain(2, 8))
    compare("a network", md.calibrate(net, x), x, "reference")
    out = capsys.readouterr().out
    assert out.startswith("\na network\non 2 x 3 x 24 x 24 numbers of both photographs\n")
    layers, fused = re.findall(r"^  (?:layer by layer|depth first) +(\d+) kernels", out, re.M)
    assert int(fused) < int(layers)
    assert re.search(r"depth first .* ms, \d+\.\d\d times as fast \(compiled in \d", out)
    assert "agreement: equal to the last bit\n" in out
    assert re.search(r"fused: .*1 contractions with what stands before and after them", out)


@pytest.mark.full
def test_it_runs(root: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(root / "demo" / "depth_first.py"), "--blocks", "4"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "weights are random here" in done.stdout and "the chain of 4 x" in done.stdout
