"""quantize: what becomes of a network, how exact it is, and that other engines read it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn import models
from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Constant, Graph
from minidnn.graph.quantization import PER_CHANNEL, dequantization_of, quantization_of
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph
from minidnn.sizes.sized_graph import SizedGraph
from tests.devices import unavailable

RANDOM = np.random.default_rng(1)
SHAPE = (4, 3, 12, 10)


def network() -> md.Sequential:
    net = md.Sequential(
        L.Conv2d(3, 8, 3, padding=1),
        L.BatchNorm2d(8),
        L.ReLU(),
        L.Conv2d(8, 8, 3, padding=1, groups=2, bias=False),
        L.MaxPool2d(2),
        L.Conv2d(8, 12, 1),
        L.AdaptiveAvgPool2d(1),
        L.Flatten(),
        L.Linear(12, 5),
    )
    return md.calibrate(net, images())  # type: ignore[return-value]


def images(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def quantized(**more: Any) -> Graph:
    return md.quantize(network(), [images(0), images(1)], device="reference", **more)


def layers_of(graph: Graph) -> dict[str, bool]:
    """Its layers, and whether they read what was rounded, by a weight that was."""
    return {
        node.name: all(
            value.producer is not None
            and (
                value.producer.op == PER_CHANNEL
                or dequantization_of(value.producer.op, value.producer.inputs[0].dtype) is not None
            )
            for value in node.inputs[:2]
        )
        for node in graph.nodes
        if isinstance(node.op, (ops.Conv2d, ops.Linear))
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ranges", ["minmax", "percentile", "entropy", "error"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_every_layer_is_quantized(ranges: str, dtype: str) -> None:
    graph = quantized(ranges=ranges, dtype=dtype)
    assert len(layers_of(graph)) == 4 and all(layers_of(graph).values())
    rounds = [steps for node in graph.nodes if (steps := quantization_of(node.op))]
    assert len(rounds) == 4 and {steps.dtype for steps in rounds} == {dtype}
    assert not any(isinstance(node.op, ops.BatchNorm) for node in graph.nodes)
    x = images(2)
    (wanted,) = evaluate(to_graph(network(), SHAPE), [x])
    (found,) = evaluate(graph, [x])
    assert np.abs(found - wanted).max() < 0.1 * np.abs(wanted).max()


def test_layers_that_stay() -> None:
    graph = quantized(first=False, last=False)
    assert list(layers_of(graph).values()) == [False, True, True, False]
    name = list(layers_of(graph))[1]
    assert list(layers_of(quantized(keep=[name])).values()) == [True, False, True, True]


def test_what_loses_too_much_stays() -> None:
    """A layer of which a few outputs have weights a thousand times as large as others, where one
    scale is for all."""
    net = md.Sequential(L.Conv2d(3, 8, 3), L.ReLU(), L.Conv2d(8, 8, 3), L.Linear(6, 4))
    state = {name: np.array(array) for name, array in net.state_dict().items()}
    state["2.weight"][:, 0] *= 1000
    state["0.weight"][0], state["0.bias"][0] = 0, 0
    net.load_state_dict(state)
    usual, high = (
        md.quantize(net, images(), per_channel=False, accuracy=accuracy, device="reference")
        for accuracy in ("normal", "high")
    )
    assert list(layers_of(usual).values()) == [True, True, True]
    assert list(layers_of(high).values()) == [True, False, True]
    x = images(2)
    (wanted,) = evaluate(to_graph(net, SHAPE), [x])
    lost = [np.linalg.norm(evaluate(graph, [x])[0] - wanted) for graph in (usual, high)]
    assert lost[1] < 0.2 * lost[0]


def test_weights_have_a_scale_for_each_output_or_one() -> None:
    for per_channel, sizes in ((True, {8, 12, 5}), (False, {1})):
        made = [n for n in quantized(per_channel=per_channel).nodes if n.op == PER_CHANNEL]
        assert {node.inputs[1].type.size for node in made} == sizes
        for node in made:
            whole = node.inputs[0]
            assert isinstance(whole, Constant) and np.abs(whole.data.astype(int)).max() == 127


def test_a_corrected_bias_keeps_the_average() -> None:
    """On the data that were measured, of a layer without padding."""
    net = md.Sequential(L.Conv2d(3, 40, 3, bias=False))
    x = np.abs(images()) + 1
    (wanted,) = evaluate(to_graph(net, x.shape), [x])
    away = {}
    for correct in (False, True):
        graph = md.quantize(net, x, correct_bias=correct, per_channel=False, device="reference")
        (found,) = evaluate(graph, [x])
        away[correct] = np.abs((found - wanted).mean((0, 2, 3))).mean()
    assert away[True] < 0.5 * away[False]


def test_data_of_several_inputs() -> None:
    with tracing("two") as trace:
        a, b = (trace.input(TensorType((2, 6)), name) for name in "ab")
        weight = RANDOM.standard_normal((4, 6)).astype(np.float32)
        w = trace.constant(object(), "w", TensorType((4, 6)), lambda: weight)
        graph = trace.graph([apply(ops.Linear(), apply(ops.Add(), a, b), w)])
    pairs = [tuple(RANDOM.standard_normal((2, 2, 6)).astype(np.float32)) for _ in range(3)]
    made = md.quantize(graph, pairs, device="reference")
    (wanted,), (found,) = evaluate(graph, pairs[0]), evaluate(made, pairs[0])
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()


def test_a_loader_gives_what_its_arrays_give() -> None:
    """Of one epoch, whatever its targets are."""
    x = np.concatenate([images(0), images(1)])
    loader = md.data.Loader(md.data.Arrays(x, np.arange(8)), batch=4, workers=0)
    found = md.quantize(network(), loader, device="reference")
    assert str(found) == str(quantized())
    for ours, theirs in zip(found.constants, quantized().constants, strict=True):
        np.testing.assert_array_equal(ours.data, theirs.data)


@pytest.mark.parametrize("per_channel", [True, False])
def test_onnx_runtime_reads_it(per_channel: bool, tmp_path: Path) -> None:
    graph = quantized(per_channel=per_channel)
    md.save_onnx(graph, tmp_path / "net.onnx")
    onnx.checker.check_model(str(tmp_path / "net.onnx"), full_check=True)
    model = onnx.load(tmp_path / "net.onnx").graph
    read = {name for node in model.node for name in node.input}
    assert read >= {each.name for each in model.initializer}
    # Each of four layers has its input and its weight in QDQ form; nothing else computes.
    kinds = [node.op_type for node in model.node]
    assert kinds.count("QuantizeLinear") == 4 and kinds.count("DequantizeLinear") == 8
    assert {"Mul", "Sub", "Cast"}.isdisjoint(kinds)
    x = images(2)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", options)
    (theirs,) = session.run(None, {session.get_inputs()[0].name: x})
    (ours,) = evaluate(graph, [x])
    # A number on the edge of two may be rounded to the other.
    np.testing.assert_allclose(theirs, ours, atol=0.02 * np.abs(ours).max())
    again = md.load_onnx(tmp_path / "net.onnx")
    np.testing.assert_allclose(evaluate(again, [x])[0], ours, atol=0.02 * np.abs(ours).max())
    assert sum(layers_of(again).values()) == 4


def test_openvino_reads_it(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    graph = quantized()
    md.save_onnx(graph, tmp_path / "net.onnx")
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    theirs = openvino.Core().compile_model(tmp_path / "net.onnx", "CPU", settings)
    kinds = [op.get_rt_info() for op in theirs.get_runtime_model().get_ops()]
    precisions = [
        info["runtimePrecision"].astype(str)
        for info in kinds
        if info["layerType"].astype(str) in ("Convolution", "FullyConnected")
    ]
    assert len(precisions) == 4 and set(precisions) <= {"u8", "i8"}
    x = images(2)
    (ours,) = evaluate(graph, [x])
    found = theirs(x)[0]
    np.testing.assert_allclose(found, ours, atol=0.05 * np.abs(ours).max())


def exact_session(path: Path) -> onnxruntime.InferenceSession:
    """ONNX Runtime's own sums of bytes.  On processors without instructions for them it adds pairs
    of products in 16 bits, which overflow, unless it is told not to."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(path, options)


