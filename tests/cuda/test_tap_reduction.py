"""Windows that compute what they join, in registers: places of maxima and what maxima get, on ties,
NaN, infinities and zeros of either sign, of planes whose signs are known and of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidnn.backends.codegen.code import Code
from minidnn.backends.cuda.sequence.pack import Pack
from minidnn.backends.cuda.sequence.taps import Tap, TapReduction
from minidnn.fusion.region import FusedSequence
from minidnn.fusion.sequence import Schedule
from minidnn.gradients.rules.pooling import maximum_gradient, place_of_maximum
from minidnn.graph.expression import argument, where
from minidnn.graph.ir import Graph
from minidnn.graph.layout import PLANAR
from minidnn.graph.operators import MaxPool2d
from minidnn.graph.trace import apply
from minidnn.graph.window import Window, WindowAxis
from tests.passes.build import graph_of, relu

from .sequences import case_of, run_cases

KINDS = np.array([0.0, -0.0, 1.0, 1.0, 2.0, -1.0, np.inf, -np.inf], np.float32)


def back(kernel: int, positive: bool, given: bool, plane: tuple[int, int]) -> Graph:
    """Places of maxima and what the elements get; the maxima are ``given``, or computed, too."""
    pool = MaxPool2d(*((kernel, kernel), (1, 1), (kernel // 2,) * 2))
    window = pool.window()
    size = (2, 2, *plane)

    def build(t: Any, x: Any, held: Any, dy: Any) -> list[Any]:
        x = relu(x) if positive else x
        held = held if given else apply(pool, x)
        place = apply(place_of_maximum(window), x, held)
        return [place, apply(maximum_gradient(window, plane), place, dy)]

    return graph_of(build, size, size, size)


def drawn(random: np.random.Generator, shape: tuple[int, ...], nans: bool) -> np.ndarray:
    found = random.choice(KINDS, shape)
    if nans:  # with several payloads
        bits = np.array([0x7FC00000, 0x7F800001, 0xFFC00000, 0x7FFFFFFF], np.uint32)
        some = random.random(shape) < 0.1
        found[some] = random.choice(bits, some.sum()).view(np.float32)
    return found


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("positive", [True, False])
def test_places_and_gradients(positive: bool, given: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    cases = []
    for kernel, plane in ((3, (13, 11)), (5, (9, 16)), (3, (1, 7))):
        body = back(kernel, positive, given, plane)
        region = FusedSequence(body, Schedule(*plane))
        for nans in (False, True):
            arrays = [drawn(random, v.shape, nans) for v in body.inputs[:2]]
            dy = random.standard_normal(body.inputs[-1].shape).astype(np.float32)
            dy[..., ::3] = -0.0
            cases.append(case_of(region, [*arrays, dy][-len(body.inputs) :], PLANAR))
    run_cases(cases, tmp_path)


def printed(window: Window, positive: bool) -> str:
    code = Code()
    taps = [[Tap([f"a{i}{j}"], 3.0 * i + j, "") for j in range(3)] for i in range(3)]
    TapReduction(Pack(code, 1), window, (8, 8), positive).print(taps, ["held"])
    return str(code)


def test_what_is_printed() -> None:
    """Signs that are known take no comparison with itself; numbers that rise are joined."""
    window = place_of_maximum(MaxPool2d((3, 3), (1, 1), (1, 1)).window()).window()
    assert printed(window, True).count("intbits") == 10
    assert printed(window, False).count("!(") == 9
    assert "md_max" not in printed(window, True) + printed(window, False)
    taken, held, number = argument(0), argument(1), argument(2)
    rising = where(taken >= held, number, where(taken <= taken, -1.0, number))
    axes = WindowAxis(3, 1, (1, 1)), WindowAxis(3, 1, (1, 1))
    assert "md_max" in printed(Window(*axes, "max", rising, here=1), True)
