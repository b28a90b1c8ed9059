"""Engines made for telephones, in the settings that suit them best for exact float32 on a CPU.

Both read formats of their own; the ``convert`` functions write them, in processes apart, so that
neither their time nor their memory counts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from minidnn.bench.peers import load_inputs, made_by
from minidnn.bench.worker import LoadedEngine


def mnn(model: str, inputs: str, threads: int) -> LoadedEngine:
    """MNN on a file that :func:`convert_to_mnn` wrote."""
    import MNN

    network = MNN.Interpreter(model)
    session = network.createSession({"backend": "CPU", "numThread": threads, "precision": "high"})
    (array,) = load_inputs(inputs)
    kind, layout = MNN.Halide_Type_Float, MNN.Tensor_DimensionType_Caffe
    given = MNN.Tensor(array.shape, kind, array, layout)
    entry, result = network.getSessionInput(session), network.getSessionOutput(session)
    shape = result.getShape()
    out = MNN.Tensor(shape, kind, np.zeros(shape, np.float32), layout)

    def run() -> Any:
        entry.copyFrom(given)
        network.runSession(session)
        result.copyToHostTensor(out)
        return out

    def outputs(tensor: Any) -> list[np.ndarray]:
        return [np.array(tensor.getNumpyData(), np.float32).reshape(shape)]

    return LoadedEngine(run, outputs, {"version": MNN.version(), "precision": "f32"})


def convert_to_mnn(onnx: str, target: str, **_: Any) -> LoadedEngine:
    """Converts an ONNX file; the engine does nothing.

    By the extension module: the command ``mnnconvert`` around it installs packages and reports
    its use over the network.
    """
    code = "import sys, _tools; _tools.mnnconvert(sys.argv)"
    arguments = ["-f", "ONNX", "--modelFile", onnx, "--MNNModel", target, "--bizCode", "MNN"]
    _convert([sys.executable, "-c", code, *arguments], Path(target))
    return LoadedEngine(lambda: None)


def ncnn(model: str, inputs: str, threads: int) -> LoadedEngine:
    """ncnn on files that :func:`convert_to_ncnn` wrote, image by image: it has no batches."""
    import ncnn as library

    network = library.Net()
    option = network.opt
    option.num_threads, option.use_packing_layout = threads, True
    for reduced in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(option, f"use_{reduced}", False)
    for file, load in ((model, network.load_param), (_beside(model), network.load_model)):
        if load(file) != 0:
            raise RuntimeError(f"ncnn cannot read {file}")
    (array,) = load_inputs(inputs)
    entry, result = network.input_names()[0], network.output_names()[0]
    images = [library.Mat(image).clone() for image in array]  # in ncnn's own alignment

    def run() -> Any:
        found = []
        for image in images:
            extractor = network.create_extractor()
            extractor.input(entry, image)
            found.append(np.array(extractor.extract(result)[1]))
        return [np.stack(found)]

    about = {"version": version("ncnn"), "precision": "f32"}
    return LoadedEngine(run, lambda arrays: arrays, about)


def convert_to_ncnn(
    network: str, options: Mapping[str, Any], shape: Sequence[int], target: str, **_: Any
) -> LoadedEngine:
    """Traces PyTorch's module and has pnnx convert it; the engine does nothing."""
    import torch

    spec = find_spec("pnnx")
    assert spec is not None and spec.origin is not None
    module = made_by(network, options).eval()
    with tempfile.TemporaryDirectory() as folder:
        traced = Path(folder) / "network.pt"
        with torch.no_grad():
            torch.jit.trace(module, torch.zeros(1, *shape[1:])).save(str(traced))
        sizes = ",".join(map(str, (1, *shape[1:])))
        command = [str(Path(spec.origin).parent / "pnnx"), str(traced)]
        command += [f"inputshape=[{sizes}]", "fp16=0"]
        command += [f"ncnnparam={target}", f"ncnnbin={_beside(target)}"]
        _convert(command, Path(target), Path(folder))
    return LoadedEngine(lambda: None)


def _beside(model: str) -> str:
    """The file with the weights of an ncnn network."""
    return f"{model}.bin"


def _convert(command: list[str], target: Path, folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not target.exists():
        said = (done.stdout + done.stderr).strip()[-1500:]
        raise RuntimeError(f"converting to {target.name} failed:\n{said}")
