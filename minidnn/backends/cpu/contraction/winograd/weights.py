"""Transforms and packs the weights of Winograd convolutions."""

from __future__ import annotations

import numpy as np

from .....graph.ir import Value
from ...packing import Packed
from ..pack_states import print_transforming
from ..weights import input_step, outputs_numbers
from .scheme import WinogradScheme


def transformed_weights(weight: Value, scheme: WinogradScheme) -> Packed:
    """Weights (O, I, 3, 3), transformed in float64, in the order in which kernels read them.

    [group of vectors of outputs][matrix][input][lanes of the group] where a task computes a group
    at a time, [matrix][group][input][lanes] where it computes a matrix.  Outputs beyond the last
    are zero.
    """
    problem, lanes, tile = scheme.problem, scheme.lanes, scheme.tile
    step = input_step(tile, lanes, problem.inputs, scheme.matrices, 1)
    numbers = [*outputs_numbers(problem.outputs, problem.inputs, lanes, tile), step]
    numbers += [9, 1, scheme.local]
    return Packed(
        f"md_pack_transformed_{scheme.transform.inputs}",
        [weight],
        [np.array(numbers, np.int64), np.ascontiguousarray(scheme.transform.weights)],
        scheme.matrices * scheme.output_blocks * lanes * problem.inputs,
        tile.groups * -(-problem.inputs // step),
        kernel=print_transforming(scheme.transform.inputs),
    )
