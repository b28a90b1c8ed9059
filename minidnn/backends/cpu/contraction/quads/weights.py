"""Packs weights as quads of input channels, and the terms with which sums begin."""

from __future__ import annotations

from functools import partial

import numpy as np

from .....fusion.contraction import Parts
from .....graph.ir import Constant, Value
from .....graph.operators import Conv2d, Linear
from ...buffers import Array
from ...packing import data_of
from .products import BLOCK
from .scheme import QuadScheme


def packed_zero(parts: Parts) -> int:
    """What stands for 0 in packed inputs: those of int8 are packed 128 larger, as uint8."""
    assert isinstance(parts.node.op, (Conv2d, Linear))
    return parts.node.op.zero + (128 if parts.source.dtype == "int8" else 0)


def packed_quads(weight: Value, scheme: QuadScheme) -> partial[Array]:
    """Weights (O, I, KH, KW) or (O, I) as [group][tile group][block of inputs][tap][quad][vector]
    [lane][4], in int8.

    Where a pixel's taps are packed as channels, they are channels here, the last of them input
    channels.  Outputs and inputs that fill up are zero.
    """
    return partial(_pack, weight, scheme)


def _pack(weight: Value, scheme: QuadScheme) -> Array:
    problem, lanes = scheme.problem, scheme.lanes
    given = data_of(weight).reshape(problem.groups, problem.outputs, problem.inputs, -1)
    if scheme.packing == "unrolled":
        more = scheme.line_inputs - problem.inputs
        given = np.pad(given, ((0, 0), (0, 0), (0, more), (0, 0))).swapaxes(2, 3)
        # Of taps those that are no channels.
        given = given.reshape(problem.groups, problem.outputs, scheme.taps, -1).swapaxes(2, 3)
    _, _, inputs, taps = given.shape
    size = (problem.groups, scheme.slots, scheme.blocks_of_terms * BLOCK, taps)
    padded = np.zeros(size, np.int8)
    padded[:, : problem.outputs, :inputs] = given
    shape = (problem.groups, scheme.slots // lanes, lanes, scheme.blocks_of_terms, 16, 4, taps)
    # [group][vector][lane][block][quad][4][tap] to [group][vector][block][tap][quad][lane][4]
    vectors = padded.reshape(shape).transpose(0, 1, 3, 6, 4, 2, 5)
    parts = []
    for group in vectors:
        first = 0
        for count in scheme.vectors_of_parts:
            part = group[first : first + count]
            parts.append(part.transpose(1, 2, 3, 0, 4, 5).reshape(-1))
            first += count
    return np.concatenate(parts)


def starts(parts: Parts, scheme: QuadScheme) -> Array:
    """The first terms of sums in int32, group by group filled up to whole vectors: the bias, less
    what the input's zero adds."""
    weight, *bias = parts.node.inputs[1:]
    data = data_of(weight).astype(np.int64)
    start = -packed_zero(parts) * data.reshape(len(data), -1).sum(1)
    for value in bias:
        assert isinstance(value, Constant)
        start = start + value.data
    packed = np.zeros((scheme.groups, scheme.slots), np.int32)
    packed[:, : scheme.outputs] = start.reshape(scheme.groups, scheme.outputs).astype(np.int32)
    return packed.reshape(-1)
