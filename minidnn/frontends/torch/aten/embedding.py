"""Rows of tables."""

from __future__ import annotations

from typing import Any

from minidnn.frontends.torch.aten.call import TRAINING, AtenCall, Refused, takes
from minidnn.graph.embedded import rows_of
from minidnn.graph.ir import Constant


@takes("embedding.default", when="not training, and the table is known")
def embedding(call: AtenCall) -> Any:
    """PyTorch refuses numbers beyond the table; here they give NaN, unless they are known."""
    if call.trained:
        raise Refused(f"{TRAINING}, and PyTorch refuses numbers beyond the table")
    table, numbers = call.constant("weight"), call.tensor("indices")
    if isinstance(numbers, Constant):
        known = numbers.data
        if known.size and not 0 <= known.min() <= known.max() < table.shape[0]:
            raise Refused(f"it takes numbers beyond the {table.shape[0]} rows of the table")
    return rows_of(table, numbers)
