"""Index maps: those of values without elements have as few axes as others."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn.graph import operators as ops


@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (3, 0, 2), (0, 1, 0)])
def test_maps_of_no_elements_collapse(shape: tuple[int, ...]) -> None:
    axes = tuple(reversed(range(len(shape))))
    index_map = ops.Transpose(axes).index_map(shape)
    collapsed = index_map.collapsed()
    assert not np.prod(collapsed.shape) and not collapsed.apply(np.zeros(shape)).size
