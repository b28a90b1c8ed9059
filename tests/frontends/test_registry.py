"""Which front end is asked for which model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.errors import GraphError
from minidnn.frontends import frontend as frontends
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType


class Words:
    """Networks as words: "relu tanh"."""

    name = "words"
    takes = "strings of the words 'relu' and 'tanh'"

    def accepts(self, network: object) -> bool:
        return isinstance(network, str) and set(network.split()) <= {"relu", "tanh"}

    def to_graph(self, network: Any, shape: Any) -> Graph:
        with tracing("words") as trace:
            value = trace.input(TensorType(tuple(shape)), "x")
            for word in network.split():
                value = apply({"relu": ops.ReLU(), "tanh": ops.Tanh()}[word], value)
        return trace.graph([value])


def test_compile_asks_the_front_end_that_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(frontends._BUILT_IN, "words", Words)
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    exe = md.compile("relu tanh", x.shape, device="reference")
    np.testing.assert_allclose(exe(x), np.tanh(np.maximum(x, 0)), rtol=1e-6)


def test_what_nobody_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontends, "_BUILT_IN", {"words": Words})
    text = (
        "network='conv' is a str; valid are layers and graphs, or strings of the words 'relu' "
        "and 'tanh'"
    )
    with pytest.raises(GraphError) as caught:
        md.compile("conv", (1, 2), device="reference")
    assert str(caught.value) == text


def test_graphs_of_front_ends_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(frontends._BUILT_IN, "words", Words)
    with pytest.raises(GraphError, match="has no elements; valid are sizes of at least 1"):
        md.compile("relu", (0, 2), device="reference")
