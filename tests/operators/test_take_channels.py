"""TakeChannels: what it refuses, by name."""

from __future__ import annotations

import pytest

from minidnn.errors import GraphError
from minidnn.graph.operators import TakeChannels
from minidnn.graph.types import TensorType

X = TensorType((2, 3, 4, 5), "float32")


@pytest.mark.parametrize("picks", [(), [(0, 1)], ((0,),), ((0, -1),), ((0, 1.0),), ((True, 1),)])
def test_picks(picks: object) -> None:
    with pytest.raises(GraphError, match=r"TakeChannels: picks=.*; valid is a tuple of at least"):
        TakeChannels(picks)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ((), "0 inputs; valid are 1 to 32"),
        ((X,) * 33, "33 inputs; valid are 1 to 32"),
        ((X, TensorType((2, 3, 4, 6), "float32")), r"input 1 is .*beside input 0"),
        ((X, TensorType((2, 3, 4, 5), "float16")), r"input 1 is .*of one dtype"),
        ((TensorType((2, 3), "float32"),), r"input 0 is .*valid are images, \(N, C, H, W\)"),
        ((X,), "picks from input 1 of 1"),
        ((X, TensorType((2, 2, 4, 5), "float32")), "picks channel 2 of input 1, which has 2"),
    ],
)
def test_inputs(inputs: tuple[TensorType, ...], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        TakeChannels(((0, 0), (1, 2))).infer(*inputs)


def test_what_it_takes() -> None:
    more = X.with_shape((2, 7, 4, 5))
    assert TakeChannels(((0, 0), (31, 6))).infer(X, *[more] * 31) == (X.with_shape((2, 2, 4, 5)),)
