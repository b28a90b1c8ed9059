"""Steps of a ladder in the emulator of CUDA, beside the ladder's reference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minidnn.backends.cuda.kernels import Launch
from minidnn.lab.cuda_step import CudaStep
from minidnn.lab.operands import draw, tolerance
from minidnn.lab.step import Block, Ladder, Parameters
from tests.cuda.emulator.run import Emulated, guarded

_DYNAMIC = re.compile(r"extern __shared__ (\w+) (\w+)\[\];")


@dataclass(frozen=True)
class Case:
    """A launch to be made."""

    shape: Any
    block: Block
    parameters: Parameters | None = None


def check(ladder: Ladder, step: CudaStep, cases: Sequence[Case], folder: Path) -> None:
    """Every case beside the reference, and the same bits when threads take turns backwards; they
    are compiled together."""
    launches = [plain(step.launch(case.shape, case.block, case.parameters)) for case in cases]
    kernels = Emulated([launch.source for launch in launches], folder)
    for case, launch in zip(cases, launches, strict=True):
        operands = draw(step.operands(case.shape), case.shape)
        y = run(kernels, step, launch, case.shape, operands, False)
        expected = ladder.reference(case.shape, operands)
        atol = tolerance(case.shape) * max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(y, expected.ravel(), rtol=0, atol=atol, err_msg=f"{case}")
        again = run(kernels, step, launch, case.shape, operands, True)
        np.testing.assert_array_equal(y, again, f"{case}")


def run(
    kernels: Emulated,
    step: CudaStep,
    launch: Launch,
    shape: Any,
    operands: Mapping[str, np.ndarray],
    backwards: bool,
) -> np.ndarray:
    """The result; nothing beside it was written."""
    whole, y = guarded(shape.operands["y"], np.dtype("f"))
    given = {**operands, "y": y}
    for symbol, operand in step.symbols(launch).items():
        kernels.fill(symbol, operands[operand])
    arguments = [
        given[one] if isinstance(one, str) else np.array([one]) for one in step.arguments(shape)
    ]
    kernels.launch(launch, arguments, backwards)
    result = y.copy()
    y[:] = np.nan
    assert np.isnan(whole).all(), "something else was written"
    return result


def plain(launch: Launch) -> Launch:
    """Shared memory whose size the launch says, as the emulator has it."""
    text = _DYNAMIC.sub(r"MD_SHARED; \1 *const \2 = (\1 *)md_shared;", launch.source.text)
    return replace(launch, source=replace(launch.source, text=text))
