"""What is measured: candidates are right, differ, and keep to what is asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from minidnn.backends.cpu.contraction import Question, choose_by_price, print_choice, question_of
from minidnn.backends.cpu.contraction.algorithms import ALGORITHMS, candidates, kind_of
from minidnn.backends.cpu.isa import AVX2, AVX512, ISAS, Isa
from minidnn.backends.options import ACCURACIES
from minidnn.graph.operators import Add, Linear, ReLU, ScaleShift
from tests.cpu.contraction.cases import conv
from tests.cpu.contraction.harness import (
    Built,
    Case,
    build,
    compile_all,
    inputs_of,
    largest_error,
    reference,
    run,
)
from tests.sampling import every

pytestmark = pytest.mark.early

PAD = conv(pad=1)
CASES = [
    Case("3x3", (2, 48, 13, 11), 80, (3, 3), PAD, after=(Add(), ReLU())),
    Case("1x1", (2, 40, 9, 10), 72, after=(ReLU(),)),
    Case("prologue", (1, 33, 7, 7), 48, before=(ScaleShift(), ReLU())),
    Case("stride", (1, 32, 15, 15), 40, (3, 3), conv((2, 2), 1)),
    Case("stem", (1, 3, 21, 21), 24, (3, 3), conv((2, 2), 1), layouts="pb"),
    Case("depthwise", (1, 32, 9, 9), 32, (3, 3), conv(pad=1, groups=32)),
    Case("linear", (3, 100), 50, op=Linear()),
    Case("one-row", (1, 70), 33, op=Linear()),
]


def question(built: Built, isa: Isa, threads: int = 2, accuracy: str = "normal") -> Question:
    source, *others, result = built.tensors
    batch = built.values[0].type.plane[0]
    return question_of(built.parts, batch, source, tuple(others), result, isa, threads, accuracy)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("isa", every(2, list(ISAS)[::-1]), indirect=True)
def test_all_candidates_are_right(isa: Isa) -> None:
    variants = []
    for case in CASES:
        built = build(case, isa, 2)
        for accuracy in ACCURACIES:
            for choice in candidates(question(built, isa, accuracy=accuracy), 4):
                kernel = print_choice(built.parts, choice, 2)
                variants.append((choice, replace(built, kernel=kernel)))
    assert {choice.algorithm.name for choice, _ in variants} == {
        a.name for a in ALGORITHMS if "float32" in a.factors
    }
    first: dict[tuple[str, str], np.ndarray] = {}
    all_kernels = compile_all([built for _, built in variants], isa)
    for (choice, built), kernels in zip(variants, all_kernels, strict=True):
        inputs = inputs_of(built)
        result = run(built, kernels, inputs, 2)
        what = f"{built.case} {choice.algorithm.name} {choice.algorithm.describe(choice.scheme)}"
        assert largest_error(result, reference(built, inputs)) < 5e-6, what
        # Schemes of one algorithm do not differ in a bit.
        same = first.setdefault((built.case.name, choice.algorithm.name), result)
        assert np.array_equal(result, same), what


@pytest.mark.parametrize("isa", [AVX2, AVX512], ids=lambda isa: isa.name)
def test_the_first_is_that_by_price_and_all_differ(isa: Isa) -> None:
    for case in CASES:
        asked = question(build(case, isa), isa)
        found = candidates(asked, 8)
        assert found[0] == choose_by_price(asked)
        assert 1 <= len(found) <= 8
        assert len({kind_of(choice) for choice in found}) == len(found)
        assert candidates(asked, 3) == found[:3]


@pytest.mark.parametrize("isa", [AVX2, AVX512], ids=lambda isa: isa.name)
def test_high_accuracy_leaves_out_what_is_less_exact(isa: Isa) -> None:
    built = build(Case("3x3", (1, 64, 28, 28), 64, (3, 3), PAD), isa)
    normal, *others = (
        {c.algorithm for c in candidates(question(built, isa, 2, accuracy), 24)}
        for accuracy in ("normal", "direct", "high")
    )
    assert any(algorithm.error > 1 for algorithm in normal)
    for exact in others:
        assert exact and all(algorithm.error <= 1 for algorithm in exact)


@pytest.mark.parametrize("isa", [AVX2, AVX512], ids=lambda isa: isa.name)
def test_a_description_tells_schemes_apart(isa: Isa) -> None:
    for case in CASES:
        built = build(case, isa)
        asked = question(built, isa)
        for algorithm in ALGORITHMS:
            if algorithm.why_not(asked.problem, asked.has_prologue, isa) is None:
                schemes = list(algorithm.schemes(asked.problem, asked.has_prologue, isa, 2))
                told = {tuple(algorithm.describe(scheme).items()) for scheme in schemes}
                assert len(told) == len(set(schemes))
