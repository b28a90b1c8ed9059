"""Layer normalizations of channels that lie in blocks have the bits of those of rows."""

from __future__ import annotations

from functools import cache

import numpy as np

import minidnn as md
from minidnn.backends.cpu.isa import ISAS, Isa
from minidnn.fusion.region import FusedNormalization
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply
from minidnn.passes.linear import FIRST, LAST
from tests.passes.build import constant, conv, graph_of
from tests.sampling import each_on_one, on

from .warming import warm

SHAPES: list[tuple[int, ...]] = [
    (2, 3, 5, 7),
    (1, 96, 9, 9),
    (3, 70, 1, 1),
    (2, 1100, 3, 2),
    (1, 17, 40, 3),
]


def network(vectors: int, shape: tuple[int, ...]) -> Graph:
    """A normalization whose input and result lie in blocks, as convolutions have them."""

    def build(t, x):
        y = apply(ops.Transpose(LAST), conv(t, x, x.shape[1]))
        given = [constant(t, y.shape[-1:], f"v{i}") for i in range(vectors)]
        return conv(t, apply(ops.Transpose(FIRST), apply(ops.LayerNorm(1, 1e-6), y, *given)), 5)

    return graph_of(build, shape)


@cache
def networks(isa_name: str) -> dict[tuple[int, tuple[int, ...]], Graph]:
    """Those with each number of vectors and each shape, their kernels compiled together."""
    shapes = on(SHAPES, ISAS, isa_name)
    found = {(n, shape): network(n, shape) for n in (0, 1, 2) for shape in shapes}
    warm([(g, how) for g in found.values() for how in ("model", "layers")], ISAS[isa_name])
    return found


@each_on_one(SHAPES, ISAS)
def test_bits_are_those_of_rows(case: tuple[int, ...], isa: Isa) -> None:
    shape = case
    for vectors in (0, 1, 2):
        graph = networks(isa.name)[vectors, shape]
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 3 + 100
        x.flat[: shape[1]] = np.nan
        found = []
        for strategy, threads in (("model", 2), ("layers", 1)):
            exe = md.compile(graph, device="cpu", strategy=strategy, threads=threads, isa=isa.name)
            kinds = [type(node.op) for node in exe.plan.graph.nodes]
            assert (FusedNormalization in kinds) == (strategy == "model")
            found.append(exe(x).tobytes())
        assert found[0] == found[1]


def test_against_float64() -> None:
    def build(t, x):
        y = apply(ops.LayerNorm(1, 1e-6), apply(ops.Transpose(LAST), x))
        return apply(ops.Transpose(FIRST), y)

    x = np.random.default_rng(1).standard_normal((2, 37, 4, 5)).astype(np.float32) + 1e4
    exe = md.compile(graph_of(build, x.shape), device="cpu")
    assert [type(node.op) for node in exe.plan.graph.nodes].count(FusedNormalization) == 1
    wide = x.astype(np.float64)
    apart = wide - wide.mean(1, keepdims=True)
    expected = apart / np.sqrt((apart**2).mean(1, keepdims=True) + 1e-6)
    assert np.abs(exe(x) - expected).max() <= 4e-6
