"""Packs weights as words of neighbouring input channels."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from minidnn.graph.ir import Constant, Value
from minidnn.runtime.arrays import to_bits

from ...execution.buffers import Array
from ...execution.packing import Packed, data_of
from ..pack_states import print_pair_packing
from .scheme import DotScheme

_TASK_WORDS = 1 << 13
"""Words that one task packs, if blocks of terms can be divided so."""


def packed_pairs(weight: Value, scheme: DotScheme) -> partial[Array] | Packed:
    """Weights (O, I, KH, KW) or (O, I) in bfloat16, as :func:`packed_words` lays them.

    Where taps of a row are packed as channels, they are channels here, the last of them input
    channels.
    """
    if isinstance(weight, Constant):
        return partial(_pack, weight, scheme.of_weights())
    problem, tile = scheme.problem, scheme.tile
    blocks, taps, depth = scheme.blocks_of_terms, scheme.taps, problem.depth // scheme.merged
    step = min(blocks, max(1, _TASK_WORDS // (16 * taps * tile.vectors * scheme.lanes)))
    numbers = [problem.outputs, scheme.lanes, tile.vectors, tile.wide, tile.groups, blocks, step]
    run, own_inputs = problem.inputs, problem.inputs // scheme.merged
    own_outputs = problem.outputs // scheme.merged if scheme.merged > 1 else 0
    numbers += [taps, depth]
    if scheme.packing == "rows":
        rows, columns = problem.kernel
        steps = (scheme.row_terms, run, columns, own_inputs, rows * columns, columns, 1)
    else:
        steps = (run, run, 1, own_inputs, prod(problem.kernel), 1, 0)
    numbers += [*steps, own_outputs]
    return Packed(
        "pairs",
        [weight],
        [np.array(numbers, np.int64)],
        scheme.weight_bytes // 4,
        scheme.groups * tile.groups * -(-blocks // step),
        kernel=print_pair_packing(),
    )


def _merged(given: Array, scheme: DotScheme) -> Array:
    """Weights (O, I, KH, KW) of groups that are computed as one: zero between them."""
    problem, count = scheme.problem, scheme.merged
    outputs, inputs = problem.outputs // count, problem.inputs // count
    whole = np.zeros((problem.groups, count, outputs, count, inputs, given[0, 0].size), np.uint16)
    parts = given.reshape(problem.groups, count, outputs, inputs, -1)
    for i in range(count):
        whole[:, i, :, i] = parts[:, i]
    return whole


def _pack(weight: Value, scheme: DotScheme) -> Array:
    problem = scheme.problem
    given = to_bits(data_of(weight), "bfloat16")
    if scheme.merged > 1:
        given = _merged(given, scheme)
    given = given.reshape(problem.groups, problem.outputs, problem.inputs, -1)
    if scheme.packing == "rows":
        rows, columns = problem.kernel
        spread = np.zeros((problem.outputs, columns, scheme.row_terms, rows), np.uint16)
        found = given.reshape(problem.outputs, problem.inputs, rows, columns)
        spread[:, :, : problem.inputs] = found.transpose(0, 3, 1, 2)
        given = spread.reshape(1, problem.outputs, -1, rows)
    return packed_words(given, scheme)


def packed_words(terms: Array, scheme: DotScheme) -> Array:
    """What inputs are multiplied with, [group][output][term][tap], as [group][tile group]
    [block of terms][tap][word][vector][lane][term of a word].

    Outputs and terms that fill up are zero.
    """
    problem, lanes, word = scheme.problem, scheme.lanes, scheme.word
    _, outputs, count, taps = terms.shape
    blocks = scheme.blocks_of_terms
    padded = np.zeros((problem.groups, scheme.slots, blocks * word.block, taps), word.weight)
    padded[:, :outputs, :count] = terms
    shape = (problem.groups, scheme.slots // lanes, lanes, blocks, 16, word.terms, taps)
    # [group][vector][lane][block][word][term][tap] to [group][vector][block][tap][word][lane][term]
    vectors = padded.reshape(shape).transpose(0, 1, 3, 6, 4, 2, 5)
    parts = []
    for group in vectors:
        first = 0
        for size in scheme.vectors_of_parts:
            part = group[first : first + size]
            parts.append(part.transpose(1, 2, 3, 0, 4, 5).reshape(-1))
            first += size
    return np.concatenate(parts)
