"""What a printed plan is: its arguments, and the one array of all its vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ....fusion.plan import Binding
from ....graph.ir import Constant
from ..dialect import TYPES
from ..kernels import Launch
from ..tensor import Tensor


@dataclass(frozen=True)
class SequenceKernel:
    """A printed plan.  Its arguments are pointers: inputs, outputs, then all vectors in one
    array, which ``vectors()`` gives, if the binding has any."""

    launch: Launch
    vectors: Callable[[], np.ndarray]


def parameters(binding: Binding, tensors: Sequence[Tensor]) -> str:
    """The arguments as a kernel declares them: ``a0``, ``a1``, ... and ``vectors``."""
    parts = []
    for i, tensor in enumerate(tensors):
        const = "const " if i < len(binding.inputs) else ""
        parts.append(f"{const}{TYPES[tensor.dtype]} *__restrict__ a{i}")
    if binding.vectors:
        parts.append("const float *__restrict__ vectors")
    return ", ".join(parts)


def packed_vectors(binding: Binding) -> np.ndarray:
    """All vectors in float32, each along the kernel's whole axis of channels, zero elsewhere."""
    frame = max(end for _, end in binding.segments)
    packed = np.zeros((len(binding.vectors), frame), np.float32)
    for row, vector in zip(packed, binding.vectors, strict=True):
        assert isinstance(vector.value, Constant)
        data = vector.value.data
        row[vector.channel : vector.channel + data.size] = data.astype(np.float32)
    return packed
