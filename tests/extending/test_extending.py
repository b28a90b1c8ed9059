"""A backend and a front end of third parties, found by their entry points, and their page."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.cli import main
from minidnn.errors import DeviceError, GraphError, UnsupportedError
from minidnn.report.doctor import BROKEN, FOUND, MISSING, examine

HERE = Path(__file__).parent
SHAPE = (2, 3, 8, 8)


@pytest.fixture
def installed(root: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder as installing the toys' distribution fills it, on the path."""
    shutil.copytree(HERE / "toy", tmp_path / "toy", ignore=shutil.ignore_patterns("__pycache__"))
    (block,) = blocks(root, "ini")
    info = tmp_path / "toy-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 0\n")
    (info / "entry_points.txt").write_text(block)
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "toy"]:
        del sys.modules[name]


@pytest.fixture
def broken(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another distribution beside the toys', with entry points that all fail in their own way."""
    info = installed / "ruin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ruin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[minidnn.backends]\n"
        "absent = no_such_package:Backend\n"
        "away = ruin:Away\n"
        "nothing = builtins:object\n"
        "silly = ruin:Silly\n"
        "unnamed = toy.backend:NoSuchBackend\n"
        "[minidnn.frontends]\n"
        "absent = no_such_package:FrontEnd\n"
        "blind = ruin:Blind\n"
    )
    (installed / "ruin.py").write_text(
        "from toy.backend import CountingBackend\n"
        "from toy.frontend import WordsFrontEnd\n"
        "class Away(CountingBackend):\n"
        "    def unavailable(self): return 'it is not plugged in'\n"
        "class Silly(CountingBackend):\n"
        "    def unavailable(self): return 1 / 0\n"
        "class Blind(WordsFrontEnd):\n"
        "    def accepts(self, network): raise LookupError('no eyes')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(installed))


def blocks(root: Path, language: str) -> list[str]:
    page = (root / "docs/how-to/add-a-backend-or-front-end.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)


def test_the_page_shows_the_toys_as_they_are(root: Path) -> None:
    backend, front_end = blocks(root, "python")
    assert backend == (HERE / "toy/backend.py").read_text(encoding="utf-8")
    assert front_end.startswith("class WordsFrontEnd:\n")
    assert f"\n{front_end}\n\n" in (HERE / "toy/frontend.py").read_text(encoding="utf-8")


def test_a_third_partys_backend(installed: Path) -> None:
    net = md.Sequential(L.Conv2d(3, 4, 3, padding=1), L.BatchNorm2d(4), L.ReLU(), L.MaxPool2d(2))
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    exe = md.compile(net, SHAPE, device="counting")
    np.testing.assert_array_equal(exe(x), md.compile(net, SHAPE, device="reference")(x))
    assert exe.program.count == len(exe.graph.nodes)  # type: ignore[attr-defined]
    notes = exe.plan.notes.values()
    assert "not absorbed into 0: its contractions compute nothing else" in notes


def test_the_commands_run_on_it(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "digits", "--device", "counting"]) == 0
    assert "Conv2d" in capsys.readouterr().out
    assert main(["bisect", "digits", "--device", "counting"]) == 0
    assert "rewrites the result deviates by" in capsys.readouterr().out


def test_its_refusals(installed: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"\(Softmax\(dim=1\)\): it cannot compute powers"):
        md.compile(L.Softmax(1), SHAPE, device="counting")
    text = r"^options \['speed'\] of device 'counting'; it has none$"
    with pytest.raises(UnsupportedError, match=text):
        md.compile(L.ReLU(), SHAPE, device="counting", speed=1)


def test_pytorch_runs_on_it(installed: Path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Softmax(1)).eval()
    x = torch.ones(SHAPE)
    fast = md.optimize(net, x, device="counting")
    torch.testing.assert_close(fast(x), net(x))
    assert "2: aten.softmax.int: it cannot compute powers" in fast.explain()


def test_a_third_partys_front_end(installed: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.words"
    path.write_text("conv 4 3\nrelu\n\nconv 2 1\ntanh\n")
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    y = md.compile(path, SHAPE, device="reference")(x)
    windows = [x[:, :, i : i + 6, j : j + 6] for i in range(3) for j in range(3)]
    summed = np.sum(windows, axis=(0, 2))
    expected = np.tanh(4 * np.maximum(summed, 0))
    np.testing.assert_allclose(y, np.stack([expected, expected], 1), rtol=1e-4, atol=1e-5)


def test_the_commands_take_its_files(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.words"
    path.write_text("conv 4 3\nrelu\n")
    common = (str(path), "--device", "reference")
    assert main(["explain", *common, "--shape", "2x3x8x8"]) == 0
    assert "Conv2d" in capsys.readouterr().out
    assert main(["bisect", *common, "--shape", "2x3x8x8"]) == 0
    capsys.readouterr()
    odd = tmp_path / "odd.words"
    odd.write_text("conv four\n")
    for arguments, text in (
        (common, "--shape 1x3x224x224 says it, one for each input\n"),
        ((*common, "--batch", "2"), f"--batch 2: {str(path)!r} takes --shape\n"),
        (("digits", "--shape", "1x3"), "'digits' takes --batch and --size\n"),
        ((str(odd), "--shape", "2x3x8x8"), "front end 'words' fails on "),
    ):
        assert main(["explain", *arguments]) == 2
        error = capsys.readouterr().err
        assert text in error and "internal error" not in error


def test_its_errors(installed: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.words"
    path.write_text("conv 4 3\ndream\nrelu\nhope\n")
    with pytest.raises(UnsupportedError, match=r"net.words: unknown words dream, hope$"):
        md.compile(path, SHAPE, device="reference")
    with pytest.raises(GraphError, match="shape=None; valid is the input's shape"):
        md.compile(path, device="reference")
    with pytest.raises(
        GraphError, match=r"valid are layers and graphs.*, or paths that end in \.w"
    ):
        md.compile("net.wurds", device="reference")


WHY = {
    "absent": r"No module named 'no_such_package'",
    "nothing": r"entry point nothing = builtins:object of ruin 1\.0 \(minidnn\.backends\) gives a "
    "object, which lacks something of a Backend$",
    "silly": r"entry point silly = ruin:Silly of ruin 1\.0 \(minidnn\.backends\) fails: "
    "ZeroDivisionError: ",
    "unnamed": r"NoSuchBackend of ruin 1\.0 \(minidnn\.backends\) fails: AttributeError: ",
}


@pytest.mark.parametrize("name", WHY)
def test_a_broken_backend_is_told_as_whose_it_is(broken: None, name: str) -> None:
    with pytest.raises(DeviceError, match=WHY[name]):
        md.compile(L.ReLU(), SHAPE, device=name)


def test_broken_third_parties_do_not_hinder_others(broken: None, tmp_path: Path) -> None:
    md.compile(L.ReLU(), SHAPE, device="counting")
    (tmp_path / "net.words").write_text("relu\n")
    md.compile(tmp_path / "net.words", SHAPE, device="reference")
    with pytest.raises(FileNotFoundError):
        md.compile(tmp_path / "net.onnx", SHAPE, device="reference")
    with pytest.raises(GraphError, match=r"valid are layers and .*\.words; entry point ") as caught:
        md.compile("net.wurds", device="reference")
    for text in (
        "absent = no_such_package:FrontEnd of ruin 1.0 (minidnn.frontends) fails: ModuleNotFound",
        "blind = ruin:Blind of ruin 1.0 (minidnn.frontends) fails: LookupError: no eyes",
    ):
        assert text in str(caught.value)


def test_a_file_that_only_a_broken_front_end_may_take(
    broken: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.dreams").write_text("a whole network in here")
    assert main(["explain", str(tmp_path / "net.dreams")]) == 2
    assert "; entry point absent = no_such_package:FrontEnd of ruin" in capsys.readouterr().err


def test_the_doctor_looks_at_third_parties(broken: None, installed: Path) -> None:
    found = {f.subject: f for f in examine() if f.subject.startswith(("device ", "front end "))}
    assert {subject: finding.state for subject, finding in found.items()} == {
        "device absent": BROKEN,
        "device away": MISSING,
        "device counting": FOUND,
        "device nothing": BROKEN,
        "device silly": BROKEN,
        "device unnamed": BROKEN,
        "front end absent": BROKEN,
        "front end blind": FOUND,
        "front end words": FOUND,
    }
    assert found["device counting"].found == "counting = toy.backend:CountingBackend of toy 0"
    assert found["device away"].found.endswith("of ruin 1.0: it is not plugged in")
    assert found["front end absent"].found == (
        "entry point absent = no_such_package:FrontEnd of ruin 1.0 (minidnn.frontends) fails: "
        "ModuleNotFoundError: No module named 'no_such_package'"
    )
