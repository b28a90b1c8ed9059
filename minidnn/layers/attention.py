"""Attention with several heads, with PyTorch's arguments and parameter names."""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, where
from minidnn.graph.ir import Value
from minidnn.graph.symbolic import Symbolic, pointwise
from minidnn.graph.trace import apply, apply_or_compute
from minidnn.layers.arguments import check_count, check_rank, misfit
from minidnn.layers.contraction import Linear
from minidnn.layers.dropout import dropped
from minidnn.layers.layer import Layer
from minidnn.layers.parameter import Parameter, filled, within

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Layer):
    """``softmax(q @ k.T / sqrt(d)) @ v`` for each of several heads of ``d`` features, where query,
    key and value are first multiplied by matrices, and the heads' results by another one.

    ``forward(query, key, value)`` takes (L, N, E), (S, N, kdim) and (S, N, vdim), with
    ``batch_first`` (N, L, E) and so on, and gives a pair: the result, of the query's shape, and the
    weights (N, L, S), the mean over the heads (with ``average_attn_weights=False`` (N, heads, L,
    S), with ``need_weights=False`` None). ``attn_mask`` (L, S) or (N * heads, L, S) and
    ``key_padding_mask`` (N, S) are arrays or inputs: of bools, True where nothing is looked at, or
    of numbers that are added.

    Parameters are ``in_proj_weight`` (3 * E, E), or ``q_proj_weight``, ``k_proj_weight`` and
    ``v_proj_weight`` where ``kdim`` or ``vdim`` differ, ``in_proj_bias`` (3 * E,), and those of
    ``out_proj``.

    Args:
        embed_dim: features of the query and of the result, E, a multiple of ``num_heads``.
        num_heads: the number of heads.
        dropout: the probability with which each weight is 0 in training.
        bias: whether the products have biases.
        add_bias_kv, add_zero_attn: only False is valid.
        kdim, vdim: features of key and value; None is ``embed_dim``.
        batch_first: whether the first axis is that of the batch.

    Raises:
        GraphError: an argument is not valid.

    Source: Vaswani et al., arXiv:1706.03762.

    >>> x, attention = Input((16, 64)), MultiheadAttention(64, 8, batch_first=True)
    >>> out, weights = attention(x, x, x)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
    ) -> None:
        name = "MultiheadAttention"
        self.embed_dim = check_count(name, "embed_dim", embed_dim)
        self.num_heads = check_count(name, "num_heads", num_heads)
        if embed_dim % num_heads:
            raise GraphError(
                f"{name}: num_heads={num_heads} does not divide embed_dim={embed_dim}; valid is a "
                "divisor"
            )
        for argument, given in (("add_bias_kv", add_bias_kv), ("add_zero_attn", add_zero_attn)):
            if given:
                raise GraphError(f"{name}: {argument}={given!r:.80}; valid is False")
        self.batch_first = bool(batch_first)
        self.dropout = dropout
        keys = embed_dim if kdim is None else check_count(name, "kdim", kdim)
        values = embed_dim if vdim is None else check_count(name, "vdim", vdim)
        self._together = keys == values == embed_dim
        if self._together:
            drawn = within(sqrt(6 / (4 * embed_dim)))  # Xavier's, of the whole matrix
            self.in_proj_weight = Parameter((3 * embed_dim, embed_dim), drawn)
        else:
            for of, size in (("q", embed_dim), ("k", keys), ("v", values)):
                drawn = within(sqrt(6 / (embed_dim + size)))
                setattr(self, f"{of}_proj_weight", Parameter((embed_dim, size), drawn))
        self.in_proj_bias = Parameter((3 * embed_dim,), filled(0.0)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        if self.out_proj.bias is not None:
            self.out_proj.bias = Parameter((embed_dim,), filled(0.0))

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        if is_causal and attn_mask is None:
            raise misfit(
                "MultiheadAttention", "is_causal=True without attn_mask; valid is the mask itself"
            )
        for each in (query, key, value):
            check_rank("MultiheadAttention", each, 2, 3)
        single = query.type.rank == 2
        parts = [query, key, value]
        if single:
            rows = query[:, None]
            parts = [rows if each is query else each[:, None] for each in parts]
        order = (0, 2, 1, 3) if self.batch_first and not single else (1, 2, 0, 3)
        q, k, v = self._projected(parts, order)
        scores = (q * (1 / sqrt(q.shape[-1]))) @ k.swapaxes(-1, -2)
        masks = self._masks(scores, attn_mask, key_padding_mask)
        if masks:
            scores = pointwise("Mask", _masked([m.dtype == "bool" for m in masks]), scores, *masks)
        weights = apply(ops.Softmax(-1), scores)
        if masks and not need_weights:  # a row that looks at nothing is zero then, as in PyTorch
            most = scores.max(-1, keepdims=True)
            weights = pointwise("Counted", lambda w, m: where(m <= -inf, 0.0, w), weights, most)
        if self.dropout:
            weights = dropped(weights, self.dropout)
        joined = (weights @ v).permute(*np.argsort(order).tolist())
        out = self.out_proj(joined.reshape(*joined.shape[:2], self.embed_dim))
        if single:
            out, weights = out[:, 0], weights[0]
        if not need_weights:
            return out, None
        return out, weights.mean(-3) if average_attn_weights else weights

    def _projected(self, parts: list[Any], order: tuple[int, ...]) -> list[Any]:
        """Query, key and value as (N, heads, length, features): of one value by one product."""
        query, key, value = parts
        if not (self._together and query is key is value):
            return [self._heads(i, each, order) for i, each in enumerate(parts)]
        operands = [*self.constants("in_proj_weight"), *self.constants("in_proj_bias")]
        packed: Any = apply(ops.Linear(), query, *operands)
        size = self.embed_dim
        found = []
        for i in range(3):
            own: Any = packed[..., i * size : (i + 1) * size]
            heads = own.reshape(*own.shape[:2], self.num_heads, size // self.num_heads)
            found.append(heads.permute(*order))
        return found

    def _heads(self, index: int, x: Value, order: tuple[int, ...]) -> Any:
        """One of query, key and value as (N, heads, length, features)."""
        size = self.embed_dim
        operands = []
        if self._together:
            (weight,) = self.constants("in_proj_weight")
            cut = ops.Slice((index * size, 0), (size, size), (1, 1))
            operands.append(apply_or_compute(cut, weight))
        else:
            operands += self.constants(f"{'qkv'[index]}_proj_weight")
        for bias in self.constants("in_proj_bias"):
            operands.append(apply_or_compute(ops.Slice((index * size,), (size,), (1,)), bias))
        out: Any = apply(ops.Linear(), x, *operands)
        heads = out.reshape(*out.shape[:2], self.num_heads, size // self.num_heads)
        return heads.permute(*order)

    def _masks(self, scores: Any, attn_mask: Any, key_padding_mask: Any) -> list[Any]:
        """The masks that are given, in shapes that broadcast with the scores."""
        batch, heads, queries, keys = scores.shape
        shapes = {
            "attn_mask": {
                (queries, keys): (queries, keys),
                (batch * heads, queries, keys): scores.shape,
            },
            "key_padding_mask": {(batch, keys): (batch, 1, 1, keys)},
        }
        if batch == 1:
            shapes["key_padding_mask"][keys,] = (keys,)
        found = []
        for name, mask in (("attn_mask", attn_mask), ("key_padding_mask", key_padding_mask)):
            if mask is None:
                continue
            array: Any = mask if isinstance(mask, Symbolic) else np.asarray(mask)
            shape = shapes[name].get(tuple(array.shape))
            if shape is None or (not isinstance(mask, Symbolic) and array.dtype.kind not in "bf"):
                valid = " or ".join(map(str, shapes[name]))
                raise misfit(
                    "MultiheadAttention",
                    f"{name} is {array.dtype} of shape {tuple(array.shape)}; valid is bool or a "
                    f"float dtype, of shape {valid}",
                )
            found.append(array.reshape(*shape))
        return found

    def extra_repr(self) -> str:
        first = ", batch_first=True" if self.batch_first else ""
        return f"{self.embed_dim}, {self.num_heads}{first}"


def _masked(hidden: list[bool]) -> Any:
    def body(score: Expression, *masks: Expression) -> Expression:
        for mask, bools in zip(masks, hidden, strict=True):
            score = where(mask > 0.0, -inf, score) if bools else score + mask
        return score

    return body
