"""ONNX Runtime as the original engine of ONNX models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minidnn.comparison.report import Original
from minidnn.errors import DeviceError, GraphError
from minidnn.frontends.onnx.convert import load_model
from minidnn.frontends.onnx.library import import_onnx
from minidnn.frontends.onnx.model import OnnxModel, read_model, with_data_inside
from minidnn.graph.ir import Value
from minidnn.graph.types import numpy_dtype
from minidnn.runtime.arrays import random_array

#: Files say the version of their format, and ONNX Runtime refuses those newer than itself, whatever
#: they contain.  What came after this one are dtypes that minidnn does not read.
_FORMAT = 10


def original(
    model: Any, inputs: Any, shape: Any, constants: Mapping[str, Any] | None, seed: int
) -> Original:
    """The model with the values of all its nodes, by ONNX Runtime."""
    parsed = read_model(model)
    given = _by_name(parsed, inputs, constants or {})
    if shape is None and given is not None:
        shape = {name: array.shape for name, array in given.items()}
    graph, values = load_model(parsed, shape, constants)
    known = {name: np.asarray(array) for name, array in (constants or {}).items()}
    arrays = _inputs(graph.inputs, given, seed)
    fed = {value.name: array for value, array in zip(graph.inputs, arrays, strict=True)}
    layers = []
    for node in parsed.nodes:
        for name in node.output:
            value = values.get(name)
            if value is not None and value.producer is not None:
                layers.append((str(name), str(node.op_type), value))
    names = [*dict.fromkeys([*(name for name, _, _ in layers), *parsed.outputs])]
    engine, found = _run(parsed, names, fed | known)
    return Original(
        engine, graph, layers, parsed.outputs, arrays, dict(zip(names, found, strict=True))
    )


def _by_name(
    parsed: OnnxModel, given: Any, constants: Mapping[str, Any]
) -> dict[str, np.ndarray] | None:
    """The inputs that were given, an array for each of the model's by its name."""
    names = [declared.name for declared in parsed.inputs if declared.name not in constants]
    if given is None:
        return None
    if isinstance(given, Mapping):
        if set(given) != set(names):
            raise GraphError(f"inputs of {[*given]!r:.100} given; valid are those of {names}")
        return {name: _array(name, given[name]) for name in names}
    arrays = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(arrays) != len(names):
        raise GraphError(f"{len(arrays)} inputs given; valid are {len(names)}, of {names}")
    return {name: _array(name, array) for name, array in zip(names, arrays, strict=True)}


def _array(name: str, given: Any) -> np.ndarray:
    try:
        return np.asarray(given)
    except ValueError as error:  # rows of different lengths
        raise GraphError(f"input {name!r} is no array: {error}") from error


def _inputs(
    wanted: Sequence[Value], given: Mapping[str, np.ndarray] | None, seed: int
) -> list[np.ndarray]:
    if given is None:
        random = np.random.default_rng(seed)
        return [random_array(random, value.shape, numpy_dtype(value.dtype)) for value in wanted]
    for value in wanted:
        array = given[value.name]
        if array.shape != value.shape or array.dtype != numpy_dtype(value.dtype):
            raise GraphError(
                f"input {value.name!r} is {array.dtype}{list(array.shape)}; valid is {value.type}"
            )
    return [given[value.name] for value in wanted]


def _run(
    parsed: OnnxModel, names: Sequence[str], inputs: Mapping[str, np.ndarray]
) -> tuple[str, list[np.ndarray]]:
    try:
        import onnxruntime
    except ImportError as error:
        raise DeviceError(
            f"comparing ONNX models needs onnxruntime, which cannot be imported ({error}); "
            "pip install onnxruntime"
        ) from error
    onnx = import_onnx()
    proto = with_data_inside(parsed)
    proto.ir_version = min(proto.ir_version, _FORMAT)
    there = {output.name for output in proto.graph.output}
    for name in names:
        if name not in there:
            proto.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        found = session.run(list(names), dict(inputs))
    except Exception as error:  # its exceptions have no common base
        raise GraphError(f"ONNX Runtime cannot run {parsed.title}: {error}") from error
    return f"ONNX Runtime {onnxruntime.__version__}", found
