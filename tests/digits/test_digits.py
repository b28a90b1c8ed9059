"""The digits network's weights, which come with minidnn."""

from __future__ import annotations

from minidnn import models
from minidnn.data import digits
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph
from minidnn.models.digits import WEIGHTS
from minidnn.weights import load_weights


def test_weights_are_small_and_those_of_the_network() -> None:
    assert WEIGHTS.stat().st_size <= 300_000
    ours = {name: array.shape for name, array in models.digits().state_dict().items()}
    assert {name: array.shape for name, array in load_weights(WEIGHTS).items()} == ours


def test_the_weights_read_the_held_out_digits() -> None:
    held_out = digits(train=False)
    assert held_out.x.shape == (360, 1, 8, 8)
    net = models.digits(weights="DEFAULT")
    (scores,) = evaluate(to_graph(net, held_out.x.shape), [held_out.x])
    assert (scores.argmax(axis=1) == held_out.y).mean() >= 0.98
