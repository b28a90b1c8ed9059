"""Packs weights as quads of input channels, and the terms with which sums begin."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from .....fusion.contraction import Parts
from .....graph.ir import Value
from .....graph.operators import Conv2d, Linear
from ...buffers import Array
from ...packing import data_of, first_terms
from ..dots.weights import packed_words
from .scheme import QuadScheme


def packed_zero(parts: Parts) -> int:
    """What stands for 0 in packed inputs: those of int8 are packed 128 larger, as uint8."""
    assert isinstance(parts.node.op, (Conv2d, Linear))
    return parts.node.op.zero + (128 if parts.source.dtype == "int8" else 0)


def packed_quads(weight: Value, scheme: QuadScheme) -> partial[Array]:
    """Weights (O, I, KH, KW) or (O, I) in int8, as :func:`..dots.weights.packed_words` lays them.

    Where a pixel's taps are packed as channels, they are channels here, the last of them input
    channels.
    """
    return partial(_pack, weight, scheme.of_weights())


def _pack(weight: Value, scheme: QuadScheme) -> Array:
    problem = scheme.problem
    given = data_of(weight).reshape(problem.groups, problem.outputs, problem.inputs, -1)
    if scheme.packing in ("rows", "unrolled"):
        more = scheme.row_terms - problem.inputs
        given = np.pad(given, ((0, 0), (0, 0), (0, more), (0, 0))).swapaxes(2, 3)
        # Of taps those that are no channels.
        given = given.reshape(problem.groups, problem.outputs, scheme.taps, -1).swapaxes(2, 3)
    return packed_words(given, scheme)


def packed_starts(parts: Parts, scheme: QuadScheme) -> partial[Array]:
    """The first terms of sums in int32, group by group filled up to whole vectors: the bias, less
    what the input's zero adds."""
    return partial(_starts, parts.node.inputs[1:], packed_zero(parts), scheme.of_weights())


def _starts(values: Sequence[Value], zero: int, scheme: QuadScheme) -> Array:
    packed = np.zeros((scheme.groups, scheme.slots), np.int32)
    packed[:, : scheme.outputs] = first_terms(values, zero).reshape(scheme.groups, scheme.outputs)
    return packed.reshape(-1)
