"""Layers compute what PyTorch's of the same name do, with its parameters as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers as L
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph

from .torch_cases import CASES, Case


class Gallery(L.Layer):
    """All layers side by side, each on inputs of its own, so that they are compiled together."""

    def __init__(self, layers: Sequence[L.Layer], counts: Sequence[int]) -> None:
        self.layers = L.LayerList(*layers)
        self.counts = counts

    def forward(self, *inputs: Any) -> Any:
        given = iter(inputs)
        found: list[Any] = []
        for layer, count in zip(self.layers, self.counts, strict=True):
            results = layer(*(next(given) for _ in range(count)))
            found += results if isinstance(results, tuple) else [results]
        return tuple(found)


def pair(case: Case, seed: int) -> tuple[L.Layer, list[np.ndarray], list[np.ndarray]]:
    """Our layer with PyTorch's parameters, inputs, and what PyTorch makes of them in float64."""
    theirs, ours = case.theirs(), case.ours()
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, value in theirs.state_dict().items():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) + 0.5 if "var" in name else value.normal_())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    random = np.random.default_rng(seed)
    inputs = [random.standard_normal(shape).astype(np.float32) for shape in case.shapes]
    rounded = {n: torch.from_numpy(a.astype(np.float64)) for n, a in ours.state_dict().items()}
    theirs.load_state_dict(rounded)
    with torch.no_grad():
        out = theirs(*(torch.from_numpy(array).double() for array in inputs))
    results = out if isinstance(out, tuple) else (out,)
    return ours, inputs, [result.numpy() for result in results]


@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel lengths:UserWarning")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference(case: Case) -> None:
    ours, inputs, expected = pair(case, 1)
    graph = to_graph(ours, [array.shape for array in inputs])
    check(graph)
    for found, wanted in zip(evaluate(graph, inputs, dtype="float64"), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel lengths:UserWarning")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_compiled(device: str) -> None:
    made = [pair(case, seed) for seed, case in enumerate(CASES)]
    net = Gallery([ours for ours, _, _ in made], [len(inputs) for _, inputs, _ in made])
    inputs = [array for _, arrays, _ in made for array in arrays]
    found = md.compile(net, [array.shape for array in inputs], device=device)(*inputs)
    expected = [array for _, _, arrays in made for array in arrays]
    for case, result, wanted in zip(CASES, found, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-5, err_msg=str(case))
