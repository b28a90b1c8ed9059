"""Rounding errors of the algorithms for 3x3 kernels, on which choices by accuracy rely."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from minidnn.backends.cpu.contraction.algorithms import ALGORITHMS
from minidnn.backends.cpu.contraction.winograd.scheme import F2, F4, part_terms
from minidnn.backends.cpu.isa import Isa

from .cases import conv
from .harness import Case, build, compile_all, inputs_of, reference, run

DEPTHS = (64, 256, 512)
#: Over the root of the mean square of results, in units of 2^-24.  These inputs, weights and biases
#: give 3.1 to 4.0, 2.4 to 4.0, 1.5 to 1.9 and 4.1 to 6.3.
LIMITS = {"direct": 5.0, "direct, compensated": 5.0, F2.name: 2.5, F4.name: 7.5}


def test_errors_are_those_that_the_algorithms_tell(isa: Isa, own_cache: None) -> None:
    """The roots of mean squares, for inputs behind a ReLU."""
    known = [algorithm for algorithm in ALGORITHMS if "float32" in algorithm.factors]
    names = [algorithm.name for algorithm in known]
    cases = [Case(f"{c}", (1, c, 12, 12), 32, (3, 3), conv(pad=1)) for c in DEPTHS]
    built = [build(replace(case, algorithm=name), isa) for case in cases for name in names]
    kernels = compile_all(built, isa)
    for i, case in enumerate(cases):
        errors = {}
        for name in names:
            this = built[i * len(names) + names.index(name)]
            inputs = [np.maximum(x, 0) for x in inputs_of(this)]
            wanted = reference(this, inputs)
            errors[name] = rms(run(this, kernels[built.index(this)], inputs) - wanted) / rms(wanted)
        for algorithm in known:
            error = errors[algorithm.name]
            assert error < LIMITS[algorithm.name] * 2.0**-24, (case, errors)
            assert error <= algorithm.error * errors["direct"], (case, errors)


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values).mean()))


@pytest.mark.parametrize("outputs", [2, 4])
def test_parts_are_quarters_within_bounds(outputs: int) -> None:
    terms = [part_terms(n, outputs) for n in (3, 16, 64, 128, 256, 512, 4096)]
    assert terms[:4] == [16, 16, 16, 32]
    assert terms[4:] == [{2: 32, 4: 64}[outputs]] * 3
