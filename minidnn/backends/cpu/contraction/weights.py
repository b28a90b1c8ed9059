"""Packs weights, biases and vectors over channels in the order in which kernels read them."""

from __future__ import annotations

import numpy as np

from ..buffers import Array
from .scheme import Scheme

_SLAB = 1 << 9
"""Terms of a sum that are transposed at a time, so that both sides stay in the cache."""


def pack_weights(weight: Array, scheme: Scheme) -> Array:
    """``weight`` (O, I, KH, KW) or (O, I) as [group][tile group][term of the sum][lanes].

    Terms are in the order of the sum; channels beyond the last are zero.
    """
    problem = scheme.problem
    depth, count = problem.depth, scheme.tile.groups
    terms = weight.reshape(scheme.groups, scheme.outputs, problem.inputs, -1)
    whole = np.zeros(scheme.groups * scheme.slots * depth, np.float32)
    at = 0
    for group in range(scheme.groups):
        flat = _in_order(terms[group], scheme)
        channel = 0
        for number in range(count):
            vectors = scheme.tile.vectors - (number >= scheme.tile.wide)
            width = vectors * scheme.lanes
            rows = flat[channel : channel + width]
            target = whole[at : at + width * depth].reshape(depth, width)
            for begin in range(0, depth, _SLAB):
                part = slice(begin, begin + _SLAB)
                target[part, : len(rows)] = rows[:, part].T
            channel += width
            at += width * depth
    return whole


def _in_order(terms: Array, scheme: Scheme) -> Array:
    """(O, I, taps) as (O, terms): blocks of ``unit`` channels, in each the taps, then channels."""
    outputs, inputs, taps = terms.shape
    if taps == 1 or scheme.unit == 1:
        return terms.reshape(outputs, -1)
    full = inputs // scheme.unit * scheme.unit
    head = terms[:, :full].reshape(outputs, -1, scheme.unit, taps).swapaxes(2, 3)
    tail = terms[:, full:].swapaxes(1, 2)
    return np.concatenate([head.reshape(outputs, -1), tail.reshape(outputs, -1)], axis=1)


def pack_outputs(vector: Array | None, scheme: Scheme) -> Array:
    """A number per output channel, each group's filled up with zeros to whole vectors."""
    packed = np.zeros((scheme.groups, scheme.slots), np.float32)
    if vector is not None:
        packed[:, : scheme.outputs] = vector.reshape(scheme.groups, scheme.outputs)
    return packed.reshape(-1)


def pack_inputs(vector: Array, scheme: Scheme) -> Array:
    """A number per input channel, as the packing function reads it."""
    problem, lanes = scheme.problem, scheme.lanes
    if scheme.packing == "lanes":
        outputs = np.arange(scheme.slots) // problem.outputs * problem.inputs
        outputs[scheme.outputs :] = 0
        channels = outputs.reshape(-1, 1, lanes) + np.arange(problem.inputs)[:, None]
        return np.ascontiguousarray(vector[channels].reshape(-1), np.float32)
    packed = np.zeros(-(-len(vector) // lanes) * lanes, np.float32)
    packed[: len(vector)] = vector
    return packed
