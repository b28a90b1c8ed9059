"""Kernels of all operators: by the interpreter beside the reference, and as text beside both."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from minidnn.backends.cpu.compilers.kernels import compile_kernels
from minidnn.backends.cpu.compilers.library import NativeFunction
from minidnn.backends.cpu.isa import Isa, usable_isas
from minidnn.backends.cpu.operators.kernels import SCHEDULE, shaped
from minidnn.backends.cuda.functions import compile_kernels as compile_by_nvrtc
from minidnn.backends.cuda.kernels import Launch
from minidnn.graph.operators import Gather
from minidnn.graph.types import TensorType
from minidnn.kernels.ops import LOWERINGS
from minidnn.kernels.ops.indexing import lower_gather
from minidnn.kernels.ops.pitched import Pitched
from minidnn.kernels.render import ispc
from tests.cuda.cards import H200
from tests.cuda.emulator.run import Emulated

from .cases import FULL, HALF_DTYPES, MADE
from .made import SCHEDULES, Made


def test_every_operator_has_cases() -> None:
    names = {made.name.split("-")[0] for made in FULL}
    operators = {re.sub(r"\B[A-Z]", r"_\g<0>", op.__name__).lower() for op in LOWERINGS}
    assert names >= {*operators, "copy", "elementwise", "move"}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("made", (*MADE, *HALF_DTYPES), ids=str)
def test_the_interpreter_gives_the_reference(made: Made, schedule: str) -> None:
    np.testing.assert_array_equal(made.interpreted(made.kernel(schedule)), made.expected)


@pytest.fixture(scope="module", params=usable_isas(), ids=lambda isa: isa.name)
def native(request: pytest.FixtureRequest) -> Mapping[str, NativeFunction]:
    isa: Isa = request.param
    kernels = [made.kernel(name) for made in FULL for name in ("cpu", "chunks")]
    functions = compile_kernels([ispc.render(kernel) for kernel in kernels], isa)
    return {function.name: function for function in functions}


@pytest.mark.parametrize("schedule", ["cpu", "chunks"])
@pytest.mark.parametrize("made", FULL, ids=str)
def test_ispc_gives_what_the_interpreter_does(
    made: Made, schedule: str, native: Mapping[str, NativeFunction]
) -> None:
    kernel = made.kernel(schedule)
    result = made.called(kernel, native[ispc.render(kernel).name])
    assert result.tobytes() == made.interpreted(kernel).tobytes()


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    every = (*FULL, *HALF_DTYPES)
    kernels = [made.kernel(name) for made in every for name in ("cuda", "points")]
    return Emulated([Launch.of(k).source for k in kernels], tmp_path_factory.mktemp("kernels"))


@pytest.mark.race
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("schedule", ["cuda", "points"])
@pytest.mark.parametrize("made", (*FULL, *HALF_DTYPES), ids=str)
def test_cuda_gives_what_the_interpreter_does(
    made: Made, schedule: str, backwards: bool, emulated: Emulated
) -> None:
    kernel, result = made.kernel(schedule), made.result()
    memory = [*map(np.ascontiguousarray, made.operands), *kernel.tables, result]
    emulated.launch(Launch.of(kernel), memory, backwards)
    assert result.tobytes() == made.interpreted(kernel).tobytes()


def test_cuda_is_compiled_without_spills(warm_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDNN_CACHE", str(warm_cache))
    sources = [Launch.of(made.kernel("cuda")).source for made in (*FULL, *HALF_DTYPES)]
    for kernel in compile_by_nvrtc(sources, H200.arch):
        assert kernel.resources.spill_bytes == kernel.resources.stack_bytes == 0, kernel.resources


def test_kernels_of_other_sizes_are_one_text_on_the_cpu() -> None:
    texts = set()
    for axis, rows in ((50, 3), (1000, 40)):
        types = TensorType((axis, 7 * rows)), TensorType((rows,), "int64"), TensorType((rows, rows))
        texts.add(shaped(lower_gather(Gather(), [*map(Pitched.dense, types)], SCHEDULE)).source)
    assert len(texts) == 1
