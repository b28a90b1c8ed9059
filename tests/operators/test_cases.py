"""Every case record on the reference, against PyTorch and NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn import layers
from minidnn.graph import operators
from minidnn.graph.evaluate import evaluate
from minidnn.graph.operator import Operator
from tests.cases import CASES as EVERY_DEVICE
from tests.cases import REFERENCE_CASES, Case, check
from tests.cases.record import not_contiguous
from tests.layers import torch_cases

CASES = (*EVERY_DEVICE, *REFERENCE_CASES)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("case", "dtype"), [(case, dtype) for case in CASES for dtype in case.dtypes], ids=str
)
def test_reference(case: Case, dtype: str) -> None:
    check(case, dtype)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_memory_layout_changes_no_bit(case: Case) -> None:
    for shapes in case.shapes:
        graph, inputs = case.graph(shapes), case.inputs(shapes, "float32")
        (plain,) = evaluate(graph, inputs)
        (strided,) = evaluate(graph, tuple(map(not_contiguous, inputs)))
        np.testing.assert_array_equal(strided, plain)


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_every_operator_has_a_case() -> None:
    covered = {type(node.op) for case in CASES for node in case.graph(case.shapes[0]).nodes}
    every = {
        kind
        for kind in vars(operators).values()
        if isinstance(kind, type) and issubclass(kind, Operator)
    }
    assert every - covered == set()


def test_every_layer_has_a_case() -> None:
    made = {type(case.layer()) for case in CASES}
    made |= {type(case.ours()) for case in torch_cases.CASES}  # of several operators each
    combining = {layers.Layer, layers.Sequential, layers.LayerList, layers.Model}
    combining |= {layers.ModuleDict, layers.ModuleList}
    made |= {layers.Add, layers.Mul}
    # test_more_layers compares them: what they take, or give in training, is no array of floats.
    made |= {layers.Embedding, layers.StochasticDepth, layers.DropPath}
    made |= {layers.TransformerEncoder, layers.TransformerDecoder}
    every = {
        kind
        for kind in vars(layers).values()
        if isinstance(kind, type) and issubclass(kind, layers.Layer)
    }
    assert every - made - combining == set()
