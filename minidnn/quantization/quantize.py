"""quantize: makes a graph with QDQ nodes of a trained network, by the ranges of its values.

Compiled for a CPU or for CUDA, the graph computes its convolutions and linear layers in int8.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from minidnn.dynamic.dim import NamedShapes, dims_of
from minidnn.errors import GraphError
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value
from minidnn.graph.operators import Conv2d, Linear
from minidnn.graph.quantization import PER_CHANNEL, Steps
from minidnn.graph.types import INT8_DTYPES, TensorType
from minidnn.layers.arguments import Shapes
from minidnn.layers.layer import Layer
from minidnn.networks import any_graph_of, graph_of, with_own_sizes
from minidnn.passes.fold import FOLD_BATCH_NORM
from minidnn.passes.infrastructure import Context, run_passes
from minidnn.passes.simplify import FREEZE, SIMPLIFY
from minidnn.quantization.calibration import (
    MOST_LOST,
    RANGES,
    Calibration,
    Choose,
    MeasuredValue,
    Twins,
    batches_of,
    losses,
    measure,
    steps_of,
)
from minidnn.sizes.sized_graph import SizedGraph


@overload
def quantize(
    network: Layer | Graph,
    data: Any,
    *,
    shape: Shapes | None = None,
    ranges: str = "error",
    percentile: float = 99.99,
    dtype: str = "uint8",
    per_channel: bool = True,
    first: bool = True,
    last: bool = True,
    keep: Collection[str] = (),
    correct_bias: bool = True,
    accuracy: str = "normal",
    device: str | None = None,
) -> Graph: ...


@overload
def quantize(
    network: Any,
    data: Any,
    *,
    shape: NamedShapes | None = None,
    ranges: str = "error",
    percentile: float = 99.99,
    dtype: str = "uint8",
    per_channel: bool = True,
    first: bool = True,
    last: bool = True,
    keep: Collection[str] = (),
    correct_bias: bool = True,
    accuracy: str = "normal",
    device: str | None = None,
) -> Graph | SizedGraph: ...


def quantize(
    network: Any,
    data: Any,
    *,
    shape: NamedShapes | None = None,
    ranges: str = "error",
    percentile: float = 99.99,
    dtype: str = "uint8",
    per_channel: bool = True,
    first: bool = True,
    last: bool = True,
    keep: Collection[str] = (),
    correct_bias: bool = True,
    accuracy: str = "normal",
    device: str | None = None,
) -> Graph | SizedGraph:
    """A network whose convolutions and linear layers compute with bytes.

    Normalizations go into weights first.  Then each input of a convolution or linear layer is
    rounded to 256 numbers, by a scale and a zero that follow from its values on ``data``; so is
    each weight, by scales that follow from the weight itself.  The result is a graph with QDQ: it
    says where numbers are rounded, and computes in float32 by itself.  Compiled for the CPU or CUDA
    its layers multiply bytes; ``save_graph`` keeps it, ``save_onnx`` exports it, and ``compare``
    with ``original=network`` tells what each layer lost.

    Args:
        network: what ``compile`` takes, in float32.
        data: an array, or batches of them (tuples for several inputs), of the network's size: some
            hundred samples like those that it will see.  Of a :class:`minidnn.data.Loader` one
            epoch is taken, without its targets.  With a named batch they may be of any sizes in its
            range, as the last one of a loader is.
        shape: as for ``compile``, also with a :class:`minidnn.Dim`; that of the data where it is
            None and the network has none.
        ranges: how the range of a value is chosen: "minmax" takes all of it, "percentile" the
            ``percentile`` of its numbers, "entropy" what changes its distribution least, "error"
            what changes its numbers least, in the sum of their squares.
        percentile: in percent, for ``ranges="percentile"``.
        dtype: of values: "uint8" from the least to the largest, or "int8" around 0.  Weights are
            int8 around 0.
        per_channel: whether a weight has a scale for each output, or one for all.
        first, last: whether the first and the last layer are quantized, too.
        keep: names of layers (nodes of the graph) that stay as they are.
        correct_bias: whether a bias makes up for what rounding the weight changes on average.
        accuracy: "normal", or "high" for layers that stay in float32 where rounding their input and
            weight alone changes what they give by more than a twentieth, as roots of mean squares.
        device: on which values are measured; the default as for ``compile``.

    Returns:
        The graph of the quantized network, with named sizes for all sizes in their ranges.

    Raises:
        GraphError: an argument is not valid, values are not finite, or no layer can be quantized.
        UnsupportedError: the network cannot be run.

    >>> small = md.quantize(net, x, ranges="entropy")
    >>> exe = md.compile(small, device="cpu")
    """
    choose = _checked(ranges, percentile, dtype, accuracy)
    # A loader, recognized by ``restore``, gives batches with targets.
    data = [x for x, _ in data] if hasattr(data, "restore") else data
    graph, sized = _folded(network, shape, data)
    calibration = Calibration(graph, sized, batches_of(graph, sized, data), device)
    layers = _chosen(graph, first, last, keep)
    inputs = list(dict.fromkeys(node.inputs[0] for node in layers))
    measured = measure(calibration, inputs)
    steps: dict[Value, Steps] = {}
    for value, measurement in measured.items():
        low, high = choose(measurement.histogram, percentile)
        steps[value] = steps_of(low, high, dtype)

    def quantizer(graph: Graph, twins: Twins) -> _Quantizer:
        own_steps = {twins[value]: each for value, each in steps.items()}
        own_measured = {twins[value]: each for value, each in measured.items()}
        return _Quantizer(graph, own_steps, own_measured, per_channel, correct_bias)

    if accuracy == "high":
        lost = losses(
            calibration, layers, lambda graph, twins, n: quantizer(graph, twins).alone(twins[n])
        )
        exact = [node for node in layers if lost[node] <= MOST_LOST]
        if not exact:
            raise GraphError(
                f"accuracy='high': each layer of graph {graph.name!r} loses more than {MOST_LOST} "
                f"by itself, the least {min(lost.values()):.2g}; valid is 'normal'"
            )
        layers = exact
    return calibration.made(
        lambda graph, twins: quantizer(graph, twins).graph([twins[n] for n in layers])
    )


def _folded(network: Any, shape: Any, data: Any) -> tuple[Graph, SizedGraph | None]:
    """The graph to quantize: for one size, and for all sizes in ranges if there are any."""
    network, shape = with_own_sizes(network, shape)
    if not dims_of(shape):
        return folded(network, _shape_of(data) if shape is None else shape), None
    graph = any_graph_of(network, shape)
    if isinstance(graph, Graph):  # of ranges of one size
        return folded(graph), None
    sized = graph.mapped(folded)
    return sized.at({dim.name: dim.least for dim in sized.dims}), sized


def folded(network: Any, shape: Shapes | None = None) -> Graph:
    """The graph to quantize: states are constants, and normalizations are folded into weights."""
    graph = graph_of(network, None if isinstance(network, Graph) else shape)
    return run_passes(graph, (FREEZE, SIMPLIFY, FOLD_BATCH_NORM, SIMPLIFY), Context())


def _checked(ranges: str, percentile: float, dtype: str, accuracy: str) -> Choose:
    if ranges not in RANGES:
        raise GraphError(f"ranges={ranges!r}; valid are {', '.join(map(repr, RANGES))}")
    if not isinstance(percentile, (int, float)) or not 50 < percentile <= 100:
        raise GraphError(f"percentile={percentile!r}; valid is a number above 50, at most 100")
    if dtype not in INT8_DTYPES:
        raise GraphError(f"dtype={dtype!r}; valid are 'uint8' and 'int8'")
    if accuracy not in ("normal", "high"):
        raise GraphError(f"accuracy={accuracy!r}; valid are 'normal' and 'high'")
    return RANGES[ranges]


def _shape_of(data: Any) -> Any:
    """The shapes of the first batch if ``data`` is a list or an array, and None otherwise."""
    if isinstance(data, np.ndarray):
        return data.shape
    if not isinstance(data, (list, tuple)) or not data:
        return None
    batch = data[0]
    if isinstance(batch, (list, tuple)):
        return [np.shape(array) for array in batch]
    return np.shape(batch)


def _chosen(graph: Graph, first: bool, last: bool, keep: Collection[str]) -> list[Node]:
    """The layers that are quantized, in order."""
    layers = [node for node in graph.nodes if _is_layer(node)]
    names = {node.name for node in layers}
    if isinstance(keep, str) or not set(keep) <= names:
        unknown = [keep] if isinstance(keep, str) else sorted(set(keep) - names)
        raise GraphError(
            f"keep names {', '.join(map(repr, unknown))}; valid is a collection of "
            f"{', '.join(map(repr, sorted(names)))}"
        )
    chosen = layers[0 if first else 1 : None if last else -1]
    chosen = [node for node in chosen if node.name not in keep]
    if not chosen:
        raise GraphError(
            f"graph {graph.name!r} has {len(layers)} convolutions and linear layers with known "
            "weights in float32, of which none is to be quantized; valid is at least one"
        )
    return chosen


def _is_layer(node: Node) -> bool:
    known = all(isinstance(value, Constant) for value in node.inputs[1:])
    return isinstance(node.op, (Conv2d, Linear)) and known and node.output.dtype == "float32"


@dataclass(frozen=True)
class _Quantizer:
    """Quantizes one graph: adds QDQ nodes to it.

    Attributes:
        source: the float32 graph.
        steps: scale and zero point of each value that a layer reads.
        measured: the measurements of these values, for bias correction.
        per_channel: whether a weight has a scale for each output.
        correct_bias: whether a bias compensates the mean error of the rounded weight.
    """

    source: Graph
    steps: dict[Value, Steps]
    measured: dict[Value, MeasuredValue]
    per_channel: bool
    correct_bias: bool

    def alone(self, node: Node) -> list[Node]:
        """The nodes that compute a layer with its quantized input and weight, beside the layer
        itself."""
        x, weight = node.inputs[:2]
        assert isinstance(weight, Constant)
        steps = self.steps[x]
        quantized = Node(steps.quantize(), [x], f"{node.name}.whole")
        dequantized = Node(steps.dequantize(), quantized.outputs, f"{node.name}.rounded")
        bytes_, scale = self._whole(weight)
        rounded_weight = bytes_ * scale
        lost = weight.data.astype(np.float64) - rounded_weight
        bias = [self._bias(node, lost)] if self.correct_bias and np.any(lost) else node.inputs[2:]
        near = Constant(weight.type, f"{weight.name}.near", rounded_weight)
        layer = Node(node.op, [dequantized.output, near, *bias], f"{node.name}.near")
        return [quantized, dequantized, layer]

    def graph(self, layers: Collection[Node]) -> Graph:
        """The graph with QDQ nodes before these layers."""
        rewriter = Rewriter(self.source)
        read = {node.inputs[0] for node in layers}
        rounded: dict[Value, Value] = {}
        weights: dict[Value, tuple[Value, np.ndarray]] = {}
        for value in self.source.inputs:
            if value in read:
                self._round(rewriter, value, rounded)
        for node in self.source.nodes:
            # All readers of a value that is rounded for one of them read the rounded value.
            inputs = [rounded.get(value, rewriter.value(value)) for value in node.inputs]
            if node in layers:
                weight = node.inputs[1]
                if weight not in weights:
                    assert isinstance(weight, Constant)
                    weights[weight] = self._weight(rewriter, weight)
                inputs[1], lost = weights[weight]
                if self.correct_bias and np.any(lost):
                    inputs[2:] = [self._bias(node, lost)]
            if inputs == list(node.inputs):
                rewriter.keep(node)
            else:
                new = rewriter.add(node.op, inputs, node.name, node.source)
                rewriter.replace(node.output, new.output)
            for value in node.outputs:
                if value in read:
                    self._round(rewriter, value, rounded)
        return rewriter.finish()

    def _round(self, rewriter: Rewriter, value: Value, rounded: dict[Value, Value]) -> None:
        """Adds the nodes that quantize and dequantize a value, and notes their result."""
        steps = self.steps[value]
        source, name = rewriter.value(value), value.name
        quantized = rewriter.add(steps.quantize(), [source], rewriter.fresh(f"{name}.bytes"), name)
        fresh = rewriter.fresh(f"{name}.rounded")
        dequantized = rewriter.add(steps.dequantize(), [quantized.output], fresh, name)
        rounded[value] = dequantized.output

    def _weight(self, rewriter: Rewriter, weight: Constant) -> tuple[Value, np.ndarray]:
        """Adds the node that dequantizes a weight; returns its result and the rounding error."""
        quantized, scale = self._whole(weight)
        operands = [
            Constant(TensorType(array.shape, str(array.dtype)), f"{weight.name}.{what}", array)
            for what, array in (
                ("bytes", quantized),
                ("scale", scale.astype(np.float32)),
                ("zero", np.zeros_like(scale)),
            )
        ]
        name = rewriter.fresh(f"{weight.name}.rounded")
        node = rewriter.add(PER_CHANNEL, operands, name, weight.name)
        return node.output, weight.data.astype(np.float64) - quantized * scale.astype(np.float64)

    def _whole(self, weight: Constant) -> tuple[np.ndarray, np.ndarray]:
        """A weight in int8 with zero point 0, and its scales."""
        data = weight.data
        axes = tuple(range(1, data.ndim)) if self.per_channel else None
        largest = np.asarray(np.abs(data).max(axis=axes, keepdims=True), np.float32)
        scale = np.maximum(largest / np.float32(127), np.finfo(np.float32).tiny)
        return np.clip(np.rint(data / scale), -127, 127).astype(np.int8), scale

    def _bias(self, node: Node, lost: np.ndarray) -> Constant:
        """The corrected bias: the bias plus the mean result of the weight's rounding error."""
        outputs = lost.shape[0]
        measured = self.measured[node.inputs[0]]
        groups, means = 1, measured.features
        if isinstance(node.op, Conv2d):
            groups, means = node.op.groups, measured.channels
        means = means.reshape(groups, 1, -1)
        taps = lost.reshape(groups, outputs // groups, means.shape[2], -1).sum(-1)
        bias = (taps * means).sum(-1).reshape(outputs)
        for constant in node.inputs[2:]:
            assert isinstance(constant, Constant)
            bias = bias + constant.data
        type = TensorType((outputs,))
        return Constant(type, f"{node.name}.bias.corrected", bias.astype(np.float32))
