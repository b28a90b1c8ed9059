"""The choice of a convolution without a GPU: ranking, what is kept, what is read back."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict
from typing import Any

import pytest

from minidnn.cudnn import choice
from minidnn.cudnn.choice import Alternative, Problem
from minidnn.cudnn.enums import ConvolutionFwdAlgo, MathType
from minidnn.cudnn.errors import NoAlgorithmError
from minidnn.cudnn.graph import Constraints
from minidnn.errors import GraphError, MiniDNNWarning, OutOfMemoryError
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


def fixed_names(monkeypatch: pytest.MonkeyPatch, size: int, **constraints: Any) -> list[str]:
    """The fixed-function algorithms that are tried for windows of that size."""
    tried: list[int] = []

    def none_fits(problem: Problem, algorithm: int) -> Any:
        tried.append(algorithm)
        raise NoAlgorithmError

    monkeypatch.setattr(choice, "_fixed_plan", none_fits)
    x, w = FakeArray((2, 8, 6, 6)), FakeArray((4, 8, size, size))
    limits = Constraints(**constraints)
    given = Problem("forward", x, w, FakeArray((2, 4, 7 - size, 7 - size)), constraints=limits)
    assert list(choice._fixed_candidates(given)) == []
    return [ConvolutionFwdAlgo(algorithm).name for algorithm in tried]


def test_exact_float32_has_no_coarse_winograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 x 5 Winograd loses more than TF32; 3 x 3 does not, and TF32 asks for less anyway."""
    coarse = "CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED"
    assert coarse not in fixed_names(monkeypatch, 5)
    assert coarse in fixed_names(monkeypatch, 3)
    assert coarse in fixed_names(monkeypatch, 5, tf32=True)
    assert coarse not in fixed_names(monkeypatch, 3, accuracy="high")


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


def test_short_memory_takes_the_next_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning, so that whoever wants no other than the best can make it an error."""

    def runner(given: Problem, one: Alternative) -> Any:
        if one.family == "graph":
            raise OutOfMemoryError("no 100 bytes")
        return lambda: "ran"

    monkeypatch.setattr(choice, "_runner", runner)
    given = problem()
    found = choice.Choice(given, (GRAPH, FIXED))
    with pytest.warns(MiniDNNWarning, match="no 100 bytes; the next alternative is taken"):
        run = found.bind(given.x, given.w, given.y)
    assert run() == "ran"
    with (
        pytest.warns(MiniDNNWarning),
        pytest.raises(OutOfMemoryError, match="no alternative fits into the free memory"),
    ):
        choice.Choice(given, (GRAPH,)).bind(given.x, given.w, given.y)