def test_sums_of_bytes_are_exported(tmp_path: Path) -> None:
    """What was read of QLinearConv and MatMulInteger: ONNX Runtime computes the same bits."""
    with tracing("whole") as trace:
        x = trace.input(TensorType((2, 3, 5, 6), "uint8"), "x")
        known = {
            name: RANDOM.integers(-128, 128, shape).astype(dtype)
            for name, shape, dtype in (
                *(("w", (4, 3, 3, 3), np.int8), ("b", (4,), np.int32)),
                ("v", (7, 6), np.int8),
            )
        }
        w, b, v = (
            trace.constant(object(), n, TensorType(a.shape, str(a.dtype)), partial(np.asarray, a))
            for n, a in known.items()
        )
        sums = apply(ops.Conv2d(padding=((1, 1), (1, 1)), zero=7), x, w, b)
        body = ops.Formula(ops.Sub().expression(), 2, dtype="int8", compute="float32")
        graph = trace.graph([apply(body, sums, sums), apply(ops.Linear(zero=3), x, v)])
    md.save_onnx(graph, tmp_path / "whole.onnx")
    given = RANDOM.integers(0, 256, (2, 3, 5, 6)).astype(np.uint8)
    session = exact_session(tmp_path / "whole.onnx")
    for theirs, ours in zip(session.run(None, {"x": given}), evaluate(graph, [given]), strict=True):
        np.testing.assert_array_equal(theirs, ours)


