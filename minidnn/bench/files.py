"""Cases of ONNX files: the model that all engines load, its inputs, and ONNX Runtime's outputs.

Every engine loads the same copy of the file, with static shapes and with all weights inside.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from minidnn.bench.networks import SEED, Case, Prepared, noise, write_reference, write_whole
from minidnn.bench.process import EngineProcess
from minidnn.bench.worker import LoadedEngine
from minidnn.errors import GraphError, UnsupportedError
from minidnn.frontends.onnx.convert import load_model
from minidnn.frontends.onnx.model import read_model, with_data_inside
from minidnn.graph.ir import Graph

#: Hexadecimal digits of the file's digest in the name of a case.
_DIGITS = 8


def file_case(
    path: str,
    batch: int,
    size: tuple[int, int] | None = None,
    threads: int = 1,
    isa: str | None = None,
    tune: bool = False,
) -> Case:
    """The case of an ONNX file; ``batch`` and ``size`` bind the sizes that it leaves open.

    Raises:
        GraphError: the file has other sizes, leaves more sizes open, or does not have one input of
            images (N, C, H, W) in float32 and one output.
        UnsupportedError: minidnn cannot run it.
    """
    graph = _graph(path, batch, size)
    x = graph.inputs[0].type if len(graph.inputs) == 1 else None
    if x is None or x.rank != 4 or x.dtype != "float32" or len(graph.outputs) != 1:
        types = ", ".join(str(value.type) for value in graph.inputs)
        raise GraphError(
            f"network {path!r} has inputs {types} and {len(graph.outputs)} outputs; valid are one "
            "input of images, float32[N, C, H, W], and one output"
        )
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:_DIGITS]
    batch, channels, rows, columns = x.shape
    name = f"{Path(path).name}@{digest}"
    return Case(
        name, batch, rows, columns, "float32", threads, isa, tune, channels, os.path.abspath(path)
    )


def prepare_file(case: Case, folder: Path) -> Prepared:
    """Writes those files of a case that ``folder`` does not have yet.

    Raises:
        EngineError: ONNX Runtime is missing, or cannot run the model.
    """
    prepared = _with_inputs(case, folder)
    if not prepared.expected.exists():
        files = {"inputs": str(prepared.inputs), "expected": str(prepared.expected)}
        options = {"model": str(prepared.onnx), **files}
        EngineProcess(f"preparing {case.network}", f"{__name__}:expected_of", options).close()
    return prepared


def prepare_file_alone(case: Case, folder: Path) -> Prepared:
    """Does what :func:`prepare_file` does if there are no peers: the expected outputs are those of
    minidnn's reference."""
    prepared = _with_inputs(case, folder)
    if not prepared.expected.exists():
        write_reference(prepared, f"{__name__}:path_of", {"path": str(prepared.onnx)})
    return prepared


def _with_inputs(case: Case, folder: Path) -> Prepared:
    prepared = Prepared(case, folder)
    if not prepared.onnx.exists():
        data = bound_model(case.file, case.shape)
        write_whole(prepared.onnx, lambda path: path.write_bytes(data))
    if not prepared.inputs.exists():
        x = noise(case.shape, SEED + 1)
        write_whole(prepared.inputs, lambda path: np.savez(path, x=x))
    return prepared


def _graph(path: str, batch: int, size: tuple[int, int] | None) -> Graph:
    model = read_model(path)
    shapes: dict[str, tuple[int, ...]] = {}
    for declared in model.inputs:
        if declared.sizes is not None and len(declared.sizes) == 4:
            asked = (batch, None, *(size or (None, None)))
            bound = [a if a is not None else b for a, b in zip(asked, declared.sizes, strict=True)]
            if all(isinstance(each, int) for each in bound):
                shapes[declared.name] = tuple(int(each or 0) for each in bound)
    return load_model(model, shapes)[0]


def bound_model(path: str, shape: tuple[int, ...]) -> bytes:
    """The model, serialized with static shapes of its input and output and with all weights
    inside."""
    model = read_model(path)
    (declared,) = model.inputs
    graph, _ = load_model(model, {declared.name: shape})
    proto = with_data_inside(model)
    ends = {declared.name: shape, model.outputs[0]: graph.outputs[0].shape}
    for value in (*proto.graph.input, *proto.graph.output):
        if value.name in ends:
            dims = value.type.tensor_type.shape
            dims.ClearField("dim")
            for size in ends[value.name]:
                dims.dim.add().dim_value = size
    proto.graph.ClearField("value_info")  # shapes of intermediate values, which no longer hold
    data: bytes = proto.SerializeToString()
    return data


# Functions that the engines' processes call


def path_of(path: str) -> str:
    """The network that minidnn compiles: the path of the file."""
    return path


def expected_of(model: str, inputs: str, expected: str) -> LoadedEngine:
    """Writes ONNX Runtime's outputs without graph optimizations; the returned engine does
    nothing."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    with np.load(inputs) as arrays:
        (result,) = session.run(None, {session.get_inputs()[0].name: arrays["x"]})
    if result.dtype != np.float32:
        raise UnsupportedError(f"the output is {result.dtype}; valid is float32")

    def save(path: Path) -> Any:
        np.save(path, result)

    write_whole(Path(expected), save)
    return LoadedEngine(lambda: None, about={"version": ort.__version__})
