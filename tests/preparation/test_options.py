"""What ``minidnn quantize`` takes as data, and what commands say of options that make no sense."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.cli import main, quantize
from minidnn.quantization import calibration

REFERENCE = ("--device", "reference")
Command = Callable[..., str]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command; gives what it printed, standard output first."""

    def run(*given: object, code: int = 0) -> str:
        capsys.readouterr()
        assert main([str(each) for each in given]) == code
        return "".join(capsys.readouterr())

    return run


@pytest.fixture
def digits() -> Any:
    return md.data.digits(train=False)


def test_arrays(digits: Any, command: Command, tmp_path: Path) -> None:
    """Their accuracy is NumPy's of the same network; those without classes calibrate alone."""
    x, y = np.asarray(digits.x[:50], np.float32), np.asarray(digits.y[:50])
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "xy.npz", x=x, y=y)
    path = tmp_path / "net.safetensors"
    given = ("quantize", "digits", path, "--weights", "default", "--batch", 8, *REFERENCE)
    out = command(*given, "--data", tmp_path / "xy.npz")
    net = md.models.digits(weights="DEFAULT")
    padded = np.concatenate([x, x[:6]])
    shares = []
    for graph in (net, path):
        shape = (8, 1, 8, 8) if graph is net else None
        exe = md.compile(graph, shape, device="reference")
        found = np.concatenate([np.asarray(exe(each)) for each in np.split(padded, 7)])[:50]
        shares.append(100 * float((found.argmax(1) == y).mean()))
    assert "accuracy: {:.1f} % of 50 before, {:.1f} % after".format(*shares) in out
    assert md.load_preparation(path) == md.Preparation(8, 8, channels=1)  # as published
    assert "accuracy is not measured" in command(*given, "--data", tmp_path / "x.npy")


def test_digits_by_their_name(digits: Any, command: Command, tmp_path: Path) -> None:
    """As for training: the others of them are what accuracy is measured on."""
    path = tmp_path / "net.safetensors"
    given = ("--weights", "default", "--batch", 60, "--samples", 60, *REFERENCE)
    out = command("quantize", "digits", path, "--data", "digits", *given)
    exe = md.compile(path, device="reference")
    x = np.asarray(digits.x, np.float32)
    right = sum(
        int((np.asarray(exe(each)).argmax(1) == target).sum())
        for each, target in zip(np.split(x, 6), np.split(digits.y, 6), strict=True)
    )
    assert f"of 360 before, {100 * right / 360:.1f} % after" in out
    assert set(quantize.RANGES) == {*calibration.RANGES}


