"""Layers compute what PyTorch's of the same name do, with its parameters as they are."""

from __future__ import annotations

import pickle
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

    def __init__(self, layers: Sequence[L.Layer], cases: Sequence[Case]) -> None:
        self.layers = L.LayerList(*layers)
        self.cases = cases

    def forward(self, *inputs: Any) -> Any:
        given = iter(inputs)
        found: list[Any] = []
        for layer, case in zip(self.layers, self.cases, strict=True):
            results = layer(*(next(given) for _ in case.shapes), **case.call)
            found += results if isinstance(results, tuple) else [results]
        return tuple(each for each in found if each is not None)


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
        called = {
            name: torch.from_numpy(given) if isinstance(given, np.ndarray) else given
            for name, given in case.call.items()
        }
        out = theirs(*(torch.from_numpy(array).double() for array in inputs), **called)
    results = out if isinstance(out, tuple) else (out,)
    return ours, inputs, [result.numpy() for result in results if result is not None]


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel lengths:UserWarning")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference(case: Case) -> None:
    ours, inputs, expected = pair(case, 1)
    graph = to_graph(Gallery([ours], [case]), [array.shape for array in inputs])
    check(graph)
    # Where resized images lie is computed in float32 here, and in float64 by PyTorch.
    places = 2e-6 if case.name == "Upsample" else 1e-10
    for found, wanted in zip(evaluate(graph, inputs, dtype="float64"), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=places)


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel lengths:UserWarning")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_compiled(device: str) -> None:
    made = [pair(case, seed) for seed, case in enumerate(CASES)]
    net = Gallery([ours for ours, _, _ in made], CASES)
    inputs = [array for _, arrays, _ in made for array in arrays]
    found = md.compile(net, [array.shape for array in inputs], device=device)(*inputs)
    expected = [(case, a) for case, (*_, each) in zip(CASES, made, strict=True) for a in each]
    for (case, wanted), result in zip(expected, found, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-5, err_msg=str(case))


@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_on_symbols_by_a_mask_that_is_computed(need_weights: bool) -> None:
    """A row that looks at nothing is NaN with weights and zero without, as in PyTorch."""
    case = Case("MultiheadAttention", (8, 2), ((2, 5, 8),) * 3, {"batch_first": True})
    ours, inputs, _ = pair(case, 4)
    theirs = case.theirs()
    theirs.load_state_dict({n: torch.from_numpy(a) for n, a in ours.state_dict().items()})
    hidden = np.zeros((2, 5), np.float32)
    hidden[0, 2:], hidden[1] = 1, 1
    x, mask = md.Input((5, 8)), md.Input((5,))
    out, weights = ours(x, x, x, key_padding_mask=mask > 0.5, need_weights=need_weights)
    assert (weights is None) is not need_weights
    net = pickle.loads(pickle.dumps(md.Model([x, mask], out)))
    assert next(iter(net.state_dict())) == "multiheadattention.in_proj_weight"
    given = torch.from_numpy(inputs[0]).double()
    padded = torch.from_numpy(hidden > 0.5)
    # With gradients, without which PyTorch takes a path that gives NaN in both cases.
    wanted, _ = theirs(given, given, given, key_padding_mask=padded, need_weights=need_weights)
    found = evaluate(to_graph(net, [(2, 5, 8), (2, 5)]), [inputs[0], hidden], dtype="float64")
    np.testing.assert_allclose(found[0], wanted.detach().numpy(), rtol=1e-9, atol=1e-10)
    assert np.isnan(found[0][1]).all() == need_weights
