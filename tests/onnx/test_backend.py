"""ONNX's own backend tests on the reference and on the CPU engine."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import minidnn as md
from minidnn.backends.cpu.backend import CpuBackend
from minidnn.backends.cpu.compilers import toolchain
from minidnn.backends.cpu.isa import best_isa
from minidnn.backends.cuda.backend import CudaBackend
from minidnn.frontends.onnx.convert import load_onnx
from minidnn.frontends.onnx.operators import CONVERTERS
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from tests.cpu.warming import warm
from tests.sampling import every

from .backend_cases import (
    KINDS,
    QUANTIZING,
    BackendCase,
    chosen_cases,
    every_case,
    is_quantized,
    why_not,
)
from .test_quantized import LIMITS, tensor

#: Of so many cases one runs on the CPU engine in CI: all test converters on the reference.
OF_ENGINE = 6

Loaded = tuple[tuple[Graph, list[np.ndarray], list[np.ndarray]], ...]


@cache
def loaded(case: BackendCase) -> Loaded:
    return tuple(case.graphs())


def compare(case: BackendCase, results: Sequence[Any], expected: Sequence[np.ndarray]) -> None:
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        assert result.shape == wanted.shape
        assert result.dtype == wanted.dtype
        np.testing.assert_allclose(result, wanted, rtol=case.rtol, atol=case.atol)


def test_what_is_chosen(record_property: Callable[[str, object], None]) -> None:
    """The rule, and not a list, decides; here is how much it takes."""
    counts = {
        kind: (
            sum(case.kind == kind for case in chosen_cases()),
            sum(case.kind == kind for case in every_case()),
        )
        for kind in KINDS
    }
    reasons = Counter(why_not(case) for case in every_case())
    del reasons[None]
    text = f"ONNX backend tests chosen, of all: {counts}; left out: {dict(reasons)}"
    record_property("printed at the end", text)
    # The newest package has more cases than older ones; all have these.
    assert counts["node"][0] >= 700 and counts["simple"][0] >= 5
    assert counts["pytorch-converted"][0] >= 70 and counts["pytorch-operator"][0] >= 25
    assert reasons["dropout in training"] == 4
    assert reasons["three-dimensional convolution"] == 8


PROMISED = """
    Conv ConvTranspose MaxPool AveragePool GlobalAveragePool GlobalMaxPool BatchNormalization
    LayerNormalization InstanceNormalization LRN Gemm MatMul Relu LeakyRelu PRelu Elu Selu Celu
    Sigmoid HardSigmoid HardSwish Tanh Softplus Softsign Gelu Mish ThresholdedRelu Add Sub Mul
    Div Pow Mod Min Max Sum Mean And Or Xor Not Neg Abs Exp Log Sqrt Reciprocal Floor Ceil Round
    Sign Erf Concat Split Slice Reshape Flatten Transpose Squeeze Unsqueeze Expand Pad Gather
    ReduceMean ReduceMax ReduceMin ReduceSum ArgMax Softmax LogSoftmax Clip Resize DepthToSpace
    SpaceToDepth Dropout Constant ConstantOfShape Identity Cast Where Equal Greater Less
    GreaterOrEqual LessOrEqual Shape GridSample
"""


def test_every_operator_that_was_promised_has_a_converter() -> None:
    """The rule takes the cases of what there is; what must be there is said here."""
    promised = set(PROMISED.split())
    assert promised <= set(CONVERTERS)
    taken = {node.op_type for case in chosen_cases() for node in case.model.graph.node}
    assert promised <= taken


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", chosen_cases(), ids=str)
def test_reference(case: BackendCase) -> None:
    for graph, inputs, expected in loaded(case):
        check(graph)
        compare(case, evaluate(graph, inputs), expected)


@pytest.fixture(scope="module")
def engine(warm_cache: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """All kernels of all cases that run, compiled in one go."""
    found = os.environ.get("MINIDNN_ISPC")
    try:
        ispc = toolchain.find_ispc().path
    except md.DeviceError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIDNN_ISPC", found or ispc)
        patch.setenv("MINIDNN_CACHE", str(warm_cache))
        if (reason := CpuBackend().unavailable()) is not None:
            pytest.skip(reason)
        items = (item for item in request.session.items if isinstance(item, pytest.Function))
        cases = [item.callspec.params["case"] for item in items if item.function is test_cpu]
        graphs = [graph for case in cases for graph, _, _ in loaded(case)]
        warm([(graph, "model") for graph in graphs], best_isa())
        yield


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", every(OF_ENGINE, chosen_cases()), ids=str)
def test_cpu(case: BackendCase, engine: None) -> None:
    for graph, inputs, expected in loaded(case):
        results = md.compile(graph, device="cpu", threads=2, isa=best_isa().name)(*inputs)
        found = list(results.values()) if isinstance(results, dict) else [results]
        compare(case, found, expected)


def test_models_of_the_package_are_files(tmp_path: Path) -> None:
    """The whole way: from a file, by compile, on the default device."""
    case = next(c for c in chosen_cases() if c.name == "test_single_relu_model")
    path = tmp_path / "relu.onnx"
    path.write_bytes(case.model.SerializeToString())
    inputs, expected = case.sets[0]
    compare(case, [md.compile(path, device="reference")(*inputs)], expected)


QUANTIZED = [case for case in chosen_cases() if is_quantized(case)]


@pytest.mark.gpu
@pytest.mark.parametrize("case", chosen_cases(), ids=str)
def test_cuda(case: BackendCase) -> None:
    for graph, inputs, expected in loaded(case):
        results = md.compile(graph, device="cuda", tune="heuristic")(*inputs)
        found = list(results.values()) if isinstance(results, dict) else [results]
        compare(case, found, expected)


def test_quantized_cases() -> None:
    """They are taken, and CUDA computes them, too, but not in half precision."""
    taken = {node.op_type for case in QUANTIZED for node in case.model.graph.node}
    assert taken >= QUANTIZING
    for case in QUANTIZED:
        for graph, _, _ in loaded(case):
            assert not any(CudaBackend().unsupported(node, "float32") for node in graph.nodes)
            reasons = [CudaBackend().unsupported(node, "float16") for node in graph.nodes]
            told = [reason for reason in reasons if reason and "is quantized, which" in reason]
            assert told or case.name.startswith("test_dequantizelinear")


def test_dequantized_constants() -> None:
    """The cases of DequantizeLinear with inputs made constants; float8 and the like are none."""
    count = 0
    for case in every_case():
        (*_, first) = case.model.graph.node
        kinds = {value.type.tensor_type.elem_type for value in case.model.graph.input}
        if first.op_type != "DequantizeLinear" or not kinds <= {*LIMITS, TensorProto.FLOAT}:
            continue
        count += 1
        for inputs, (wanted,) in case.sets:
            made = onnx.ModelProto()
            made.CopyFrom(case.model)
            del made.graph.input[:]
            for value, array in zip(case.model.graph.input, inputs, strict=True):
                kind = value.type.tensor_type.elem_type
                if not isinstance(array, onnx.TensorProto):  # which those of 4 bits are already
                    array = tensor(value.name, kind, np.asarray(array))
                made.graph.initializer.add().CopyFrom(array)
                made.graph.initializer[-1].name = value.name
            (found,) = evaluate(load_onnx(made), [])
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert count >= 6
