"""Profiles: every region's time beside the machine's roofline; why stacks are cut."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu.backend import CpuProgram
from minidnn.cli import main
from minidnn.errors import GraphError, UnsupportedError


def chain(blocks: int) -> md.Sequential:
    layers: list[L.Layer] = []
    for _ in range(blocks):
        layers += [L.MaxPool2d(3, 1, 1), L.BatchNorm2d(32), L.ReLU()]
    return md.Sequential(L.Conv2d(3, 32, 3, padding=1), *layers, L.Conv2d(32, 16, 1))


SHAPE = (2, 3, 40, 40)


def test_profile_has_every_kernel() -> None:
    exe = md.compile(chain(2), SHAPE, device="cpu", threads=2)
    x = np.zeros(SHAPE, np.float32)
    profile = exe.profile(x, runs=3)
    assert isinstance(exe.program, CpuProgram)
    names = [region.name for region in profile.regions]
    assert names == list(dict.fromkeys(task.node.name for task in exe.program.tasks))
    by_kind = {region.kind: region for region in profile.regions}
    contraction = by_kind["contraction" if "contraction" in by_kind else "elementwise"]
    assert all(0 < region.seconds < 1 and region.bytes > 0 for region in profile.regions)
    # The first convolution: a multiply-add for each of 27 taps, and the bias.
    assert profile.regions[0].operations == pytest.approx(2 * 27 * 2 * 32 * 1600, rel=0.05)
    assert contraction.bound_seconds > 0
    layers = {layer for region in profile.regions for layer in region.layers}
    assert {"0", "1", "3", "6", "7"} <= layers
    assert profile.seconds == pytest.approx(sum(r.seconds for r in profile.regions))
    lines = str(profile).splitlines()
    rest = lines[len(profile.regions) + 2 :]
    assert [line.partition(":")[0] for line in rest] == [f"not by F({n}x{n}, 3x3)" for n in (2, 4)]
    assert re.fullmatch(
        rf"{len(names)} kernels, \d+\.\d{{3}} ms measured \(medians of 3 runs\), \d+% of the "
        r"roofline",
        lines[len(profile.regions) + 1],
    )


def test_explain_measures_when_asked() -> None:
    exe = md.compile(chain(1), SHAPE, device="cpu")
    plain, measured = exe.explain(), exe.explain(measure=True)
    assert "ms predicted" in plain and "ms measured" not in plain
    assert "ms measured" in measured and "ms predicted" not in measured
    # What is around the table is the same.
    assert plain.splitlines()[0] == measured.splitlines()[0]
    assert plain.splitlines()[-1] == measured.splitlines()[-1]


def test_profile_refuses() -> None:
    exe = md.compile(chain(1), SHAPE, device="cpu")
    with pytest.raises(GraphError, match="runs=0; valid is a number of runs of at least 1"):
        exe.profile(np.zeros(SHAPE, np.float32), runs=0)
    with pytest.raises(GraphError, match="has shape"):
        exe.profile(np.zeros((1, 3, 4, 4), np.float32))
    exe = md.compile(chain(1), SHAPE, device="reference")
    with pytest.raises(UnsupportedError, match="device 'reference' does not time regions"):
        exe.profile(np.zeros(SHAPE, np.float32))


def test_command_measures(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["explain", "digits", "--device", "cpu", "--measure"]
    assert main(arguments) == 0
    assert " kernels, " in (text := capsys.readouterr().out) and "% of the roofline" in text
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    timed = [region for region in document["regions"] if "seconds" in region]
    assert len(timed) >= 5
    assert all(r["seconds"] > 0 and r["roofline"] >= 0 for r in timed)
    assert all(r["kind"] not in ("view", "in place") for r in timed)


def test_cuts_have_reasons() -> None:
    def cuts(strategy: str) -> list[str]:
        exe = md.compile(chain(12), (1, 3, 200, 200), device="cpu", strategy=strategy)
        return [note for note in exe.plan.notes.values() if note.startswith("cut after ")]

    five = cuts("five")
    assert len(five) == 2
    pattern = r"cut after \S+: (the strategy is 'five'|no patch of both fits the device)"
    assert all(re.fullmatch(pattern, note) for note in five)
    for note in cuts("model"):
        apart, together = map(float, re.findall(r"([\d.]+) us", note))
        assert apart <= together


def test_winograds_products_are_counted_as_they_are() -> None:
    """F(4x4) takes 36 products for 16 results of 9 taps: a quarter."""
    net = L.Sequential(L.Conv2d(64, 64, 3, padding=1), L.ReLU(), L.Conv2d(64, 64, 1))
    shape = (1, 64, 56, 56)
    exe = md.compile(net, shape, device="cpu", threads=2)
    regions = exe.profile(np.ones(shape, np.float32), runs=1).regions
    winograd, direct = (region for region in regions if region.kind == "contraction")
    assert 0.25 <= winograd.executed / winograd.operations < 0.27
    assert direct.executed == direct.operations
    text = str(exe.explain(measure=True))
    assert "[F(4x4, 3x3)]" in text and "[direct]" in text
    assert "not by F(4x4, 3x3): the kernel is 1x1, not 3x3 (1)\n" in text
