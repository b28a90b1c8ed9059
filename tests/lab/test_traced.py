"""What the model says that kernels read and write, beside what they do in the emulator."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minidnn.lab.convolution.ladder import CONVOLUTION
from minidnn.lab.cuda_step import CudaStep
from minidnn.lab.operands import draw
from minidnn.lab.product.ladder import PRODUCT
from minidnn.lab.product.shape import ProductShape
from minidnn.lab.step import Ladder
from tests.cuda.emulator.run import Emulated

from .emulated import Case, plain
from .test_convolution import generated

#: A pointer that counts what is read and written through it.
TRACED = """#ifndef TRACED
#define TRACED
struct Traced {
  float *p;
  long long *count;
  float &operator[](long long i) const { ++*count; return p[i]; }
  Traced operator+(long long i) const { return {p + i, count}; }
};
#endif
"""

#: A vector that is written, as four numbers.
STORED = (
    "*(float4 *)(y + at) = four",
    "for (int e = 0; e < 4; e++) y[at + e] = ((float *)&four)[e]",
)

#: Vectors are read by casts of pointers, which no class can count.
STEPS = [(CONVOLUTION, step) for step in CONVOLUTION.steps]
STEPS += [
    (PRODUCT, step) for step in PRODUCT.steps if step.name not in ("vectors", "buffered", "warps")
]


def cases_of(ladder: Ladder, step: CudaStep) -> list[Case]:
    """So small that the model looks at every tile and plane."""
    if ladder is PRODUCT:
        blocks = ((8, 8), (4, 4))
        tile = {name: 2 for name in step.parameters}
        return [Case(ProductShape(13, 9, 7), block, tile) for block in blocks]
    whole = []
    for case in generated(step, 40):
        across, down = case.shape.tiles(case.block)
        if step.name == "implicit" and case.shape.terms > 8 * (case.parameters or {})["TILE_DEPTH"]:
            continue
        planes = max(case.shape.batch * case.shape.channels, case.shape.filters)
        if across * down <= 36 and planes <= 8:
            whole.append(case)
    return whole[:8]


@pytest.mark.parametrize(("ladder", "step"), STEPS, ids=lambda one: one.name)
def test_reads_and_writes(ladder: Ladder, step: CudaStep, tmp_path: Path) -> None:
    cases = cases_of(ladder, step)
    launches = [plain(step.launch(one.shape, one.block, one.parameters)) for one in cases]
    for at, launch in enumerate(launches):
        text = re.sub(r"(?:const )?float \*(?=(x|w|bias|y|a|b)\b)", "Traced ", launch.source.text)
        text = text.replace("const float *weights = w", "const Traced weights = w")
        text = text.replace(*STORED)
        launches[at] = replace(launch, source=replace(launch.source, text=TRACED + text))
    kernels = Emulated([launch.source for launch in launches], tmp_path)
    for case, launch in zip(cases, launches, strict=True):
        operands = draw(step.operands(case.shape), case.shape)
        arrays = operands | {"y": np.empty(case.shape.operands["y"], np.float32)}
        counts = {name: np.zeros(1, np.int64) for name in arrays}
        given = [
            np.array([arrays[one].ctypes.data, counts[one].ctypes.data])
            if isinstance(one, str)
            else np.array([one])
            for one in step.arguments(case.shape)
        ]
        for symbol, operand in step.symbols(launch).items():
            kernels.fill(symbol, arrays[operand])
        kernels.launch(launch, given)
        parameters = {**step.parameters, **(case.parameters or {})}
        accesses = step.work_of(case.shape, case.block, parameters).accesses
        for access in accesses:
            if access.space == "global":
                lanes = access.times * access.width * (access.at >= 0).sum()
                assert lanes == pytest.approx(counts[access.operand][0]), (access.operand, case)
