"""What the model says that kernels read and write, beside what they do in the emulator."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minidnn.lab.cuda.convolution import CONVOLUTION
from minidnn.lab.cuda.gradients import INPUT_GRADIENT, WEIGHT_GRADIENT
from minidnn.lab.cuda.product import PRODUCT
from minidnn.lab.cuda.step import CudaStep, KernelCall
from minidnn.lab.operands import ProductShape, draw
from minidnn.lab.step import Ladder
from tests.cuda.emulator.run import Emulated

from .emulated import Case, launch_all, plain
from .generated import generated

#: A pointer that counts what is read and written through it.
TRACED = """#ifndef TRACED
#define TRACED
template <class T> struct Traced {
  T *p;
  long long *count;
  T &operator[](long long i) const { ++*count; return p[i]; }
  Traced operator+(long long i) const { return {p + i, count}; }
};
#endif
"""
OPERANDS = r"(x|w|g|bias|y|a|b|matrix|spectra_.)"
POINTER = rf"(?:const )?(float2?|md_half) \*(?:__restrict__ )?(?={OPERANDS}\b)"

#: A vector that is written, as four numbers.
STORED = (
    "*(float4 *)(y + at) = four",
    "for (int e = 0; e < 4; e++) y[at + e] = ((float *)&four)[e]",
)
#: One that is read where a filter is whole vectors, which the cases of this step have not.
VECTOR = ("inside ? *(const uint4 *)(w + filter * DEPTH + k) : zeros", "zeros")

#: Vectors, and copies to shared memory, take plain pointers, which no class can count.
CASTS = ("buffered", "warps", "async")
LADDERS_OF_CONVOLUTIONS = (CONVOLUTION, INPUT_GRADIENT, WEIGHT_GRADIENT)
STEPS = [
    (ladder, step)
    for ladder in LADDERS_OF_CONVOLUTIONS
    for step in ladder.steps
    if step.name not in CASTS
]
STEPS += [
    (PRODUCT, step) for step in PRODUCT.steps if step.name not in (*CASTS, "vectors", "tensor")
]


def cases_of(ladder: Ladder, step: CudaStep) -> list[Case]:
    """So small that the model looks at every tile and plane."""
    if ladder is PRODUCT:
        blocks = ((8, 8), (4, 4))
        tile = {name: 2 for name in step.parameters}
        return [Case(ProductShape(13, 9, 7), block, tile) for block in blocks]
    whole = []
    for case in generated(ladder, step, 80):
        across, down = case.shape.tiles(case.block)
        deep = (case.parameters or {}).get("TILE_DEPTH")
        if deep is not None and case.shape.terms > 8 * deep:
            continue
        if step.name == "tensor" and case.shape.terms % 8 == 0:
            continue
        if ladder is WEIGHT_GRADIENT and case.shape.positions > 64:
            continue
        planes = max(case.shape.batch * case.shape.channels, case.shape.filters)
        if across * down <= 36 and planes <= 8:
            whole.append(case)
    return whole[:8]


def traced(call: KernelCall) -> KernelCall:
    """The same text, with pointers that count."""
    text = re.sub(POINTER, r"Traced<\1> ", call.launch.source.text)
    text = text.replace("const float *weights = w", "const Traced<float> weights = w")
    text = text.replace(*STORED).replace(*VECTOR)
    source = replace(call.launch.source, text=TRACED + text)
    return replace(call, launch=replace(call.launch, source=source))


@pytest.mark.parametrize(("ladder", "step"), STEPS, ids=lambda one: one.name)
def test_reads_and_writes(ladder: Ladder, step: CudaStep, tmp_path: Path) -> None:
    cases = cases_of(ladder, step)
    assert len(cases) > 1
    every = [
        [traced(call) for call in plain(step.calls(one.shape, one.block, one.parameters))]
        for one in cases
    ]
    kernels = Emulated([call.launch.source for calls in every for call in calls], tmp_path)
    for case, calls in zip(cases, every, strict=True):
        parameters = step.with_own(case.parameters)
        where = (case.shape, case.block, parameters)
        arrays = draw(step.operands(case.shape), case.shape, step.float16_operands)
        arrays |= {name: np.empty(size, np.float32) for name, size in step.scratch(*where).items()}
        arrays["y"] = np.empty(case.shape.operands["y"], np.float32)
        for symbol, operand in step.symbols(calls[-1].launch).items():
            kernels.fill(symbol, arrays[operand])
        for call, work in zip(calls, step.works(*where), strict=True):
            counts = {one: np.zeros(1, np.int64) for one in call.arguments if isinstance(one, str)}
            addresses = {
                name: np.array([arrays[name].ctypes.data, count.ctypes.data])
                for name, count in counts.items()
            }
            launch_all(kernels, [call], {**arrays, **addresses})
            for access in work.accesses:
                if access.space == "global" and access.operand in counts:
                    lanes = access.times * access.width * (access.at >= 0).sum()
                    if access.operand.startswith("spectra"):  # complex numbers
                        lanes /= 2
                    assert lanes == pytest.approx(counts[access.operand][0]), (access.operand, case)
