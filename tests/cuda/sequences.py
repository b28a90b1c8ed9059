"""Runs a sequence's printed kernel in the emulator and compares it with node-by-node evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minidnn.backends.cuda.machine import Machine
from minidnn.backends.cuda.sequence.grid import Grid
from minidnn.backends.cuda.sequence.mapping import Mapping
from minidnn.backends.cuda.sequence.printer import print_sequence
from minidnn.backends.cuda.sequence.reschedule import print_region
from minidnn.backends.cuda.sequence.rolling import Rolling
from minidnn.backends.cuda.sequence.vectors import SequenceKernel, are_separate_operands
from minidnn.backends.cuda.tensor import Tensor, tensor_of
from minidnn.fusion.plan import Binding
from minidnn.fusion.region import FusedSequence
from minidnn.graph.ir import Constant, Graph, Value
from minidnn.graph.layout import CHANNELS_LAST, PLANAR, Layout
from minidnn.graph.types import TensorType, rounded_to
from tests.cuda.arrays import STORED, numbers, stored, strided
from tests.cuda.cards import H200
from tests.cuda.emulator.run import Emulated, guarded
from tests.cuda.precisions import EPSILON

LAYOUTS = (PLANAR, CHANNELS_LAST)
TRANSCENDENTAL = {"exp", "expm1", "log", "log1p", "tanh", "erf", "pow", "sin", "cos", "atan"}


@dataclass
class Case:
    """A sequence, how its values lie, its operands, and what it should give."""

    region: FusedSequence
    binding: Binding
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operands: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]
    kernel: SequenceKernel

    def _compare(self, got: np.ndarray, wanted: np.ndarray, message: str) -> None:
        plan, _ = self.region.kernel
        code = [i.op for s in plan.steps for o in s.segments for p in o for i in p.code]
        if set(code) & TRANSCENDENTAL:  # NumPy's own are no more exact than ours
            few = 20 * EPSILON[plan.planes[0].dtype]
            np.testing.assert_allclose(got, wanted, few, few, err_msg=message)
        else:
            np.testing.assert_array_equal(got, wanted, err_msg=message)

    def check(self, emulated: Emulated, backwards: bool = False) -> None:
        """Runs the kernel; equal bits are expected, or NaN for NaN, and zeros of either
        sign; with transcendental functions a few units in the last place."""
        binding = self.binding
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
        vectors = [given[each.value] for each in binding.vectors if are_separate_operands(binding)]
        if binding.vectors and not vectors:
            vectors = [self.kernel.vectors()]
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
    region: FusedSequence,
    operands: Sequence[np.ndarray],
    layout: Layout,
    machine: Machine = H200,
    extra: int = 0,
    mapping: Mapping | Grid | Rolling | None = None,
    suit: bool = False,
) -> Case:
    """A case with all values in one layout, each in a buffer that is ``extra`` channels wider.

    ``suit``: under the schedule that suits the layout, instead of the region's own.
    """

    def lies(value: Value) -> Tensor:
        batch, channels, *plane = value.type.plane
        wide = TensorType((batch, channels + 2 * extra, *plane), value.dtype)
        type = TensorType(value.type.plane, value.dtype)
        return tensor_of(type, layout, wide, extra)

    if suit:
        suited = print_region(region, lies, machine)
        kernel, binding = suited.kernel, suited.binding
    plan, own = region.kernel
    binding = binding if suit else own
    inputs = tuple(lies(slot.value) for slot in binding.inputs)
    outputs = tuple(lies(slot.value) for slot in binding.outputs)
    if not suit:
        kernel = print_sequence(plan, binding, inputs, outputs, machine, mapping)
    expected = evaluate_rounded(region.body, operands)
    return Case(region, binding, inputs, outputs, tuple(operands), expected, kernel)


def evaluate_rounded(graph: Graph, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The graph node by node, every value rounded to its dtype."""
    values: dict[Value, np.ndarray] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        operands = [v.data if isinstance(v, Constant) else values[v] for v in node.inputs]
        results = node.op.reference(*operands)
        for value, result in zip(node.outputs, results, strict=True):
            values[value] = rounded_to(value.dtype, result)
    return tuple(values[value] for value in graph.outputs)


def run_cases(cases: Sequence[Case], folder: Path) -> None:
    """Compiles all kernels together and checks each, with its threads in two orders."""
    emulated = Emulated([case.kernel.launch.source for case in cases], folder)
    for case in cases:
        for backwards in (False, True):
            case.check(emulated, backwards)


def _memory(tensor: Tensor, value: Value) -> np.ndarray:
    _, array = guarded(tensor.image * value.type.plane[0], STORED[tensor.dtype])
    return array
