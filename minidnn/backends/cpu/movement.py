"""Kernels that place elements: copies into joins, and other layouts."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from ...fusion.planning import build_plan
from ...fusion.sequence import Schedule
from ...graph.expression import argument
from ...graph.ir import Graph, Node, Value
from ...graph.operators import Formula, Identity
from ...graph.types import BYTES, ITEMSIZE, TensorType
from ..codegen.kernel import KernelSource
from .broadcast import Shaped
from .isa import Isa
from .sequence import SequenceKernel, print_sequence
from .tensor import Tensor


def copied(type: TensorType) -> Graph:
    """A region that gives its input."""
    value = Value(type, "source")
    op = Formula(argument(0), title="Copy", dtype=type.dtype, compute="float32")
    node = Node(op if type.dtype in BYTES else Identity(), [value], "copy")
    return Graph([value], node.outputs, [node])


def print_copy(
    type: TensorType, source: Tensor, result: Tensor, isa: Isa, channel: int = 0
) -> SequenceKernel:
    """Copies a value to where it lies otherwise: in another layout, or from ``channel`` on of a
    wider value."""
    _, _, rows, columns = type.plane
    plan, binding = build_plan(copied(type), Schedule(rows, columns))
    slots = tuple(replace(slot, channel=slot.channel - channel) for slot in binding.outputs)
    binding = replace(binding, outputs=slots)
    return print_sequence(plan, binding, [source], [result], isa)


#: Elements are copied as integers of their size.
RAW = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}

_RUNS = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, 2);
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform {raw} * uniform x = MD_IN({raw}, 0) + t * n[0];
    uniform {raw} * uniform y = MD_OUT({raw}, 1) + t * n[1] + n[2];
    foreach (i = 0 ... (uniform int)n[0]) {{ y[i] = x[i]; }}
  }}
}}
"""


def print_join(type: TensorType, joined: TensorType, axis: int, offset: int) -> Shaped:
    """Copies a NCHW value to positions ``offset`` and on of an axis of a wider one."""
    inner = prod(type.shape[axis + 1 :])
    sizes = [type.shape[axis] * inner, joined.shape[axis] * inner, offset * inner]
    source = KernelSource.named("join", _RUNS.format(raw=RAW[ITEMSIZE[type.dtype]]))
    return Shaped(source, np.array(sizes, np.int64), prod(type.shape[:axis]))
