"""Runs a sequence's printed kernel in the emulator and compares it with the plan's interpreter."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minidnn.backends.cuda.sequence import SequenceKernel, print_sequence
from minidnn.backends.cuda.sequence.mapping import Mapping
from minidnn.backends.cuda.tensor import Tensor, tensor_of
from minidnn.fusion.region import Sequence
from minidnn.graph.ir import Constant, Value
from minidnn.graph.layout import CHANNELS_LAST, PLANAR, Layout
from minidnn.graph.types import TensorType
from tests.cuda.arrays import STORED, numbers, stored, strided
from tests.cuda.emulator.run import Emulated, guarded

LAYOUTS = (PLANAR, CHANNELS_LAST)
TRANSCENDENTAL = {"exp", "expm1", "log", "log1p", "tanh", "erf", "pow"}


@dataclass
class Case:
    """A sequence, how its values lie, its operands, and what it should give."""

    region: Sequence
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operands: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]
    kernel: SequenceKernel

    def _compare(self, got: np.ndarray, wanted: np.ndarray, message: str) -> None:
        plan, _ = self.region.kernel
        code = [i.op for s in plan.steps for o in s.segments for p in o for i in p.code]
        if set(code) & TRANSCENDENTAL:  # NumPy's own are no more exact than ours
            np.testing.assert_allclose(got, wanted, 2e-5, 2e-5, err_msg=message)
        else:
            np.testing.assert_array_equal(got, wanted, err_msg=message)

    def check(self, emulated: Emulated, backwards: bool = False) -> None:
        """Runs the kernel; equal bits are expected, or NaN for NaN, and zeros of either
        sign; with transcendental functions a few units in the last place."""
        _, binding = self.region.kernel
        given = dict(zip(self.region.body.inputs, self.operands, strict=True))
        arguments, results = [], []
        for slot, tensor in zip(binding.inputs, self.inputs, strict=True):
            value = slot.value
            array = value.data if isinstance(value, Constant) else given[value]
            memory = _memory(tensor, value)
            strided(memory, tensor, value.type.plane[0])[:] = stored(
                array.reshape(value.type.plane), tensor.dtype
            )
            arguments.append(memory)
        for slot, tensor in zip(binding.outputs, self.outputs, strict=True):
            results.append(_memory(tensor, slot.value))
        vectors = [self.kernel.vectors()] if binding.vectors else []
        before = [array.copy() for array in results]
        emulated.launch(self.kernel.launch, [*arguments, *results, *vectors], backwards)
        for slot, tensor, memory, old, wanted in zip(
            binding.outputs, self.outputs, results, before, self.expected, strict=True
        ):
            images = slot.value.type.plane[0]
            got = numbers(strided(memory, tensor, images).copy(), tensor.dtype)
            message = f"{self.region.schedule}\n{self.region.body}"
            self._compare(got, wanted.reshape(got.shape), message)
            strided(memory, tensor, images)[:] = strided(old, tensor, images)
            same = memory.view(np.uint8) == old.view(np.uint8)
            assert same.all(), f"something beside the output was written\n{message}"


def case_of(
    region: Sequence,
    operands: Seq[np.ndarray],
    layout: Layout,
    arch: str = "sm_90",
    extra: int = 0,
    mapping: Mapping | None = None,
) -> Case:
    """A case with all values in one layout, each in a buffer that is ``extra`` channels wider."""
    plan, binding = region.kernel

    def lies(value: Value) -> Tensor:
        batch, channels, *plane = value.type.plane
        wide = TensorType((batch, channels + 2 * extra, *plane), value.dtype)
        type = TensorType(value.type.plane, value.dtype)
        return tensor_of(type, layout, wide, extra)

    inputs = tuple(lies(slot.value) for slot in binding.inputs)
    outputs = tuple(lies(slot.value) for slot in binding.outputs)
    kernel = print_sequence(plan, binding, inputs, outputs, arch, mapping)
    expected = region.interpret(*operands)
    return Case(region, inputs, outputs, tuple(operands), expected, kernel)


def run_cases(cases: Seq[Case], folder: Path) -> None:
    """Compiles all kernels together and checks each, with its threads in two orders."""
    emulated = Emulated([case.kernel.launch.source for case in cases], folder)
    for case in cases:
        for backwards in (False, True):
            case.check(emulated, backwards)


def _memory(tensor: Tensor, value: Value) -> np.ndarray:
    _, array = guarded(tensor.image * value.type.plane[0], STORED[tensor.dtype])
    return array
