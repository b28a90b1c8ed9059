"""ONNX's own backend tests, as far as their operators and types are those that we support.

The selection is a rule over each model, in :func:`why_not`; nothing is named here.  What the rule
takes must pass.  Data come with the package ``onnx``: node tests are made by its case functions,
the others are files in its folder.  Making them takes seconds, most of them for the results of
pools, and every process that collects tests needs them: they are kept beside pytest's cache.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from minidnn.frontends.onnx.convert import OpenInputsError, load_onnx
from minidnn.frontends.onnx.library import OLDEST_OPSET
from minidnn.frontends.onnx.operators import CONVERTERS
from minidnn.graph.ir import Graph

#: ONNX before 1.22 has results of int8 that wrap where the operator saturates.
WRAPS = tuple(map(int, onnx.__version__.split(".")[:2])) < (1, 22)
KEPT = Path(__file__).resolve().parents[2] / ".pytest_cache" / "onnx_cases"

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")

#: Types beside the two that are asked for: comparisons give and choices take bool.
TYPES = {TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL}

#: Types that these operators, and those beside them in their models, are asked for.
BYTES = {TensorProto.INT8, TensorProto.UINT8}
QUANTIZING = {
    *("QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger"),
    *("MatMulInteger", "DynamicQuantizeLinear"),
}

#: Dimensions of the inputs that these are for: "(1d, 2d, every attribute)".
CONVOLUTIONS = {"Conv": (3, 4), "ConvTranspose": (3, 4)}


@dataclass(frozen=True, eq=False)
class BackendCase:
    """A model with inputs and the outputs that they must give."""

    name: str
    kind: str
    model: Any
    sets: Sequence[tuple[list[Any], list[Any]]] = field(repr=False)
    rtol: float = 1e-3
    atol: float = 1e-7

    def __str__(self) -> str:
        return f"{self.kind}-{self.name.removeprefix('test_')}"

    def graphs(self) -> Iterator[tuple[Graph, list[np.ndarray], list[np.ndarray]]]:
        """For each set of data the graph, its inputs, and what its outputs must be.

        Inputs that decide shapes are given as constants, as a user of ``load_onnx`` must.
        """
        initial = {tensor.name for tensor in self.model.graph.initializer}
        names = [value.name for value in self.model.graph.input if value.name not in initial]
        for inputs, outputs in self.sets:
            given = dict(zip(names, map(np.asarray, inputs), strict=False))
            graph = _loaded(self.model, given)
            arrays = [given[value.name] for value in graph.inputs]
            yield graph, arrays, [np.asarray(output) for output in outputs]


def _loaded(model: Any, given: dict[str, np.ndarray]) -> Graph:
    constants: dict[str, np.ndarray] = {}
    while True:
        shapes = {name: array.shape for name, array in given.items() if name not in constants}
        try:
            return load_onnx(model, shapes, constants)
        except OpenInputsError as error:
            assert not set(error.names) <= set(constants), error
            constants |= {name: given[name] for name in error.names}


def why_not(case: BackendCase) -> str | None:
    """Why a case is none of those that must pass; None if it is."""
    model = case.model
    for node in _nodes(model.graph):
        if node.domain not in ("", "ai.onnx") or node.op_type not in CONVERTERS:
            return "operator"
    values = (*model.graph.input, *model.graph.output)
    if any(value.type.WhichOneof("value") != "tensor_type" for value in values):
        return "type"
    if not _types(model) <= (TYPES | BYTES if is_quantized(case) else TYPES):
        return "type"
    if model.opset_import[0].version < OLDEST_OPSET:
        return f"opset below {OLDEST_OPSET}"
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in values}
    for node in model.graph.node:
        valid = CONVOLUTIONS.get(node.op_type)
        if valid and ranks.get(node.input[0], valid[0]) not in valid:
            return "three-dimensional convolution"
        if node.op_type == "QLinearMatMul" and WRAPS and TensorProto.INT8 in _types(model):
            return "the package's results wrap"
        if node.op_type == "Dropout" and _drops_at_random(case, node):
            return "dropout in training"
    return None


def is_quantized(case: BackendCase) -> bool:
    """Whether a case has an operator for quantized numbers."""
    return any(node.op_type in QUANTIZING for node in _nodes(case.model.graph))


def _nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a graph, and of the branches in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g)


def _types(model: Any) -> set[int]:
    found = {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}
    found |= {tensor.data_type for tensor in model.graph.initializer}
    for node in _nodes(model.graph):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                found.add(attribute.t.data_type)
            if node.op_type == "Cast" and attribute.name == "to":
                found.add(attribute.i)
    return found


def _drops_at_random(case: BackendCase, node: Any) -> bool:
    """Whether it is a dropout with ``training_mode`` and a ratio, of which the specification says
    "If it is true, the output will be a random dropout": there is no one right result."""
    known = {
        n.output[0]: numpy_helper.to_array(n.attribute[0].t)
        for n in case.model.graph.node
        if n.op_type == "Constant" and n.attribute[0].name == "value"
    }
    for inputs, _ in case.sets:
        known |= dict(zip((v.name for v in case.model.graph.input), inputs, strict=False))
    names = [*node.input, "", ""]
    ratio, training = names[1], names[2]
    set_up = training in known and bool(np.any(known[training]))
    return set_up and (ratio not in known or bool(np.any(known[ratio])))


@cache
def every_case() -> tuple[BackendCase, ...]:
    """All of ONNX's cases of these kinds; made once for a tree and versions of packages."""
    made_by = (Path(__file__).read_bytes(), onnx.__version__.encode(), np.__version__.encode())
    kept = KEPT / f"{hashlib.sha256(b' '.join(made_by)).hexdigest()[:16]}.pickle"
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        own = kept.with_suffix(f".{os.getpid()}")
        own.write_bytes(pickle.dumps(_made(), protocol=5))
        own.replace(kept)
    found: tuple[BackendCase, ...] = pickle.loads(kept.read_bytes())
    return found


def _made() -> tuple[BackendCase, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of case functions that divide by zero on purpose
        from onnx.backend.test.case.node import collect_testcases

        cases = [
            BackendCase(c.name, "node", c.model, c.data_sets, c.rtol, c.atol)
            for c in collect_testcases(None)
        ]
    from onnx.backend.test.loader import load_model_tests

    for kind in KINDS[1:]:
        for test in load_model_tests(kind=kind):
            folder = Path(test.model_dir)
            case = BackendCase(
                test.name, kind, onnx.load(folder / "model.onnx"), [], test.rtol, test.atol
            )
            if why_not(case) is None:
                sets = [_data(each) for each in sorted(folder.glob("test_data_set_*"))]
                case = replace(case, sets=sets)
            cases.append(case)
    return tuple(cases)


def _data(folder: Path) -> tuple[list[Any], list[Any]]:
    def read(what: str) -> list[Any]:
        count = len(list(folder.glob(f"{what}_*.pb")))
        names = [folder / f"{what}_{i}.pb" for i in range(count)]
        return [numpy_helper.to_array(onnx.load_tensor(name)) for name in names]

    return read("input"), read("output")


@cache
def chosen_cases() -> tuple[BackendCase, ...]:
    """Those that must pass."""
    return tuple(case for case in every_case() if why_not(case) is None)
