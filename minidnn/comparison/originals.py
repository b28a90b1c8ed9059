"""The original engines of models, their results for each layer, and the outcome of a comparison.

ONNX Runtime is the original engine of ONNX models, and PyTorch that of its modules.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidnn.errors import DeviceError, GraphError, UnsupportedError
from minidnn.frontends.onnx.convert import load_model
from minidnn.frontends.onnx.library import import_onnx
from minidnn.frontends.onnx.model import OnnxModel, read_model, with_data_inside
from minidnn.frontends.torch.frontend import check_mode, require_torch
from minidnn.graph.ir import Graph, Value
from minidnn.graph.types import numpy_dtype, plain
from minidnn.runtime.arrays import random_array

#: The number of layers that a report shows before and after the first that differs.
AROUND = 3


@dataclass(frozen=True)
class ComparedValue:
    """One value of the model, as both engines compute it.

    Attributes:
        name: its name in the model.
        kind: the operator that computes it, or "output".
        shape: its shape.
        deviation: the largest difference as a part of the value's largest finite number; infinite
            where one of them is not finite and the other not the same.
        place: the index of the largest difference.
        original, ours: the two results at that index.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    deviation: float
    place: tuple[int, ...]
    original: float
    ours: float

    def __str__(self) -> str:
        at = f"at {self.place} {self.original:.6g} became {self.ours:.6g}"
        return f"{self.name} ({self.kind}, {self.shape}): {self.deviation:.3g}, {at}"


@dataclass(frozen=True)
class Comparison:
    """The outcome of a comparison of a model in its original engine and in minidnn.

    Attributes:
        engine: the original engine, with its version.
        device: minidnn's.
        tolerance: the largest deviation that counts as equal.
        layers: all values that both compute, in order.  They are outputs of a program of their
            own, in which less is fused than usual.
        outputs: the results of the network as it is usually compiled.
    """

    engine: str
    device: str
    tolerance: float
    layers: Sequence[ComparedValue]
    outputs: Sequence[ComparedValue]

    @property
    def first(self) -> ComparedValue | None:
        """The first layer that differs by more than the tolerance."""
        return next((layer for layer in self.layers if self._differs(layer)), None)

    @property
    def equal(self) -> bool:
        """Whether nothing differs by more than the tolerance."""
        return self.first is None and not any(map(self._differs, self.outputs))

    def _differs(self, layer: ComparedValue) -> bool:
        return not layer.deviation <= self.tolerance

    def __str__(self) -> str:
        worst = max((layer.deviation for layer in self.layers), default=0.0)
        lines = [
            f"{len(self.layers)} layers in {self.engine} and in minidnn on device {self.device!r}: "
            f"the largest deviation is {worst:.3g}; the tolerance is {self.tolerance:.3g}"
        ]
        first = self.first
        if first is not None:
            at = list(self.layers).index(first)
            lines.append(f"the first layer that differs is {first}")
            for i in range(max(0, at - AROUND), min(len(self.layers), at + AROUND + 1)):
                lines.append(f"  {'>' if i == at else ' '} {self.layers[i]}")
        for output in self.outputs:
            lines.append(f"compiled as usual, {output}")
        if first is None and not self.equal:
            lines.append(
                "it differs only when it is fused: minidnn bisect finds the rewrite that does it"
            )
        return "\n".join(lines)


def compared(name: str, kind: str, original: np.ndarray, ours: np.ndarray) -> ComparedValue:
    """Compares both results of one value."""
    expected, actual = (np.asarray(array).astype(np.float64) for array in (original, ours))
    if expected.shape != actual.shape:
        return ComparedValue(name, kind, expected.shape, np.inf, (), np.nan, np.nan)
    if not expected.size:
        return ComparedValue(name, kind, expected.shape, 0.0, (), 0.0, 0.0)
    finite = np.isfinite(expected) & np.isfinite(actual)
    same = (expected == actual) | (np.isnan(expected) & np.isnan(actual))
    with np.errstate(all="ignore"):
        differences = np.where(same, 0.0, np.where(finite, np.abs(expected - actual), np.inf))
    place = tuple(int(i) for i in np.unravel_index(int(np.argmax(differences)), differences.shape))
    scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)) or 1.0
    worst = float(differences[place]) / scale
    return ComparedValue(
        name, kind, expected.shape, worst, place, float(expected[place]), float(actual[place])
    )


@dataclass(frozen=True)
class Original:
    """A model as its own engine runs it.

    Attributes:
        engine: its name and version.
        graph: minidnn's graph of the model.
        layers: name, kind and value of each layer, in order.
        outputs: the names of the graph's outputs.
        inputs: the arrays that both engines compute on.
        results: the engine's results, by name.
    """

    engine: str
    graph: Graph
    layers: Sequence[tuple[str, str, Value]]
    outputs: Sequence[str]
    inputs: Sequence[np.ndarray]
    results: Mapping[str, np.ndarray]


#: The newest ONNX IR version to declare: ONNX Runtime refuses files of newer versions than its own,
#: whatever they contain.  Later versions only add dtypes that minidnn does not read.
_FORMAT = 10


