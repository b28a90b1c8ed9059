"""Gradients in bfloat16 on the CPU engine.

Each kernel gives what its node is of what the kernels before it gave, and all together are as near
to float64 as exact arithmetic that rounds where they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.cpu import isa
from minidnn.compiler import _compile
from minidnn.executable import Executable
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.graph.types import rounded_to
from minidnn.passes.mix_precision import mixed
from tests.cases import Case
from tests.gradients.exact import exact_gradients
from tests.gradients.random_networks import Shape, Trained, draw
from tests.gradients.test_cases import SMALL, small
from tests.sampling import some

from .each_node import computed, errors, in_float64, kept, states_and_inputs
from .warming import warm

pytestmark = pytest.mark.skipif(
    isa.why_no_bfloat16(isa.AVX512) is not None, reason=str(isa.why_no_bfloat16(isa.AVX512))
)
OPTIONS: dict[str, Any] = {"isa": "avx512", "threads": 2, "guarded": True}
#: Blocks of channels that are full, that are not, and images.
WIDE: Sequence[Shape] = ((2, 16, 6, 5), (3, 40, 5, 7), (2, 3, 9, 8), (2, 32, 4, 4), (8, 24, 3, 3))


def check(exe: Executable, inputs: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> None:
    known = states_and_inputs(exe, inputs)
    wrong, results = errors(exe, inputs)
    assert not wrong, wrong
    made = in_float64(exe.graph, known)
    for value, found, right in zip(exe.graph.outputs, results, exact, strict=True):
        if value.dtype not in ("float32", "bfloat16") or value not in made:
            continue
        own, away = (float(np.linalg.norm(array - right)) for array in (made[value], found))
        size = max(float(np.linalg.norm(right)), 0.1)
        assert away <= 1.1 * own + 2.0**-9 * size, f"{value!r}: {away}, rounding makes {own}"


def check_seeds(seeds: Sequence[int], *arguments: Any) -> None:
    drawn = [Trained(draw(seed, *arguments), seed) for seed in seeds]
    graphs = ((trained.graph, "model") for trained in drawn)
    warm(graphs, isa.AVX512, stored=True, precision="bfloat16")
    for seed, trained in zip(seeds, drawn, strict=True):
        how: dict[str, Any] = {"device": "cpu", "precision": "bfloat16", "observe": kept}
        exe = md.compile(trained.graph, store=md.Store(), **how, **OPTIONS)
        try:
            check(exe, trained.batch, list(trained.by_torch(np.float64).values()))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {trained.recipe}") from error


def test_random_networks() -> None:
    """As those in float32 are tested: of one shape, which share most kernels."""
    check_seeds(some(range(100), 12), 1, 4, [(2, 4, 5, 5)])


def test_wide_random_networks(kind: str) -> None:
    check_seeds(some(range(60), 12), 3, 7, WIDE, 48)


@pytest.mark.full
@pytest.mark.parametrize("part", range(10))
def test_many_random_networks(part: int, kind: str) -> None:
    seeds = range(25 * (part + 4), 25 * (part + 5))
    check_seeds(seeds)
    check_seeds(seeds, 3, 9, WIDE, 48)


def narrowed(case: Case) -> tuple[Graph, Graph, list[np.ndarray]]:
    """The gradients of a case, the same graph in bfloat16 from inputs to results, and inputs."""
    graph, arrays, _ = exact_gradients(case)
    floats = [value for value in graph.inputs if value.dtype == "float32"]
    made = mixed(graph, "bfloat16", floats, [v.dtype == "float32" for v in graph.outputs])
    return graph, made, [_rounded(array) for array in arrays]


def _rounded(array: np.ndarray) -> np.ndarray:
    return rounded_to("bfloat16", array) if array.dtype.kind == "f" else array


def compiled(graph: Graph, strategy: str = "model", **options: Any) -> Executable:
    """A graph that says itself what is in bfloat16."""
    how: dict[str, Any] = {"device": "cpu", "precision": "bfloat16", "strategy": strategy}
    given = {**OPTIONS, "accuracy": "direct"} | options
    return _compile(graph, None, **how, options=given, observe=kept, mixed=True)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_gradients_of_every_operator(case: Case) -> None:
    """Also of special numbers, and with the same bits layer by layer and on one thread."""
    graph, made, arrays = narrowed(case)
    exe = compiled(made)
    wide = [array.astype(np.float64) if array.dtype.kind == "f" else array for array in arrays]
    with np.errstate(all="ignore"):
        check(exe, arrays, evaluate(graph, wide, "float64"))
    others = [compiled(made, "layers"), compiled(made, threads=1)]
    batches = [arrays]
    if case.special:
        given = case.inputs(small(case)[-1], "float32", special=True)
        batches.append([*map(_rounded, given), *arrays[len(given) :]])
        assert errors(exe, batches[1])[0] == []
    for batch in batches:
        found = computed(exe, batch)[1]
        for other in others:
            for one, same in zip(found, computed(other, batch)[1], strict=True):
                np.testing.assert_array_equal(one, same)


def test_arrays_of_what_is_bfloat16() -> None:
    """NumPy has float32 for it, which is rounded."""
    _, made, arrays = narrowed(next(case for case in SMALL if case.name == "conv2d-3x3"))
    exe = compiled(made, guarded=False)
    assert {value.dtype for value in exe.graph.inputs} == {"bfloat16"}
    results = exe(*(array * np.float32(1 + 2.0**-10) for array in arrays))
    for one, other in zip(results, computed(compiled(made), arrays)[1], strict=True):
        assert one.dtype == np.float32
        np.testing.assert_array_equal(one, other)
    out = [np.empty(value.shape, np.float32) for value in exe.interface.outputs]
    exe(*arrays, out=out)
    for one, other in zip(results, out, strict=True):
        np.testing.assert_array_equal(one, other)
