"""Packs weights, biases and vectors over channels in the order in which kernels read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....graph.ir import Value
from ..execution.buffers import Array
from ..execution.packing import Packed, PackedVectors
from .pack_states import print_packing
from .scheme import ResultScheme, Scheme
from .tiling import Tile

_TASK_FLOATS = 1 << 14
"""Weights that one task packs, if inputs can be divided so."""
_UNIT = 64
"""Inputs that are transposed at a time where their order is that of the weights."""


def packed_weights(weight: Value, scheme: Scheme) -> Packed:
    """Weights (O, I, KH, KW) or (O, I) as [group][tile group][term of the sum][lanes].

    Terms are in the order of the sum: blocks of ``unit`` channels, in each the taps, then channels.
    Outputs beyond the last are zero.
    """
    problem = scheme.problem
    taps = problem.depth // problem.inputs
    unit = _UNIT if taps == 1 else scheme.unit
    step = input_step(scheme.tile, scheme.lanes, problem.inputs, taps, unit)
    numbers = [*outputs_numbers(scheme.outputs, problem.inputs, scheme.lanes, scheme.tile), step]
    numbers += [taps, unit, 0]
    return Packed(
        "md_pack_weights",
        [weight],
        [np.array(numbers, np.int64)],
        scheme.groups * scheme.slots * problem.depth,
        scheme.groups * scheme.tile.groups * -(-problem.inputs // step),
        kernel=print_packing(weight.dtype),
    )


def outputs_numbers(outputs: int, inputs: int, lanes: int, tile: Tile) -> list[int]:
    """The first numbers of ``shape`` in runner/weights.c."""
    return [outputs, inputs, lanes, tile.vectors, tile.wide, tile.groups]


def input_step(tile: Tile, lanes: int, inputs: int, floats: int, unit: int) -> int:
    """Inputs of one task, a multiple of ``unit``, where each has ``floats`` for every output."""
    units = max(1, _TASK_FLOATS // (tile.vectors * lanes * floats * unit))
    return min(units * unit, -(-inputs // unit) * unit)


def packed_outputs(vectors: Sequence[Value], scheme: ResultScheme) -> PackedVectors:
    """A number per output channel, each group's filled up with zeros to whole vectors; zeros alone
    of no vector."""

    def pack(given: Sequence[Array]) -> Array:
        packed = np.zeros((scheme.groups, scheme.slots), given[0].dtype if given else np.float32)
        for vector in given:
            packed[:, : scheme.outputs] = vector.reshape(scheme.groups, scheme.outputs)
        return packed.reshape(-1)

    return PackedVectors(vectors, pack, ("outputs", scheme.groups, scheme.slots, scheme.outputs))


def packed_inputs(vector: Value, scheme: Scheme) -> PackedVectors:
    """A number per input channel, as the packing function reads it."""
    problem = scheme.problem
    recipe = "inputs", scheme.packing, scheme.lanes, scheme.slots, problem.inputs, problem.outputs
    return PackedVectors([vector], lambda given: _pack_inputs(given[0], scheme), recipe)


def _pack_inputs(vector: Array, scheme: Scheme) -> Array:
    problem, lanes = scheme.problem, scheme.lanes
    if scheme.packing == "lanes":
        outputs = np.arange(scheme.slots) // problem.outputs * problem.inputs
        outputs[scheme.outputs :] = 0
        channels = outputs.reshape(-1, 1, lanes) + np.arange(problem.inputs)[:, None]
        return np.ascontiguousarray(vector[channels].reshape(-1))
    return _filled_up(vector, lanes)


def packed_channels(vector: Value, lanes: int) -> PackedVectors:
    """A number per input channel, filled up to whole vectors."""
    return PackedVectors([vector], lambda given: _filled_up(given[0], lanes))


def _filled_up(vector: Array, lanes: int) -> Array:
    packed = np.zeros(-(-len(vector) // lanes) * lanes, vector.dtype)
    packed[: len(vector)] = vector
    return packed
