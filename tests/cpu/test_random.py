"""Random numbers on the CPU engine are the reference's, to the bit, for any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.cpu.isa import Isa
from minidnn.layers.build import to_graph
from tests.cases.random import Drops


@pytest.mark.parametrize(
    ("channels", "shape"), [(False, (3, 5, 31, 67)), (False, (7,)), (True, (4, 9, 5, 7))]
)
def test_bits_are_those_of_the_reference(channels: bool, shape: tuple[int, ...], isa: Isa) -> None:
    graph = to_graph(Drops(0.3, 2, channels), shape)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    x.flat[:2] = np.nan, np.inf
    expected = md.compile(graph, device="reference")(x)
    for threads in (1, 2):
        exe = md.compile(graph, device="cpu", isa=isa.name, threads=threads)
        np.testing.assert_array_equal(exe(x), expected)
