"""Calibrates the batch normalizations of a network with random weights.

With their initial statistics (mean 0, variance 1) they do nothing, and the values of a deep network
vanish or explode.  Calibrated on data, each of them gives values of mean ``bias`` and standard
deviation ``weight``, as in a trained network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Rewriter
from minidnn.graph.operators import BatchNorm
from minidnn.layers.build import to_graph
from minidnn.layers.layer import Layer
from minidnn.layers.normalization import BatchNorm1d, BatchNorm2d

__all__ = ["calibrate"]

#: The least variance of a channel, as a part of the layer's average variance: otherwise, a channel
#: that hardly varies over the data would be scaled up to the others' size with its rounding errors.
FLOOR = 0.01

_CALIBRATED = (BatchNorm1d, BatchNorm2d)

Measure = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def calibrate_on_noise(network: Layer, seed: int = 0) -> Layer:
    """Calibrates a network on four random images of half its own rows and columns.

    That is four times faster than full images, and still gives thousands of values per channel.  A
    network without batch normalizations is left as it is, since it may take only one size.
    """
    if any(isinstance(layer, _CALIBRATED) for _, layer in network.named_layers()):
        channels, *sizes = network.input_shape  # type: ignore[attr-defined]
        small = [max(size // 2, min(size, 8)) for size in sizes]
        images = np.random.default_rng(seed).standard_normal((4, channels, *small), np.float32)
        calibrate(network, images)
    return network


def calibrate(network: Layer, *inputs: np.ndarray) -> Layer:
    """Sets ``running_mean`` and ``running_var`` of all batch normalizations from data, in place.

    The network runs once, in NumPy; each layer's statistics are taken over the batch, the rows
    and the columns of what reaches it after all before it have been set.  The variance is that
    of the population (not PyTorch's estimate of it), so that the same data leaves a layer with
    exactly its ``weight`` as standard deviation.  A layer called twice keeps the statistics of its
    first call.  The result depends on nothing but the weights and the data.

    Args:
        network: any layer, float32.
        inputs: one array per input of the network, float32, the batch included; at least two
            values for each channel of each of these layers, better hundreds.

    Returns:
        The network itself.

    Raises:
        GraphError: the data does not fit the network, a layer gets one value per channel only,
            or what reaches it is not finite.

    >>> noise = np.random.default_rng(0).standard_normal((2, 3, 32, 32), np.float32)
    >>> net = md.calibrate(net, noise)
    """
    for index, array in enumerate(inputs):
        if not isinstance(array, np.ndarray):
            raise GraphError(
                f"calibrate: input {index} is a {type(array).__name__}; valid is a NumPy array"
            )
    graph = to_graph(network, [array.shape for array in inputs])
    layers = dict(network.named_layers())
    if isinstance(network, _CALIBRATED):
        layers = {node.source: network for node in graph.nodes}
    measured: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def measure(layer: BatchNorm1d | BatchNorm2d, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if id(layer) not in measured:
            mean, var = measured[id(layer)] = _statistics(x)
            layer.running_mean.assign(mean)
            layer.running_var.assign(var)
        return measured[id(layer)]

    # Measuring operators take the place of the layers' normalizations.
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        layer = layers.get(node.source)
        if not isinstance(node.op, BatchNorm) or not isinstance(layer, _CALIBRATED):
            rewriter.keep(node)
            continue
        op = _MeasuringBatchNorm(node.op.eps, measure=partial(measure, layer))
        new = rewriter.add(op, [rewriter.value(v) for v in node.inputs], node.name, node.source)
        rewriter.replace(node.output, new.output)
    measuring = rewriter.finish()
    if measuring is not graph:
        evaluate(measuring, inputs)
    return network


@dataclass(frozen=True)
class _MeasuringBatchNorm(BatchNorm):
    """A batch normalization that measures its statistics on its input when it runs."""

    measure: Measure = field(kw_only=True, repr=False, compare=False)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, weight, bias, *_ = inputs
        return super().reference(x, weight, bias, *self.measure(x))


def _statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the variance of each channel, the latter at least ``FLOOR`` of the average."""
    count = x.size // x.shape[1]
    if count < 2:
        raise GraphError(
            f"calibrate: the input {x.shape} has one value per channel, which has no variance; "
            "valid are a larger batch or larger images"
        )
    with np.errstate(all="ignore"):
        axes = (0, *range(2, x.ndim))
        mean = x.mean(axis=axes, dtype=np.float64)
        var = x.var(axis=axes, dtype=np.float64)
    if not (np.isfinite(mean).all() and np.isfinite(var).all()):
        raise GraphError("calibrate: the input holds values that are not finite")
    average = float(var.mean())
    var = np.maximum(var, FLOOR * average) if average > 0 else np.ones_like(var)
    return mean.astype(np.float32), var.astype(np.float32)
