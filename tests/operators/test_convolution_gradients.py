"""The two gradients of a convolution: what does not fit, and files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import minidnn as md
from minidnn.errors import GraphError
from minidnn.graph.operators import Conv2d, Conv2dInputGradient, Conv2dWeightGradient
from minidnn.graph.types import TensorType
from tests.cases import REFERENCE_CASES

BY_INPUT = Conv2dInputGradient(Conv2d((2, 2)), (5, 5))
BY_WEIGHT = Conv2dWeightGradient(Conv2d(groups=2), (3, 3))


@pytest.mark.parametrize(
    ("op", "shapes", "message"),
    [
        (BY_INPUT, [(1, 4, 2, 3), (4, 3, 3, 3)], "gradient is float32[1, 4, 2, 3]; of an input "),
        (BY_INPUT, [(1, 4, 2, 2), (5, 3, 3, 3)], "valid is float32[1, 5, 2, 2]"),
        (BY_INPUT, [(1, 4, 2, 2), (4, 3, 3)], "weight has shape (4, 3, 3) of rank 3; valid is"),
        (BY_WEIGHT, [(1, 4, 5, 5), (1, 6, 5, 5)], "valid is float32[1, 6, 3, 3]"),
        (BY_WEIGHT, [(1, 4, 5, 5), (1, 5, 3, 3)], "groups=2 does not divide the weight's 5"),
        (BY_WEIGHT, [(1, 4, 2, 5), (1, 6, 1, 3)], "is larger than the padded input of 2"),
    ],
)
def test_operands_that_do_not_fit(
    op: Conv2dInputGradient, shapes: list[tuple[int, ...]], message: str
) -> None:
    with pytest.raises(GraphError, match=re.escape(message)):
        op.infer(*map(TensorType, shapes))


def test_attributes() -> None:
    with pytest.raises(GraphError, match=r"size=\(0, 5\); valid is a pair of ints of at least 1"):
        Conv2dInputGradient(Conv2d(), (0, 5))
    with pytest.raises(GraphError, match="kernel=3; valid is a pair"):
        Conv2dWeightGradient(Conv2d(), 3)  # type: ignore[arg-type]


def test_files(tmp_path: Path) -> None:
    for case in REFERENCE_CASES[:2]:
        graph = case.graph(case.shapes[0])
        md.save_graph(graph, tmp_path / "graph.safetensors")
        assert str(md.load_graph(tmp_path / "graph.safetensors")) == str(graph)
