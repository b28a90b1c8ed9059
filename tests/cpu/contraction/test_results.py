"""Every case against float64, on guarded buffers, on both ISAs and any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn.backends.cpu.compilers.library import NativeFunction
from minidnn.backends.cpu.execution.buffers import Guard
from minidnn.backends.cpu.isa import ISAS
from tests.sampling import each_on_one, on

from .cases import CASES
from .harness import (
    Built,
    build,
    compile_all,
    inputs_of,
    largest_error,
    reference,
    run,
)

Ready = dict[str, tuple[Built, list[NativeFunction]]]


@pytest.fixture(scope="module")
def _compiled() -> dict[str, Ready]:
    return {}


@pytest.fixture
def ready(isa, own_cache, _compiled: dict[str, Ready]) -> Ready:
    """All cases that run on an ISA, compiled together once."""
    if isa.name not in _compiled:
        built = [build(case, isa) for case in on(CASES, ISAS, isa.name)]
        kernels = compile_all(built, isa)
        _compiled[isa.name] = {b.case.name: (b, k) for b, k in zip(built, kernels, strict=True)}
    return _compiled[isa.name]


#: Sums are added in parts, so that long ones are not less exact than short ones: the largest
#: error of all cases is 1.2e-6, that of 9216 terms in one sum would be 3.1e-6.
TOLERANCE = 2e-6


@each_on_one(CASES, ISAS)
def test_agrees_with_float64(case, ready: Ready) -> None:
    built, kernels = ready[case.name]
    inputs = inputs_of(built)
    wanted = reference(built, inputs)
    result = run(built, kernels, inputs)
    assert largest_error(result, wanted) < TOLERANCE
    again = run(built, kernels, inputs, threads=2, guard=Guard.START, grain=1)
    assert np.array_equal(result.view("u4"), again.view("u4"))
    third = run(built, kernels, inputs, threads=3, grain=3)
    assert np.array_equal(result.view("u4"), third.view("u4"))
