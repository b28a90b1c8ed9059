"""Steps of a ladder in the emulator of CUDA, beside the ladder's reference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minidnn.backends.cuda.kernels import Launch
from minidnn.lab.cuda.step import CudaStep, KernelCall, Texture
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
    every = [plain(step.calls(case.shape, case.block, case.parameters)) for case in cases]
    kernels = Emulated([call.launch.source for calls in every for call in calls], folder)
    for case, calls in zip(cases, every, strict=True):
        operands = draw(step.operands(case.shape), case.shape, step.float16_operands)
        y = run(kernels, step, case, calls, operands, False)
        expected = ladder.reference(case.shape, operands)
        atol = tolerance(case.shape, step.float16_operands) * max(
            1.0, float(np.abs(expected).max())
        )
        np.testing.assert_allclose(y, expected.ravel(), rtol=0, atol=atol, err_msg=f"{case}")
        again = run(kernels, step, case, calls, operands, True)
        np.testing.assert_array_equal(y, again, f"{case}")


def run(
    kernels: Emulated,
    step: CudaStep,
    case: Case,
    calls: Sequence[KernelCall],
    operands: Mapping[str, np.ndarray],
    backwards: bool,
) -> np.ndarray:
    """The result; nothing beside it, or beside scratch memory, was written."""
    type = np.dtype("float16" if "y" in step.float16_operands else "float32")
    sizes = step.scratch(case.shape, case.block, step.with_own(case.parameters))
    made = {name: guarded(size, np.dtype("f")) for name, size in sizes.items()}
    made["y"] = guarded(case.shape.operands["y"], type)
    for symbol, operand in step.symbols(calls[-1].launch).items():
        kernels.fill(symbol, operands[operand])
    launch_all(
        kernels, calls, {**operands, **{name: part for name, (_, part) in made.items()}}, backwards
    )
    result = made["y"][1].copy()
    for name, (whole, part) in made.items():
        part[:] = np.nan
        assert np.isnan(whole).all(), f"something beside {name} was written"
    return result


def launch_all(
    kernels: Emulated,
    calls: Sequence[KernelCall],
    arrays: Mapping[str, np.ndarray],
    backwards: bool = False,
) -> None:
    """Launches kernels one after the other."""
    for call in calls:
        textures = {
            one: np.array([arrays[one.operand].ctypes.data, arrays[one.operand].size])
            for one in call.arguments
            if isinstance(one, Texture)
        }
        arguments = [
            np.array([textures[one].ctypes.data])
            if isinstance(one, Texture)
            else arrays[one]
            if isinstance(one, str)
            else np.array([one])
            for one in call.arguments
        ]
        kernels.launch(call.launch, arguments, backwards)


def plain(calls: Sequence[KernelCall]) -> list[KernelCall]:
    """Shared memory whose size the launch says, as the emulator has it."""
    return [replace(call, launch=_plain(call.launch)) for call in calls]


def _plain(launch: Launch) -> Launch:
    text = _DYNAMIC.sub(r"MD_SHARED; \1 *const \2 = (\1 *)md_shared;", launch.source.text)
    return replace(launch, source=replace(launch.source, text=text))
