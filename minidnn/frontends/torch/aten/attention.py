"""Scaled dot-product attention as two matrix products with a softmax between them.

A row whose scores are all masked becomes zeros, as in PyTorch's own kernels; NaN appears only where
a score is NaN.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minidnn.frontends.torch.aten.call import TRAINING, AtenCall, Refused, takes
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, constant, where
from minidnn.graph.ir import Constant, Value
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType, numpy_dtype

#: The value that masks a score.
_NOTHING = -math.inf


@takes("scaled_dot_product_attention.default", when="there is no dropout")
def scaled_dot_product_attention(call: AtenCall) -> Any:
    query, key, value = (call.tensor(name) for name in ("query", "key", "value"))
    if call.number("dropout_p"):
        raise Refused(f"dropout_p={call['dropout_p']}: {TRAINING}, and draws random numbers")
    if min(each.type.rank for each in (query, key, value)) < 2:
        raise Refused(f"query has shape {query.shape}; known are matrices")
    scale = call["scale"]
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    keys = key.swapaxes(-1, -2)
    mask = _mask(call, (query.shape[-2], key.shape[-2]))
    if mask is None:
        scaled = apply(ops.Formula(argument(0) * factor, title="Scale"), query)
        weights = apply(ops.Softmax(-1), _product(call, scaled, keys))
    else:
        scores, added = argument(0) * factor, argument(1)
        if mask.dtype == "bool":
            added = where(added > 0.0, constant(0.0), constant(_NOTHING))
        masked = ops.Formula(scores + added, tensors=2, title="Mask")
        weights = _softmax(apply(masked, _product(call, query, keys), mask), mask)
    return _product(call, weights, value)


def _product(call: AtenCall, a: Value, b: Value) -> Value:
    """``a @ b``; with ``enable_gqa`` (grouped-query attention) a group of heads of ``a`` shares
    each head of ``b``, and the rows of a group are concatenated to one matrix."""
    if not call["enable_gqa"] or a.shape[-3] == b.shape[-3]:
        return apply(ops.MatMul(), a, b)
    *batch, heads, rows, columns = a.shape
    key_heads = b.shape[-3]
    if heads % key_heads:
        raise Refused(f"{heads} heads do not share {key_heads} equally")
    grouped = apply(ops.View((*batch, key_heads, heads // key_heads * rows, columns)), a)
    out = apply(ops.MatMul(), grouped, b)
    return apply(ops.View((*out.shape[:-3], heads, rows, b.shape[-1])), out)


def _mask(call: AtenCall, size: tuple[int, int]) -> Value | None:
    """The mask, which is added to the scores, or tells for each score, as a bool, whether it
    counts; None where there is no mask."""
    mask = call.optional("attn_mask")
    if not call["is_causal"]:
        return mask
    if mask is not None:
        raise Refused("it is causal and has a mask")
    dtype = call.result.dtype

    def lower() -> np.ndarray:
        return np.where(np.tri(*size, dtype=bool), 0.0, _NOTHING).astype(numpy_dtype(dtype))

    return Constant(TensorType(size, dtype), f"{call.node.name}.causal", lower)


def _softmax(scores: Value, mask: Value) -> Value:
    """The softmax of rows, with zeros for rows that are masked completely, if there may be any."""
    weights = apply(ops.Softmax(-1), scores)
    if isinstance(mask, Constant) and not _hides_rows(mask):
        return weights
    largest = apply(ops.Reduce("max", (scores.type.rank - 1,), keepdim=True), scores)
    chosen = where(argument(1) <= _NOTHING, constant(0.0), argument(0))
    return apply(ops.Formula(chosen, tensors=2, title="Counted"), weights, largest)


def _hides_rows(mask: Constant) -> bool:
    """Whether a mask hides all scores of some row."""
    counts = mask.data if mask.dtype == "bool" else mask.data != _NOTHING
    return not bool(counts.any(axis=-1).all())
