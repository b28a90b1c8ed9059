"""Every engine that is there gives the same outputs as PyTorch, in a process of its own."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidnn.backends.cpu.isa import processor_flags
from minidnn.bench.peers import TORCH_MODES, load_inputs
from minidnn.bench.process import EngineError, EngineProcess
from minidnn.errors import DeviceError
from tests.bench.networks import with_torch
from tests.sampling import only

THREADS = 2


def needs(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (extra: bench)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with inputs, and the outputs that PyTorch has for them."""
    import torch

    folder = tmp_path_factory.mktemp("engines")
    x = np.random.default_rng(0).standard_normal((2, 16, 9, 11)).astype(np.float32)
    np.savez(folder / "inputs.npz", x)
    np.save(folder / "expected.npy", with_torch(16)(torch.from_numpy(x)).numpy())
    return folder


def check(target: str, folder: Path, **options: Any) -> EngineProcess:
    options |= {"inputs": str(folder / "inputs.npz"), "threads": THREADS}
    with EngineProcess(target, f"minidnn.bench.{target}", options, timeout=120) as engine:
        (output,) = engine.outputs()
        np.testing.assert_array_equal(output, np.load(folder / "expected.npy"))
        assert engine.about["version"] and engine.about["precision"] == "f32"
        return engine


def onnx_file(folder: Path, network: Any = None) -> str:
    import torch

    path = str(folder / "network.onnx")
    (x,) = load_inputs(str(folder / "inputs.npz"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that needs no further package is old
        given = with_torch(16) if network is None else network
        torch.onnx.export(given, (torch.from_numpy(x),), path, dynamo=False)
    return path


def test_onnxruntime(folder: Path) -> None:
    needs("onnx", "onnxruntime")
    assert check("peers:onnxruntime", folder, model=onnx_file(folder)).about["kernels"] >= 1


def test_openvino(folder: Path) -> None:
    needs("onnx", "openvino")
    assert check("peers:openvino", folder, model=onnx_file(folder)).about["kernels"] >= 1


OVERFLOWS = pytest.mark.skipif(
    not processor_flags() & {"avx512_vnni", "avx_vnni"},
    reason="ONNX Runtime's sums of bytes overflow on processors without instructions for them",
)


@pytest.mark.parametrize("engine", ["openvino", pytest.param("onnxruntime", marks=OVERFLOWS)])
def test_engines_in_int8(folder: Path, tmp_path: Path, engine: str) -> None:
    needs("onnx", "onnxruntime", engine)
    import onnx
    import torch

    (x,) = load_inputs(str(folder / "inputs.npz"))
    np.savez(tmp_path / "inputs.npz", x)
    network = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3), torch.nn.ReLU()).eval()
    target, inputs = str(tmp_path / "network.int8.onnx"), str(tmp_path / "inputs.npz")
    given = {"onnx": onnx_file(tmp_path, network), "target": target, "inputs": inputs}
    EngineProcess("int8", "minidnn.bench.peers:convert_to_int8", given, timeout=120).close()
    kinds = {node.op_type for node in onnx.load(target).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    options = {"model": target, "inputs": inputs, "threads": THREADS, "precision": "int8"}
    with EngineProcess(engine, f"minidnn.bench.peers:{engine}", options, timeout=120) as running:
        (output,) = running.outputs()
        expected = network(torch.from_numpy(x)).detach().numpy()
        error = np.abs(output - expected).max() / np.abs(expected).max()
        assert 0 < error < 0.05 and running.about["precision"] == "int8"


@pytest.mark.parametrize(
    "mode",
    only(["channels_last"], TORCH_MODES),
)
def test_torch(folder: Path, mode: str) -> None:
    network = "tests.bench.networks:with_torch"
    check("peers:torch", folder, network=network, options={"channels": 16}, mode=mode)


def test_an_unknown_mode_of_torch_is_refused(folder: Path) -> None:
    with pytest.raises(EngineError, match="mode='fast'; valid are 'eager', 'channels_last'"):
        check("peers:torch", folder, network="a:b", options={}, mode="fast")


def test_minidnn(folder: Path) -> None:
    try:
        import minidnn.backends.cpu.compilers.toolchain as toolchain

        toolchain.find_ispc()
    except DeviceError as error:
        pytest.skip(str(error))
    network = "tests.bench.networks:with_minidnn"
    engine = check("peers:minidnn", folder, network=network, options={"channels": 16})
    assert engine.about["kernels"] == 1
