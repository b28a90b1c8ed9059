"""The kernel that a plan is printed as, and its arguments: tensors, and vectors over channels,
which are packed in one array or passed one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ....fusion.plan import Binding
from ....graph.ir import Constant
from ...codegen.code import Code
from ...codegen.kernel import KernelSource
from ..kernels import Launch
from ..prelude import TYPES
from ..tensor import Tensor

_THREADS = 256


@dataclass(frozen=True)
class SequenceKernel:
    """A printed plan.  Its arguments are pointers: inputs, outputs, then vectors, which are
    operands of their own (:func:`are_separate_operands`) or packed in one array, which
    ``vectors()`` makes."""

    launch: Launch
    vectors: Callable[[], np.ndarray]


def kernel_of(
    binding: Binding,
    tensors: Sequence[Tensor],
    body: object,
    blocks: int,
    threads: int,
    shared_bytes: int = 0,
    functions: object = "",
    at_once: int = 0,
) -> SequenceKernel:
    """Returns the kernel with a body, preceded by the device functions that it calls, whose names
    begin with ``$``.

    ``at_once``: blocks for which a multiprocessor must have registers, the second launch bound.
    """
    bounds = f"{threads}, {at_once}" if at_once else threads
    head = f'extern "C" __global__ void __launch_bounds__({bounds})'
    text = f"{functions}{head} $({parameters(binding, tensors)}) {body}"
    source = KernelSource.named("seq", text, "$")
    launch = Launch(source, (blocks, 1, 1), (threads, 1, 1), shared_bytes)
    return SequenceKernel(launch, partial(packed_vectors, binding))


def parameters(binding: Binding, tensors: Sequence[Tensor]) -> str:
    """Returns the parameters that a kernel declares: ``a0``, ``a1``, ... and ``vectors``, or
    ``vectors0``, ``vectors1``, ...

    An output may alias an input of its type that is read element by element: what is written
    anywhere depends on what was read there, so that no read can follow it.
    """
    parts = []
    for i, tensor in enumerate(tensors):
        const = "const " if i < len(binding.inputs) else ""
        parts.append(f"{const}{TYPES[tensor.dtype]} *__restrict__ a{i}")
    if are_separate_operands(binding):
        parts += [f"const float *__restrict__ vectors{i}" for i, _ in enumerate(binding.vectors)]
    elif binding.vectors:
        parts.append("const float *__restrict__ vectors")
    return ", ".join(parts)


def are_separate_operands(binding: Binding) -> bool:
    """Whether vectors are read from their own tensors: some are no constants, and each has an
    element for every channel of the kernel."""
    vectors, frame = binding.vectors, _frame(binding)
    if all(isinstance(vector.value, Constant) for vector in vectors):
        return False
    return all(
        vector.value.dtype == "float32" and (vector.channel, vector.value.type.size) == (0, frame)
        for vector in vectors
    )


def vector_at(binding: Binding, number: int | str, channel: str) -> str:
    """Returns the address of a vector's element for a channel."""
    if are_separate_operands(binding):
        return f"vectors{number} + {channel}"
    return f"vectors + (({number}) * {_frame(binding)} + {channel})"


def packed_vectors(binding: Binding) -> np.ndarray:
    """Returns all vectors in float32, a row each, at their channels of the kernel's channel axis;
    the rest is zero."""
    packed = np.zeros((len(binding.vectors), _frame(binding)), np.float32)
    for row, vector in zip(packed, binding.vectors, strict=True):
        assert isinstance(vector.value, Constant)
        data = vector.value.data
        row[vector.channel : vector.channel + data.size] = data.astype(np.float32)
    return packed


def print_vectors(binding: Binding) -> tuple[Launch, int]:
    """Returns the launch that packs vectors which are no constants, and the bytes of its result.
    Its pointers are the vectors, then the array that :func:`packed_vectors` returns for constants.
    """
    frame = _frame(binding)
    code = Code()
    values = [vector.value for vector in binding.vectors]
    pointers = [f"const {TYPES[value.dtype]} *v{i}" for i, value in enumerate(values)]
    with code.block(f'extern "C" __global__ void @({", ".join([*pointers, "float *y"])})'):
        code.line(f"const int c = blockIdx.x * {_THREADS} + threadIdx.x;")
        code.line(f"if (c >= {frame}) return;")
        for i, vector in enumerate(binding.vectors):
            first, size = vector.channel, vector.value.type.size
            inside = f"c >= {first} && c < {first + size}"
            code.line(f"y[{i * frame} + c] = {inside} ? md_value(v{i}[c - {first}]) : 0.0f;")
    launch = Launch.named("vectors", code, -(-frame // _THREADS), _THREADS)
    return launch, 4 * frame * len(values)


def _frame(binding: Binding) -> int:
    """The length of the kernel's channel axis."""
    return max(end for _, end in binding.segments)
