"""Gradients of layers that are several operators: transposed and 1-d convolutions, resizing,
paddings, attention, beside PyTorch's of the same name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers as L
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Value
from minidnn.layers.build import to_graph
from tests.cases.record import one_thread
from tests.gradients.losses import differentiable, with_loss
from tests.layers.torch_cases import CASES, Case


class Called(L.Layer):
    """A layer that is called with more than inputs."""

    def __init__(self, layer: L.Layer, options: dict[str, Any]) -> None:
        self.layer = layer
        self.options = options

    def forward(self, *inputs: Any) -> Any:
        results = self.layer(*inputs, **self.options)
        return results[0] if isinstance(results, tuple) else results


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_layer(case: Case) -> None:
    theirs, ours = case.theirs(), case.ours()
    random = np.random.default_rng(0)
    state = {
        name: torch.from_numpy(random.uniform(0.5, 1.5, tuple(value.shape)).astype(np.float32))
        for name, value in theirs.state_dict().items()
        if value.is_floating_point()
    }
    theirs.load_state_dict(state, strict=False)
    ours.load_state_dict(theirs.state_dict())
    inputs = [random.standard_normal(shape) for shape in case.shapes]
    graph = with_loss(to_graph(Called(ours, case.call), case.shapes, states=True))
    given = random.standard_normal(graph.outputs[0].shape)

    tensors = [torch.from_numpy(array).requires_grad_() for array in inputs]
    called = {
        name: torch.from_numpy(each) if isinstance(each, np.ndarray) else each
        for name, each in case.call.items()
    }
    own = {f"layer.{name}": value for name, value in theirs.named_parameters()}
    with one_thread():
        out = theirs(*tensors, **called)
        out = out[0] if isinstance(out, tuple) else out
        everything = dict(enumerate(tensors)) | own
        expected = torch.autograd.grad(out, list(everything.values()), torch.from_numpy(given))

    assert len(differentiable(graph)) == len(inputs)
    of: list[Value | str] = [*graph.inputs[: len(inputs)], *own]
    found = evaluate(md.gradient(graph, "loss", of), (*inputs, given), "float64")[1:]
    # Weights of resized images are computed in float32, as PyTorch does for float32 images; of
    # CELU's gradient PyTorch rounds a factor to float32.
    near = 1e-6 if case.name in ("Upsample", "CELU") else 1e-10
    for name, actual, theirs_own in zip(everything, found, expected, strict=True):
        scale = max(1.0, float(theirs_own.abs().max()))
        label = f"{case}: {name}"
        np.testing.assert_allclose(actual, theirs_own, near, near * scale, err_msg=label)