def test_arrays_of_several_inputs(command: Command, tmp_path: Path) -> None:
    a, b = L.Input((6,), name="a"), L.Input((6,), name="b")
    net = md.Model({"a": a, "b": b}, L.Linear(6, 3)(a + b))
    md.save_graph(net, tmp_path / "two.safetensors", [(2, 6), (2, 6)])
    random = np.random.default_rng(0)
    given = {name: random.standard_normal((5, 6)).astype(np.float32) for name in "ab"}
    np.savez(tmp_path / "two.npz", y=np.arange(5) % 3, **given)  # type: ignore[arg-type]
    out = command(
        *("quantize", tmp_path / "two.safetensors", tmp_path / "out.safetensors"),
        *("--data", tmp_path / "two.npz", *REFERENCE),
    )
    assert re.search(r"accuracy: [\d.]+ % of 5 before", out)
    assert md.load_preparation(tmp_path / "out.safetensors") is None
    err = command(
        *("quantize", tmp_path / "two.safetensors", tmp_path / "out.safetensors"),
        *("--data", tmp_path, *REFERENCE),
        code=2,
    )
    assert "which pictures do not become; valid is a file with arrays" in err


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"z": np.zeros((4, 1, 8, 8), np.float32)}, "has arrays z; valid are"),
        ({"x": np.zeros((4, 1, 8, 9), np.float32)}, "is float32[4, 1, 8, 9]; valid is float32['N'"),
        ({"x": np.zeros((4, 1, 8, 8), np.uint8)}, "is uint8[4, 1, 8, 8]; valid is float32['N', 1"),
        ({"x": np.zeros((0, 1, 8, 8), np.float32)}, "is float32[0, 1, 8, 8]"),
        (
            {"x": np.zeros((2, 1, 8, 8), np.float32), "y": np.array([0, 10])},
            "array y is int64[2]; valid are 2 integers from 0 to 9",
        ),
        ({"x": np.zeros((2, 1, 8, 8), np.float32), "y": np.zeros(2)}, "array y is float64[2]"),
        ({"x": np.array([{}])}, "cannot be read: Object arrays cannot be loaded"),
    ],
)
def test_arrays_that_do_not_fit(
    arrays: dict[str, np.ndarray], text: str, command: Command, tmp_path: Path
) -> None:
    np.savez(tmp_path / "data.npz", **arrays)  # type: ignore[arg-type]
    given = ("quantize", "digits.DEFAULT", tmp_path / "net.onnx", "--data", tmp_path / "data.npz")
    err = command(*given, *REFERENCE, code=2)
    assert text in err and "internal error" not in err
    assert not (tmp_path / "net.onnx").exists()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("quantize", "digits", "net.pb", "--data", "."), "FILE 'net.pb': valid are names that"),
        (("quantize", "digits.DEFAULT", "net.onnx", "--data", "no"), "there is no such folder"),
        (("quantize", "digits.DEFAULT", "net.onnx", "--data", "x.npy"), "there is no such folder"),
        (("quantize", "digits.DEFAULT", "net.onnx", "--data", "bad.npz"), "cannot be read: "),
        (
            ("quantize", "digits.DEFAULT", "n.onnx", "--data", "fashion-mnist"),
            "valid is fashion-mnist:FOLDER",
        ),
        (
            ("quantize", "digits.DEFAULT", "n.onnx", "--data", "x.npz", "--keep", "conv9"),
            "keep names 'conv9'; valid is a collection of",
        ),
        (
            ("export", "digits.DEFAULT", "net.onnx", "--mean", "0.1,0.2"),
            "mean=(0.1, 0.2); valid are 1 finite numbers",
        ),
        (("export", "digits.DEFAULT", "n.onnx", "--std", "0"), "std=(0.0,); valid are 1 finite"),
        (("export", "digits.DEFAULT", "n.onnx", "--resize", "4"), "--resize 4 is less than the 8"),
        (
            ("export", "digits.DEFAULT", "n.onnx", "--labels", "imagenet"),
            "has 1000 names, but the network has 10 outputs",
        ),
        (
            ("export", "flat.safetensors", "n.onnx", "--mean", "0.5"),
            "--mean: network 'flat.safetensors' takes (2, 6); valid for one input of square",
        ),
        (
            ("classify", "x.png", "--network", "bad.safetensors"),
            "'minidnn.preparation' are damaged",
        ),
        (("export", "bad.safetensors", "n.onnx"), "'minidnn.preparation' are damaged"),
        (("classify", "x.png", "--network", "other.safetensors"), "preparation makes pictures of"),
        (("classify", "x.png", "--network", "names.safetensors"), "the file names 2 classes, and"),
    ],
)
def test_what_makes_no_sense(
    given: tuple[str, ...],
    text: str,
    digits: Any,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    image.new("L", (9, 9)).save("x.png")
    np.savez("x.npz", x=np.asarray(digits.x[:4], np.float32))
    Path("bad.npz").write_bytes(b"PK\x03\x04 and nothing more")
    md.save_graph(L.Linear(6, 3), "flat.safetensors", (2, 6))
    graph = md.load_graph(_saved(tmp_path, None))
    own = md.Preparation(8, 8, 1, classes=("a", "b"))
    md.save_graph(graph, "names.safetensors", preparation=own)
    arrays = md.load_weights("digits.safetensors")
    text_of_graph = _metadata(tmp_path / "digits.safetensors")
    rest = ', "classes": null, "interpolation": "bilinear"}'
    for name, size in (("bad", '"many"'), ("other", "9")):
        said = f'{{"resize": 9, "crop": {size}, "channels": 1, "mean": [0], "std": [1]'
        metadata = text_of_graph | {"minidnn.preparation": said + rest}
        md.save_weights(arrays, f"{name}.safetensors", metadata)
    err = command(*given, code=2)
    assert text in err and "internal error" not in err


def _saved(folder: Path, preparation: md.Preparation | None) -> Path:
    path = folder / "digits.safetensors"
    net = md.models.digits(weights="DEFAULT")
    md.save_graph(net, path, (1, 1, 8, 8), preparation=preparation)
    return path


def _metadata(path: Path) -> dict[str, str]:
    import safetensors

    with safetensors.safe_open(path, "np") as file:
        found: dict[str, str] = file.metadata()
    return found


@pytest.mark.parametrize("text", ["", "x", "0.5,", "nan", "1,inf"])
def test_numbers_that_are_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["classify", "x.png", f"--mean={text}"])
    assert "are no numbers; valid are 0.5 and 0.485,0.456,0.406" in capsys.readouterr().err


def test_options_say_how_a_file_of_others_is_prepared(command: Command, tmp_path: Path) -> None:
    """One number is for all channels; the other things are as is usual."""
    md.save_onnx(
        md.Sequential(L.AdaptiveAvgPool2d(1), L.Flatten()), tmp_path / "net.onnx", (1, 3, 8, 8)
    )
    labels = tmp_path / "labels.txt"
    labels.write_text("a\nb\nc\n")
    options = ("--mean", "0.5", "--std", "0.1,0.2,0.3", "--resize", 9, "--labels", labels)
    out = command("export", tmp_path / "net.onnx", tmp_path / "out.onnx", *options)
    assert "the file says" not in out
    wanted = md.Preparation(9, 8, 3, (0.5,) * 3, (0.1, 0.2, 0.3), ("a", "b", "c"))
    assert md.load_preparation(tmp_path / "out.onnx") == wanted