def onnx_original(
    model: Any, inputs: Any, shape: Any, constants: Mapping[str, Any] | None, seed: int
) -> Original:
    """Runs a model in ONNX Runtime, with the values of all its nodes as outputs."""
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
    """The given inputs as arrays, by the names of the model's inputs; None if none are given."""
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
    """The arrays for the graph's inputs: the given ones, checked, or random ones."""
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
    """Runs a model in ONNX Runtime; returns its version and the values of these names."""
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
    declared = {output.name for output in proto.graph.output}
    for name in names:
        if name not in declared:
            proto.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results = session.run(list(names), dict(inputs))
    except Exception as error:  # its exceptions have no common base
        raise GraphError(f"ONNX Runtime cannot run {parsed.title}: {error}") from error
    return f"ONNX Runtime {onnxruntime.__version__}", results


def torch_original(
    model: Any, inputs: Any, shape: Any, constants: Mapping[str, Any] | None, seed: int
) -> Original:
    """Runs a module in PyTorch, with the results of all operations that were captured of it."""
    require_torch()
    import torch

    if constants:
        raise GraphError("a PyTorch module is compared without constants; valid are inputs")
    check_mode(model)
    from minidnn.frontends.torch.capture import capture
    from minidnn.frontends.torch.convert import as_numpy, convert, judge_operations, label_of

    if isinstance(inputs, Mapping):
        inputs = _in_order(model, inputs)
    given = _given(inputs, shape, seed)
    weights = [*model.parameters(), *model.buffers()]
    tensors = [torch.as_tensor(a, device=weights[0].device if weights else None) for a in given]
    captured = capture(model, tensors)
    left: dict[Any, str] = {}
    operations = captured.operations
    judge_operations(operations, captured.constants, captured.tensor, lambda graph: None, left)
    if left:
        reasons = dict.fromkeys(captured.unknown(node, reason) for node, reason in left.items())
        raise UnsupportedError(
            "these operations of the module are not known, so that it cannot be compared as a "
            "whole:\n  " + "\n  ".join(reasons)
        )
    single = [node for node in operations if isinstance(node.meta.get("val"), torch.Tensor)]
    part = convert(operations, captured.constants, captured.tensor, "compared", single)
    found: dict[Any, Any] = {}
    leaves = {
        node: captured.tensor(node) if node in captured.held else tensors[captured.given[node]]
        for node in captured.module.graph.nodes
        if node.op == "placeholder"
    }

    class Recorder(torch.fx.Interpreter):
        def run_node(self, node: Any) -> Any:
            found[node] = super().run_node(node)
            return found[node]

    with torch.no_grad():
        Recorder(captured.module).run(*leaves.values())
    names = {node: f"{label_of(node)}:{node.name}" for node in single}
    layers = [
        (names[node], str(node.target).removeprefix("aten."), value)
        for node, value in zip(part.outputs, part.graph.outputs, strict=True)
        if value.producer is not None
    ]
    results = {names[node]: as_numpy(found[node]) for node in single}
    ends = [node for node in single if any(user.op == "output" for user in node.users)]
    values = dict(zip(part.outputs, part.graph.outputs, strict=True))
    graph = Graph(
        part.graph.inputs, [values[node] for node in ends], part.graph.nodes, part.graph.name
    )
    arrays = [as_numpy(leaves[node]) for node in part.inputs]
    outputs = [names[node] for node in ends]
    return Original(f"PyTorch {torch.__version__}", graph, layers, outputs, arrays, results)


def _in_order(model: Any, inputs: Mapping[str, Any]) -> list[Any]:
    """Inputs given by the names of ``forward``'s parameters, in the order of these."""
    signature = inspect.signature(model.forward)
    try:
        bound = signature.bind(**inputs)
    except TypeError as error:
        raise GraphError(
            f"inputs of {[*inputs]!r:.100} given: {error}; valid are those of "
            f"{type(model).__name__}.forward{signature}"
        ) from None
    if bound.kwargs:
        raise GraphError(
            f"inputs of {[*inputs]!r:.100} given; valid are the first parameters of "
            f"{type(model).__name__}.forward{signature}, without a gap"
        )
    return list(bound.args)


def _given(inputs: Any, shape: Any, seed: int) -> list[Any]:
    """The arrays or tensors that the module is called with; random arrays of ``shape`` if given."""
    if (inputs is None) == (shape is None):
        raise GraphError(
            "a PyTorch module is compared on inputs, an array or a sequence of them, or on random "
            "numbers of the shape that shape= gives, or of a sequence of shapes; valid is one of "
            "both"
        )
    if inputs is not None:
        given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        for each in given:
            if not isinstance(each, np.ndarray) and not hasattr(each, "detach"):
                raise GraphError(
                    f"inputs: {each!r:.80} is a {type(each).__name__}; valid are arrays and tensors"
                )
        return given
    shape = plain(shape)
    shapes = [shape] if _is_shape(shape) else shape
    if not isinstance(shapes, (list, tuple)) or not all(map(_is_shape, shapes)):
        raise GraphError(
            f"shape={shape!r:.80}; valid is a shape such as (1, 3, 224, 224), or a sequence of them"
        )
    random = np.random.default_rng(seed)
    return [random.standard_normal(each, np.float32) for each in shapes]


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, (list, tuple)) and all(
        type(size) is int and size >= 0 for size in shape
    )
