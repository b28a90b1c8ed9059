"""A training script that somebody has, scripts/imagenet.py, with two lines more: the same losses,
and checkpoints that either goes on from."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from minidnn.frontends.torch.torchvision import make_importable
from tests.cases.record import one_thread

SCRIPT = Path(__file__).parent / "scripts" / "imagenet.py"
#: Behind which lines of the script another one goes.
AFTER = ("import torch\n", "    model = model.to(device)\n")


def lines_of(device: str) -> tuple[str, str]:
    """For the device that follows from where the model lies, ``md.optimize(model)`` is enough."""
    given = "model" if device == "cpu" else f"model, device={device!r}"
    return "import minidnn as md\n", f"    model = md.optimize({given})\n"


def run(
    lines: tuple[str, str] | None,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *given: str,
) -> list[float]:
    """Runs the script in a folder; the losses that it prints."""
    text = SCRIPT.read_text(encoding="utf-8")
    for old, new in zip(AFTER, lines or (), strict=False):
        assert text.count(old) == 1
        text = text.replace(old, old + new)
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    options = ["--dummy", "12", "--size", "32", "-b", "6", "--seed", "3", "-p", "1", "--lr", "1e-4"]
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, *options, *given])
    with one_thread():
        exec(compile(text, SCRIPT.name, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    return [float(found) for found in re.findall(r"Loss (\S+)", printed)]


def check(
    device: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_importable()
    lines, ours, theirs = lines_of(device), tmp_path / "ours", tmp_path / "theirs"
    expected = run(None, theirs, monkeypatch, capsys, "--epochs", "1")
    found = run(lines, ours, monkeypatch, capsys, "--epochs", "1")
    assert len(found) == 2 + 1 and found == pytest.approx(expected, rel=2e-3)
    checkpoints = [folder / "checkpoint.pth.tar" for folder in (ours, theirs)]
    saved, own = (torch.load(path, weights_only=True) for path in checkpoints)
    assert list(saved["state_dict"]) == list(own["state_dict"])

    def goes_on(which: tuple[str, str] | None, begun: Path) -> list[float]:
        again = ("--resume", str(begun), "--epochs", "2")
        return run(which, tmp_path / "again", monkeypatch, capsys, *again)

    expected = goes_on(None, checkpoints[1])
    assert len(expected) == 2 + 1
    assert goes_on(None, checkpoints[0]) == pytest.approx(expected, rel=2e-3)
    if device == "cpu":
        assert goes_on(lines, checkpoints[1]) == pytest.approx(expected, rel=2e-3)


def test_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check("reference", tmp_path, monkeypatch, capsys)


@pytest.mark.full
def test_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check("cpu", tmp_path, monkeypatch, capsys)
