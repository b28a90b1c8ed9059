"""Rows of a table by their numbers; a number beyond the table gives NaN."""

from __future__ import annotations

from typing import Any

import numpy as np

from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph.ir import Value
from minidnn.graph.symbolic import pointwise
from minidnn.graph.trace import apply

#: Steps of it are too small for any float32 of a size that training gives to a table.
_STEP = 2.0**-40


def rows_of(table: Value, numbers: Any, without_slope: int | None = None) -> Any:
    """(..., features) of a table (rows, features) and whole numbers (...).

    The row ``without_slope`` has no gradient.
    """
    found = apply(ops.Gather(0), table, numbers)
    wide = numbers.reshape(*numbers.shape, 1)
    inside = np.logical_and(wide >= 0, wide < table.shape[0])

    def body(value: Any, inside: Any, *fixed: Any) -> Any:
        if fixed:  # the same number, whose derivative is 0
            value = scalar.where(fixed[0] > 0.0, scalar.floor(value / _STEP) * _STEP, value)
        return scalar.where(inside > 0.0, value, float("nan"))

    more = [] if without_slope is None else [np.equal(wide, without_slope)]
    return pointwise("Embedding", body, found, inside, *more)
