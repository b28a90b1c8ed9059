"""``minidnn bench --device cuda`` with a process that only counts, and on a GPU with real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minidnn.backends.backend import get_backend
from minidnn.bench import devices
from minidnn.bench.engines import NAMES, OWN
from minidnn.errors import DeviceError
from tests.cli.benching import bench, entries

PEERS = ["torch", "torch-channels-last"]
DTYPES = ("float16", "tf32")
LITTLE = ("--rounds", "6", "--burst", "0.004", "--against", ",".join(PEERS))


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has engines that count, on a GPU that is not there."""
    monkeypatch.setattr(devices, "TARGET", "tests.bench.engines:cell")
    monkeypatch.setattr(devices, "TORCH", ())
    monkeypatch.setattr(devices, "get_backend", lambda device: None)
    monkeypatch.setattr(devices.Gpu, "machine", lambda self: "a GPU, a driver")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def on_cuda(
    capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0
) -> tuple[list[str], str]:
    return bench(capsys, "--device", "cuda", *arguments, code=code)


def test_tables_know_all_engines() -> None:
    assert set(devices.PEERS) < set(NAMES)


def test_every_precision_and_batch_is_a_cell(
    capsys: pytest.CaptureFixture[str], counting: None, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    lines, err = on_cuda(
        capsys,
        "resnet18",
        "--batch",
        "1,32",
        "--precision",
        "float16,tf32",
        "--json",
        path,
        *LITTLE,
    )
    assert err == ""
    names = [f"resnet18, batch {n}, 224x224, {p}, cuda" for n in (1, 32) for p in DTYPES]
    assert [line for line in lines if line.startswith("resnet18")] == names
    assert [line.split()[0] for line in lines[1:5]] == ["engine", OWN, *PEERS]
    cases = entries(path)
    assert list(cases) == names
    (machines,) = json.loads(path.read_text())["runs"].values()
    assert list(machines) == ["a GPU, a driver"]
    own, first, second = (cases[names[3]]["engines"][name] for name in (OWN, *PEERS))
    assert (own["shape"], own["precision"], own["sees"]) == ([32, 3, 224, 224], "tf32", "0")
    assert own["rounds"] == pytest.approx([1e-3 * n for n in range(1, 7)]) and "ratio" not in own
    assert first["ratio"] == pytest.approx({"value": 2, "low": 2, "high": 2})
    assert second["seconds"]["value"] == pytest.approx(10.5e-3) and own["deviation"] == 0.25
    assert cases[names[3]]["device"] == "cuda" and cases[names[3]]["dtype"] == "tf32"


def test_pieces_go_on_and_merge(
    capsys: pytest.CaptureFixture[str], counting: None, tmp_path: Path
) -> None:
    path, other, svg = tmp_path / "r.json", tmp_path / "other.json", tmp_path / "r.svg"
    asked = ("alexnet", "vgg11", "--json", path, *LITTLE)
    for count in (1, 2, 2):  # in each piece one case, whole, until all are there
        on_cuda(capsys, *asked, "--seconds", "0.001")
        cases = entries(path)
        assert [name.split(",")[0] for name in cases] == ["alexnet", "vgg11"][:count]
        for case in cases.values():
            assert [len(case["engines"][n]["rounds"]) for n in (OWN, *PEERS)] == [6] * 3
    written = path.read_text()
    on_cuda(capsys, *asked)
    assert path.read_text() == written  # nothing is measured twice
    on_cuda(capsys, "alexnet", "--json", path, *LITTLE, "--rounds", 8)
    own = entries(path)["alexnet, batch 1, 224x224, float32, cuda"]["engines"][OWN]
    assert own["rounds"] == pytest.approx([1e-3 * n for n in (1, 2, 3, 4, 5, 6, 1, 2)])
    on_cuda(capsys, "resnet18", "--json", other, *LITTLE)
    lines, _ = on_cuda(capsys, "--merge", path, "--json", other, "--markdown", "--plot", svg)
    assert lines[0] == "| case | minidnn, ms | torch | torch-channels-last | deviation |"
    assert len(lines) == 5 and len(entries(other)) == 3 and "alexnet, batch 1" in svg.read_text()


def test_a_peer_that_fails_does_not_stop_the_others(
    capsys: pytest.CaptureFixture[str], counting: None, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    lines, _ = on_cuda(
        capsys, "alexnet", "--json", path, "--rounds", 2, "--against", "torch-calls,torch", code=1
    )
    (case,) = entries(path).values()
    assert case["engines"]["torch-calls"]["error"] == "ValueError: no torch-calls"
    assert "ratio" in case["engines"]["torch"] and "failed" in lines[-1]


def test_minidnn_itself_must_work(capsys: pytest.CaptureFixture[str], counting: None) -> None:
    for more in ([], ["--prepare"]):
        _, err = on_cuda(capsys, "alexnet", "--batch", 13, *LITTLE, *more, code=2)
        assert "engine 'minidnn': could not make: ValueError: no minidnn" in err
    assert on_cuda(capsys, "alexnet", *LITTLE, "--prepare") == ([], "")


@pytest.mark.parametrize(("seen", "sees"), [(None, "1"), ("2,5", "5")])
def test_another_gpu(
    capsys: pytest.CaptureFixture[str],
    counting: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seen: str | None,
    sees: str,
) -> None:
    if seen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    path = tmp_path / "r.json"
    on_cuda(capsys, "alexnet", "--device", "cuda:1", "--json", path, *LITTLE)
    (case,) = entries(path).values()
    assert case["engines"][OWN]["sees"] == sees


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "openvino"], "--against 'openvino': valid on a GPU are torch, torch-"),
        (["--precision", "int8"], "--precision 'int8': valid are float32, tf32, float16, bfloat16"),
        (["--threads", "2"], "--threads 2: it is of the CPU, not of 'cuda'"),
        (["--isa", "avx2"], "--isa avx2: it is of the CPU, not of 'cuda'"),
        (["--tune"], "--tune: it is of the CPU, not of 'cuda'"),
        (["net.onnx"], "NET 'net.onnx': PyTorch's modes, which are the peers on 'cuda', take "),
        (["--device", "tpu"], "--device 'tpu': valid are cpu, cuda and cuda:1"),
    ],
)
def test_wrong_arguments_are_named(
    capsys: pytest.CaptureFixture[str], counting: None, arguments: list[str], message: str
) -> None:
    _, err = on_cuda(capsys, "alexnet", *arguments, code=2)
    assert message in err


def test_without_a_gpu_nothing_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "TORCH", ())
    try:
        get_backend("cuda")
    except DeviceError as error:
        _, err = on_cuda(capsys, "alexnet", code=2)
        assert str(error) in err
    _, err = on_cuda(capsys, "alexnet", "--device", "cuda:99", code=2)
    assert "cuda:99" in err


@pytest.mark.gpu
@pytest.mark.early
def test_real_modes_agree(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    on_cuda(
        capsys, "squeezenet1_1", "--size", "64", "--batch", 2, "--precision", "float16,float32",
        "--against", "torch,torch-channels-last,torch-compile,torch-calls", "--json", path,
        "--rounds", 2, "--burst", 0.01,
    )  # fmt: skip
    half, single = entries(path).values()
    for case, most in ((half, 5e-3), (single, 1e-5)):
        assert list(case["engines"]) == [OWN, *PEERS, "torch-compile", "torch-calls"]
        for name, record in case["engines"].items():
            assert record["deviation"] < most, name
            assert 1e-6 < record["seconds"]["value"] < 1 and record["compile_seconds"] > 0, name
        assert case["engines"][OWN]["memory_bytes"] > 1 << 20
