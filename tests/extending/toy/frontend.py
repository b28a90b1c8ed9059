"""A front end for networks in words: one layer a line, in files that end in .words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from minidnn.errors import GraphError, UnsupportedError
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import Trace, apply, tracing
from minidnn.graph.types import TensorType

PLAIN = {"relu": ops.ReLU(), "tanh": ops.Tanh(), "softmax": ops.Softmax(1)}


class WordsFrontEnd:
    name = "words"
    takes = "paths that end in .words"

    def accepts(self, network: object) -> bool:
        return isinstance(network, (str, Path)) and Path(network).suffix == ".words"

    def to_graph(self, network: Any, shape: Any) -> Graph:
        if shape is None:
            raise GraphError("shape=None; valid is the input's shape, such as (1, 3, 8, 8)")
        lines = Path(network).read_text(encoding="utf-8").split("\n")
        words = [line.split() for line in lines if line.strip()]
        unknown = [word for word, *_ in words if word not in (*PLAIN, "conv")]
        if unknown:  # all at once
            raise UnsupportedError(f"{network}: unknown words {', '.join(unknown)}")
        with tracing(Path(network).stem) as trace:
            value = trace.input(TensorType(tuple(shape)), "input")
            for number, (word, *arguments) in enumerate(words):
                if word == "conv":
                    value = _convolution(trace, value, number, *map(int, arguments))
                else:
                    value = apply(PLAIN[word], value)
        return trace.graph([value])


def _convolution(trace: Trace, x: Value, number: int, channels: int, kernel: int) -> Value:
    type = TensorType((channels, x.shape[1], kernel, kernel))
    name = f"conv{number}.weight"
    # A constant's data is a function, called when the data is first needed.
    weight = trace.constant(name, name, type, lambda: np.ones(type.shape, np.float32))
    return apply(ops.Conv2d(), x, weight)
