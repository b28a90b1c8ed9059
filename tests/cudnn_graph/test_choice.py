"""The choice of a convolution without a GPU: ranking, what is kept, what is read back."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict
from typing import Any

import pytest

from minidnn.cudnn import choice
from minidnn.cudnn.choice import Alternative, Problem
from minidnn.cudnn.enums import MathType
from minidnn.cudnn.graph import Constraints
from minidnn.errors import GraphError
from tests.cudnn_graph.fake import FakeArray

GRAPH = Alternative("graph", 7, ((2, 1),), 100, True)
FIXED = Alternative("fixed", 1, (), 0, True)


def problem(operation: str = "forward", **settings: Any) -> Problem:
    x, w = FakeArray((2, 8, 6, 6)), FakeArray((4, 8, 3, 3))
    return Problem(operation, x, w, FakeArray((2, 4, 4, 4)), **settings)


def test_rank_sorts_and_leaves_out_what_failed() -> None:
    ranked = choice.rank([GRAPH, FIXED, GRAPH], [2.0, 1.0, None])
    assert [(one.family, one.milliseconds) for one in ranked] == [("fixed", 1.0), ("graph", 2.0)]


def test_something_with_little_workspace_is_always_kept() -> None:
    many = [dataclasses.replace(GRAPH, engine=i, workspace=100 + i) for i in range(20)]
    ranked = choice.rank([*many, FIXED], [*map(float, range(20)), 99.0])
    kept = choice._with_smallest(ranked)
    assert len(kept) == choice._KEPT
    assert kept[0].engine == 0
    assert kept[-1].family == "fixed"


def test_entries_survive_the_disk() -> None:
    ranked = choice.rank([GRAPH, FIXED], [2.0, 1.0])
    data = json.dumps({"ranked": [asdict(one) for one in ranked]}).encode()
    assert choice._decode(data) == ranked


@pytest.mark.parametrize("data", [None, b"", b"[]", b'{"ranked": []}', b'{"ranked": [{"a": 1}]}'])
def test_what_cannot_be_read_is_measured_again(data: bytes | None) -> None:
    assert choice._decode(data) is None


def test_names() -> None:
    assert GRAPH.name("forward") == "eng7_k2=1"
    assert FIXED.name("forward") == "CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM"
    assert FIXED.name("backward_data") == "CUDNN_CONVOLUTION_BWD_DATA_ALGO_1"


def test_exact_float32_forbids_tensor_cores() -> None:
    assert problem().math == MathType.CUDNN_FMA_MATH
    assert problem(constraints=Constraints(tf32=True)).math == MathType.CUDNN_TENSOR_OP_MATH


@pytest.mark.parametrize("operation", ["forward", "backward_data", "backward_filter"])
def test_graphs_of_all_operations(operation: str) -> None:
    spec = problem(operation).graph().freeze()
    written = {"forward": (2, 4, 4, 4), "backward_data": (2, 8, 6, 6)}
    assert spec.tensors[spec.outputs[0]].shape == written.get(operation, (4, 8, 3, 3))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(GraphError, match="operation 'forwards' is not known; valid are forward"):
        problem("forwards")
    x = FakeArray((2, 8, 6, 6))
    with pytest.raises(GraphError, match="'tf_32' is no constraint; valid are tf32"):
        choice.choose("forward", x, x, x, tf_32=True)
    with pytest.raises(GraphError, match="like has shape"):
        Problem("forward", x, FakeArray((4, 8, 3, 3)), x).graph()