def test_layers_beside_the_original() -> None:
    graph, net = quantized(), network()
    found = md.compare(graph, images(3), original=net, device="reference", tolerance=0.5)
    assert "float32" in str(found)
    names = [layer.name for layer in found.layers]
    assert set(layers_of(graph)) <= set(names)
    assert 0 < max(layer.deviation for layer in found.layers) < 0.2
    with pytest.raises(GraphError, match="the network that it was made of"):
        md.compare(graph, images(3))


@pytest.mark.skipif(unavailable("cpu") is not None, reason="the CPU cannot be used here")
def test_digits(warm_cache: Path) -> None:
    """Accuracy on the held-out digits, on the CPU, with all choices' defaults."""
    train, held_out = md.data.digits(train=True), md.data.digits(train=False)
    net = models.digits(weights="DEFAULT")
    graph = md.quantize(net, np.asarray(train.x[:360], np.float32), device="cpu")
    x = np.asarray(held_out.x, np.float32)
    usual, small = (md.compile(each, device="cpu") for each in (to_graph(net, x.shape), graph))
    right = [float((np.asarray(exe(x)).argmax(1) == held_out.y).mean()) for exe in (usual, small)]
    assert abs(right[1] - right[0]) <= 0.003


@pytest.mark.skipif(unavailable("cpu") is not None, reason="the CPU cannot be used here")
def test_executables_say_it(warm_cache: Path, tmp_path: Path) -> None:
    """Where bytes are multiplied; the reference computes what they stand for."""
    graph = quantized(first=False)
    exact = md.compile(graph, device="reference")
    exe = md.compile(graph, device="cpu")
    assert (exact.precision, exe.precision) == ("float32", "int8")
    assert " on cpu in int8: " in repr(exe) and " on cpu in int8, priced" in exe.explain()
    exe.save(tmp_path / "net.mdx")
    loaded = md.load(tmp_path / "net.mdx")
    assert loaded.precision == "int8" and " in int8: " in repr(loaded)
    np.testing.assert_array_equal(loaded(images(2)), exe(images(2)))
    assert md.compile(network(), SHAPE, device="cpu").precision == "float32"


WRONG: list[tuple[type[Exception], Callable[[], Any], str]] = [
    (GraphError, lambda: quantized(ranges="best"), "ranges='best'; valid are 'minmax', "),
    (
        GraphError,
        lambda: quantized(accuracy="best"),
        "accuracy='best'; valid are 'normal' and 'high'",
    ),
    (GraphError, lambda: quantized(dtype="int4"), "dtype='int4'; valid are 'uint8' and 'int8'"),
    (
        GraphError,
        lambda: quantized(ranges="percentile", percentile=0.99),
        "percentile=0.99; valid is a number above 50, at most 100",
    ),
    (
        GraphError,
        lambda: quantized(keep=["conv9"]),
        "keep names 'conv9'; valid is a collection of '",
    ),
    (
        GraphError,
        lambda: md.quantize(md.Sequential(L.ReLU()), images(), device="reference"),
        "has 0 convolutions and linear layers with known weights in float32",
    ),
    (GraphError, lambda: md.quantize(network(), [], shape=SHAPE), "data has no batches"),
    (
        GraphError,
        lambda: md.quantize(network(), [images(), images()[:2]], device="reference"),
        "data: batch 1 has arrays of shapes [(2, 3, 12, 10)]; valid are [(4, 3, 12, 10)]",
    ),
    (
        GraphError,
        lambda: md.quantize(network(), 3, shape=SHAPE),
        "data=3 is a int; valid are an array",
    ),
    (
        GraphError,
        lambda: md.quantize(network(), np.full(SHAPE, np.nan, np.float32), device="reference"),
        "is not finite on them",
    ),
]


