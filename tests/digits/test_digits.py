"""The digits network: what it computes is what PyTorch computes with the weights it trained."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from minidnn import models
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph
from minidnn.models.digits import WEIGHTS

torch = pytest.importorskip("torch", reason="PyTorch is the oracle")

from tools.train_digits import TRAINED, Digits, load  # noqa: E402


@pytest.fixture(scope="module")
def held_out() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load()
    return images[TRAINED:].numpy(), labels[TRAINED:].numpy()


def test_weights_are_small() -> None:
    assert WEIGHTS.stat().st_size <= 300_000


def test_names_and_shapes_are_those_of_the_trained_network() -> None:
    ours = {name: array.shape for name, array in models.digits().state_dict().items()}
    theirs = {name: tuple(array.shape) for name, array in Digits().state_dict().items()}
    assert ours == theirs
    in_file = {name: array.shape for name, array in load_file(WEIGHTS).items()}
    assert in_file == {n: s for n, s in ours.items() if not n.endswith("num_batches_tracked")}


def test_scores_are_pytorchs(held_out: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = held_out
    assert images.shape == (360, 1, 8, 8)
    state = load_file(WEIGHTS)
    net = models.digits()
    net.load_state_dict(state)
    (scores,) = evaluate(to_graph(net, images.shape), [images])

    oracle = Digits().double().eval()
    oracle.load_state_dict({n: torch.from_numpy(a) for n, a in state.items()}, strict=False)
    with torch.no_grad():
        expected = oracle(torch.from_numpy(images).double()).numpy()
    np.testing.assert_allclose(scores, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    assert (scores.argmax(axis=1) == labels).mean() >= 0.98
