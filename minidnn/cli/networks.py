"""Networks by what a user typed: a name of the zoo, an ONNX file, or one that save_graph wrote."""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.ir import Graph
from minidnn.graph.types import numpy_dtype
from minidnn.layers.build import to_graph
from minidnn.layers.calibration import calibrate
from minidnn.models import get_model, list_models


def graph_of(options: argparse.Namespace, network: Any = None) -> Graph:
    """The graph that NET, ``--batch`` and ``--size`` mean.

    network: what NET names, when the caller has made it already.
    GraphError, WeightsError if there is no such thing.
    """
    name = options.network
    if network is None and is_onnx(name):
        return onnx_graph(name, options.batch, options.size)
    if network is None and is_file(name):
        from minidnn.storage import load_graph

        for argument in ("batch", "size"):
            if (value := getattr(options, argument)) is not None:
                raise GraphError(
                    f"--{argument} {value}: the graph file {name!r} has its own size; valid is "
                    "a network of the zoo"
                )
        return load_graph(name)
    if network is None:
        network = get_model(name)
    return to_graph(network, shape_of(network, options.batch or 1, options.size))


def is_file(name: str) -> bool:
    """Whether NET means a file: it has a folder or an extension, or only a file has that name."""
    if name in list_models():
        return False
    return bool(os.path.dirname(name) or os.path.splitext(name)[1]) or os.path.exists(name)


def is_onnx(name: str) -> bool:
    """Whether NET means an ONNX file."""
    return name.lower().endswith(".onnx") and is_file(name)


def onnx_graph(name: str, batch: int | None = None, size: tuple[int, int] | None = None) -> Graph:
    """The graph of an ONNX file; what it leaves open is ``batch`` (1) along the first axis of its
    inputs and ``size`` along rows and columns of those of rank 4.

    GraphError if the file's own sizes are others, or if more is open.
    """
    from minidnn.frontends.onnx.convert import load_model
    from minidnn.frontends.onnx.model import read_model

    model = read_model(name)
    shapes = {}
    for declared in model.inputs:
        if declared.sizes is None:
            continue
        shape: list[Any] = list(declared.sizes)
        if shape and (batch is not None or not isinstance(shape[0], int)):
            shape[0] = batch or 1
        if len(shape) == 4:
            shape[2:] = shape[2:] if size is None else size
        if all(isinstance(each, int) for each in shape):
            shapes[declared.name] = tuple(shape)
    return load_model(model, shapes)[0]


def shape_of(network: Any, batch: int, size: tuple[int, int] | None = None) -> tuple[int, ...]:
    """The shape of a batch of images of a network of the zoo."""
    channels, *own = network.input_shape
    return (batch, channels, *(size or own))


def noise(shape: tuple[int, ...], seed: int, dtype: str = "float32") -> np.ndarray:
    """Normally distributed numbers, the same for the same seed."""
    numbers = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return numbers.astype(numpy_dtype(dtype), copy=False)


def calibrated(network: Any, seed: int = 0) -> Any:
    """The network with random weights whose batch normalizations fit random images."""
    channels, *sizes = network.input_shape
    # Half the rows and columns: four times faster, and still thousands of values a channel.
    small = [max(size // 2, min(size, 8)) for size in sizes]
    calibrate(network, noise((4, channels, *small), seed))
    return network