@pytest.mark.parametrize(("kind", "wrong", "text"), WRONG, ids=[text[:30] for *_, text in WRONG])
def test_errors(kind: type[Exception], wrong: Callable[[], Any], text: str) -> None:
    with pytest.raises(kind) as caught:
        wrong()
    assert text in str(caught.value)


BATCH = md.Dim("batch", 1, 9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["layers", "file"])
@pytest.mark.parametrize("accuracy", ["normal", "high"])
def test_a_named_batch_stays(kind: str, accuracy: str, tmp_path: Path) -> None:
    """Data of ragged batches, and results for any; what is found out is that of one size."""
    net: Any = network()
    shape: Any = (BATCH, *SHAPE[1:])
    data = [images(0), images(1), images(2)[:3]]
    given, named = net, shape
    if kind == "file":
        given, named = tmp_path / "net.safetensors", None
        md.save_graph(net, given, shape)
    made = md.quantize(given, data, shape=named, device="reference", accuracy=accuracy)
    assert isinstance(made, SizedGraph) and made.dims == (BATCH,)
    exe = md.compile(made, device="reference")
    md.save_onnx(made, tmp_path / "net.onnx")
    session = exact_session(tmp_path / "net.onnx")
    for rows in (1, 3, 8):
        x = np.concatenate([images(3), images(4)])[:rows]
        y = exe(x)
        (wanted,) = evaluate(to_graph(net, x.shape), [x])
        assert np.abs(y - wanted).max() < 0.1 * np.abs(wanted).max()
        (theirs,) = session.run(None, {session.get_inputs()[0].name: x})
        assert np.abs(theirs - y).max() < 0.02 * np.abs(y).max()


def test_what_each_layer_loses_is_compared_for_one_size() -> None:
    shape: Any = (BATCH, *SHAPE[1:])
    made = md.quantize(network(), images(), shape=shape, device="reference")
    three = images(1)[:3]
    cases: list[tuple[dict[str, Any], int]] = [
        ({"inputs": three}, 3),
        ({"shape": three.shape}, 3),
        ({}, BATCH.halfway),
    ]
    for given, rows in cases:
        found = md.compare(made, original=network(), device="reference", **given)
        given.pop("shape", None)
        fixed = md.compare(
            made.at({"batch": rows}), original=network(), device="reference", **given
        )
        assert str(found) == str(fixed)


def test_equal_batches_are_measured_as_of_one_size() -> None:
    """The same scales, biases and bytes as of the network for that size."""
    data = [images(0), images(1)]
    shape: Any = (BATCH, *SHAPE[1:])
    made = md.quantize(network(), data, shape=shape, device="reference")
    fixed = md.quantize(network(), data, device="reference")
    assert isinstance(made, SizedGraph) and isinstance(fixed, Graph)
    for one, other in zip(made.at({"batch": 4}).constants, fixed.constants, strict=True):
        assert one.name == other.name
        np.testing.assert_array_equal(one.data, other.data)


def test_smaller_batches_count_less() -> None:
    net = md.Sequential(L.Linear(6, 40, bias=False)).initialize(0)
    x = RANDOM.standard_normal((7, 6)).astype(np.float32) + np.arange(7, dtype=np.float32)[:, None]
    shape: Any = (md.Dim("rows", 1, 8), 6)
    made = [
        md.quantize(net, data, shape=shape, ranges="minmax", device="reference")
        for data in ([x[:4], x[4:]], [x])
    ]
    for one, other in zip(*(list(each.arrays.values()) for each in made), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_batches_that_no_size_fits_are_told() -> None:
    shape: Any = (BATCH, *SHAPE[1:])
    large = np.zeros((10, *SHAPE[1:]), np.float32)
    text = r"data: batch 1: input 'input' has shape .* axis 0, 'batch', is 10; valid are 1 to 9"
    with pytest.raises(GraphError, match=text):
        md.quantize(network(), [images(), large], shape=shape, device="reference")
    with pytest.raises(GraphError, match=r"with a minidnn\.Dim as the first size of shape= batch"):
        md.quantize(network(), [images(), large], device="reference")
