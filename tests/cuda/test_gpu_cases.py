"""Every case record on the CUDA engine, in every precision, alone and between others."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import UnsupportedError
from minidnn.graph.ir import Graph
from minidnn.layers.build import to_graph
from tests import cases
from tests.cases import Case
from tests.cases.record import Shape

from .precisions import PRODUCTS, assert_near, contracts, rounded, storage, tolerance

pytestmark = pytest.mark.gpu
PRECISIONS = ("float32", "tf32", "float16", "bfloat16")
CASES = (*cases.CASES, *cases.indexing.SUMS)
SINGLE = tuple(case for case in CASES if len(case.shapes[0]) == 1)


def run(graph: Graph, precision: str, inputs: tuple[np.ndarray, ...], **options: Any) -> np.ndarray:
    try:
        exe = md.compile(graph, device="cuda", precision=precision, tune="heuristic", **options)
    except UnsupportedError as error:
        pytest.skip(str(error))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = exe(*inputs)
    kind = "float32" if storage(precision) != "float16" else "float16"
    assert result.dtype.kind == "i" or result.dtype == np.dtype(kind)
    return np.asarray(result, np.float32)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_alone(case: Case, precision: str) -> None:
    for what, shapes, given in case.variants("float32"):
        special = what.endswith("special")
        if special and precision != "float32":
            continue
        graph = case.graph(shapes)
        inputs = rounded(given, precision)
        actual = run(graph, precision, inputs)
        label = f"{case} {precision} {what}"
        assert_near(case, precision, tolerance(precision, graph), inputs, actual, label)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", SINGLE, ids=str)
def test_fused_has_the_bits_of_unfused(case: Case, precision: str) -> None:
    """Between layers that fuse with it; contractions may round in another order."""
    shapes: tuple[Shape, ...] = case.shapes[-1]
    net = L.Sequential(L.LeakyReLU(0.5), case.network(), L.LeakyReLU(4.0), L.LeakyReLU(2.0))
    graph = to_graph(net, shapes[0])
    inputs = rounded(case.inputs(shapes, "float32", special=case.special), precision)
    fused = run(graph, precision, inputs)
    single = run(graph, precision, inputs, strategy="layers")
    if not contracts(graph):
        np.testing.assert_array_equal(fused, single, str(case))
        return
    finite = np.isfinite(single)
    size = 8 * np.abs(case.magnitude(inputs, "float32")).max() + np.abs(single[finite]).max()
    allowed = 16 * size * PRODUCTS[precision]
    np.testing.assert_allclose(fused[finite], single[finite], rtol=0, atol=allowed)
