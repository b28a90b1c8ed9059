"""Transforms and packs the weights of Winograd convolutions."""

from __future__ import annotations

import numpy as np

from ...buffers import Array
from .scheme import WinogradScheme


def pack_transformed(weight: Array, scheme: WinogradScheme) -> Array:
    """``weight`` (O, I, 3, 3), transformed in float64, in the order in which kernels read it.

    [group of vectors of outputs][matrix][input][lanes of the group] where a task computes a group
    at a time, [matrix][group][input][lanes] where it computes a matrix.  Outputs beyond the last
    are zero.
    """
    inputs, lanes, tile = scheme.problem.inputs, scheme.lanes, scheme.tile
    whole = np.kron(scheme.transform.weights, scheme.transform.weights)
    size = scheme.matrices * scheme.output_blocks * lanes * inputs
    packed = np.zeros(size, np.float32)
    by_matrix = packed.reshape(scheme.matrices, -1)
    channel = 0
    for group in range(tile.groups):
        width = (tile.vectors - (group >= tile.wide)) * lanes
        rows = weight[channel : channel + width]
        taps = np.zeros((9, inputs, width), np.float64)
        taps[:, :, : len(rows)] = rows.reshape(len(rows), inputs, 9).transpose(2, 1, 0)
        made = whole @ taps.reshape(9, inputs * width)
        part = slice(channel * inputs, (channel + width) * inputs)
        if scheme.local:
            packed[scheme.matrices * part.start : scheme.matrices * part.stop] = made.reshape(-1)
        else:
            by_matrix[:, part] = made
        channel += width
    return packed
