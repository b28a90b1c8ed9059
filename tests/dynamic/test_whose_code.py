"""Which networks may be others for another size of the batch: those with code of the user's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn import models
from minidnn.dynamic.executable import DynamicExecutable
from minidnn.dynamic.rows import row_wise
from minidnn.layers.build import to_graph
from minidnn.layers.functional import has_user_code


class Looking(L.Layer):
    """A layer whose code looks at the batch."""

    def forward(self, x: Any) -> Any:
        return x * (2.0 if x.shape[0] == 5 else 1.0)


def functional(last: Any) -> L.Model:
    x = L.Input((3, 8, 8))
    y = L.Conv2d(3, 3, 1)(x) + x
    return L.Model(x, last(y.reshape(-1, 3, 64)))


def overridden() -> L.Layer:
    def forward(x: Any) -> Any:
        return x * x.shape[0]

    net = L.ReLU()
    vars(net)["forward"] = forward
    return net


@pytest.mark.parametrize(
    ("net", "others"),
    [
        (L.Sequential(L.Conv2d(3, 4, 3), L.BatchNorm2d(4), L.ReLU()), False),
        (functional(L.ReLU()), False),
        (functional(Looking()), True),
        (L.Sequential(L.Sequential(Looking())), True),
        (overridden(), True),
        (type("Mine", (L.ReLU,), {})(), True),
    ],
)
def test_code_of_the_users_is_found(net: L.Layer, others: bool) -> None:
    assert has_user_code(net) is others


@pytest.mark.parametrize("name", ["squeezenet1_1", "resnet18", "densenet121"])
def test_the_zoos_networks_are_the_same_for_every_batch(name: str) -> None:
    """So that none need be looked at when it comes."""
    net = models.get_model(name)
    assert not has_user_code(net)
    large = to_graph(net, (64, 3, 224, 224))
    for rows in (1, 2, 3, 16, 63):
        assert not isinstance(row_wise(to_graph(net, (rows, 3, 224, 224)), large, {0}), str)


def test_code_that_looks_at_the_batch_is_asked_each_time() -> None:
    exe = md.compile(Looking(), (md.Dim("n", 1, 16), 6), device="reference")
    assert isinstance(exe, DynamicExecutable)
    for rows in (3, 5, 7):
        x = np.ones((rows, 6), np.float32)
        np.testing.assert_array_equal(exe(x), x * (2 if rows == 5 else 1))
    assert exe.counts.in_parts == 2
