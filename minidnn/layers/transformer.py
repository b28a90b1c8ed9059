"""Attention with several heads, and transformers, with PyTorch's arguments and parameter names."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
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
from minidnn.layers.containers import LayerList
from minidnn.layers.contraction import Linear
from minidnn.layers.dropout import Dropout, dropped
from minidnn.layers.layer import Layer
from minidnn.layers.normalization import LayerNorm
from minidnn.layers.parameter import Parameter, filled, within

__all__ = [
    "MultiheadAttention",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]


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
            drawn = within(sqrt(6 / (4 * embed_dim)))  # Xavier's bound for the whole matrix
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
        for operand in (query, key, value):
            check_rank("MultiheadAttention", operand, 2, 3)
        single = query.type.rank == 2
        parts = [query, key, value]
        if single:
            rows = query[:, None]
            parts = [rows if operand is query else operand[:, None] for operand in parts]
        order = (0, 2, 1, 3) if self.batch_first and not single else (1, 2, 0, 3)
        q, k, v = self._projected(parts, order)
        scores = (q * (1 / sqrt(q.shape[-1]))) @ k.swapaxes(-1, -2)
        masks = self._masks(scores, attn_mask, key_padding_mask)
        if masks:
            scores = pointwise("Mask", _masked([m.dtype == "bool" for m in masks]), scores, *masks)
        weights = apply(ops.Softmax(-1), scores)
        if masks and not need_weights:  # fully masked rows are then zero, as in PyTorch
            most = scores.max(-1, keepdims=True)
            weights = pointwise("Counted", lambda w, m: where(m <= -inf, 0.0, w), weights, most)
        if self.dropout:
            weights = dropped(weights, self.dropout)
        heads = (weights @ v).permute(*np.argsort(order).tolist())
        out = self.out_proj(heads.reshape(*heads.shape[:2], self.embed_dim))
        if single:
            out, weights = out[:, 0], weights[0]
        if not need_weights:
            return out, None
        return out, weights.mean(-3) if average_attn_weights else weights

    def _projected(self, parts: list[Any], order: tuple[int, ...]) -> list[Any]:
        """Query, key and value as (N, heads, length, features); self-attention takes one GEMM."""
        query, key, value = parts
        if not (self._together and query is key is value):
            return [self._heads(i, each, order) for i, each in enumerate(parts)]
        operands = [*self.constants("in_proj_weight"), *self.constants("in_proj_bias")]
        packed: Any = apply(ops.Linear(), query, *operands)
        size = self.embed_dim
        return [self._divided(packed[..., i * size : (i + 1) * size], order) for i in range(3)]

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
        return self._divided(apply(ops.Linear(), x, *operands), order)

    def _divided(self, x: Any, order: tuple[int, ...]) -> Any:
        """The features of (..., E) divided among heads, with the axes in another order."""
        return x.reshape(*x.shape[:2], self.num_heads, -1).permute(*order)

    def _masks(self, scores: Any, attn_mask: Any, key_padding_mask: Any) -> list[Any]:
        """The masks of a call, in shapes that broadcast with the scores."""
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
        reshaped = []
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
            reshaped.append(array.reshape(*shape))
        return reshaped

    def extra_repr(self) -> str:
        first = ", batch_first=True" if self.batch_first else ""
        return f"{self.embed_dim}, {self.num_heads}{first}"


def _masked(hidden: list[bool]) -> Any:
    """The formula that applies masks to a score; ``hidden`` tells which masks are bools."""

    def body(score: Expression, *masks: Expression) -> Expression:
        for mask, bools in zip(masks, hidden, strict=True):
            score = where(mask > 0.0, -inf, score) if bools else score + mask
        return score

    return body


def _given(**masks: Any) -> dict[str, Any]:
    """The masks that a caller gave."""
    return {name: mask for name, mask in masks.items() if mask is not None}


Activation = str | Callable[[Any], Any]


class _TransformerLayer(Layer):
    """The base of encoder and decoder layers: each attention, and the feed-forward block, has a
    normalization and a dropout of its own."""

    self_attn: MultiheadAttention
    multihead_attn: MultiheadAttention

    def _build(
        self,
        attentions: dict[str, MultiheadAttention],
        sizes: tuple[int, int],
        dropout: float,
        activation: Activation,
        eps: float,
        norm_first: bool,
        bias: bool,
    ) -> None:
        name, (d_model, dim_feedforward) = type(self).__name__, sizes
        for attention_name, attention in attentions.items():
            setattr(self, attention_name, attention)
        hidden = check_count(name, "dim_feedforward", dim_feedforward)
        self.linear1 = Linear(d_model, hidden, bias)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(hidden, d_model, bias)
        count = len(attentions) + 1
        for kind in ("norm", "dropout"):
            for i in range(1, count + 1):
                layer = LayerNorm(d_model, eps, bias=bias) if kind == "norm" else Dropout(dropout)
                setattr(self, f"{kind}{i}", layer)
        self.norm_first = bool(norm_first)
        known: dict[Any, Any] = {"relu": ops.ReLU(), "gelu": ops.GELU("none")}
        if not callable(activation) and activation not in known:
            raise GraphError(
                f"{name}: activation={activation!r:.80}; valid are 'relu', 'gelu', and a function "
                "or layer"
            )
        self.activation = activation
        self._activation_op = None if callable(activation) else known[activation]

    def _with(self, x: Any, number: int, branch: Callable[[Any], Any]) -> Any:
        """A residual connection: ``x`` plus its branch, normalized before the branch or after the
        sum."""
        norm, drop = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        if self.norm_first:
            return x + drop(branch(norm(x)))
        return norm(x + drop(branch(x)))

    def _feed_forward(self, x: Any) -> Any:
        """The two linear layers with the activation and a dropout between them."""
        inner = self.linear1(x)
        function: Any = self.activation
        inner = (
            function(inner) if self._activation_op is None else apply(self._activation_op, inner)
        )
        return self.linear2(self.dropout(inner))


class TransformerEncoderLayer(_TransformerLayer):
    """Attention of a sequence to itself and two linear layers, each added to its input.

    ``forward(src, src_mask, src_key_padding_mask, is_causal)`` takes (L, N, E), with
    ``batch_first`` (N, L, E); masks are those of :class:`MultiheadAttention`.

    Args:
        d_model: features, E.
        nhead: heads of the attention, a divisor of ``d_model``.
        dim_feedforward: features between the two linear layers.
        dropout: the probability of each dropout.
        activation: between the two linear layers, "relu", "gelu", or a function or layer.
        layer_norm_eps: ``eps`` of the normalizations.
        batch_first: whether the first axis is that of the batch.
        norm_first: whether normalizations come before their branches, or after the sums.
        bias: whether products and normalizations have biases.

    Raises:
        GraphError: an argument is not valid.

    Source: Vaswani et al., arXiv:1706.03762; Xiong et al., arXiv:2002.04745.

    >>> x = Input((16, 64))
    >>> net = Model(x, TransformerEncoderLayer(64, 8, 128, batch_first=True)(x))
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        own = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
        sizes = (d_model, dim_feedforward)
        self._build(
            {"self_attn": own}, sizes, dropout, activation, layer_norm_eps, norm_first, bias
        )

    def forward(
        self,
        src: Any,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Any:
        def attend(x: Any) -> Any:
            masks = _given(attn_mask=src_mask, key_padding_mask=src_key_padding_mask)
            attention: Any = self.self_attn
            return attention(x, x, x, need_weights=False, is_causal=is_causal, **masks)[0]

        return self._with(self._with(src, 1, attend), 2, self._feed_forward)


class TransformerDecoderLayer(_TransformerLayer):
    """Attention of a sequence to itself, attention to an encoder's result, and two linear layers,
    each added to its input.

    ``forward(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
    tgt_is_causal, memory_is_causal)`` takes (T, N, E) and (S, N, E), with ``batch_first`` (N, T, E)
    and (N, S, E). The arguments are those of :class:`TransformerEncoderLayer`.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        attentions = {
            name: MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
            for name in ("self_attn", "multihead_attn")
        }
        sizes = (d_model, dim_feedforward)
        self._build(attentions, sizes, dropout, activation, layer_norm_eps, norm_first, bias)

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Any:
        def attend(attention: Any, to: Any, mask: Any, padding: Any, causal: bool) -> Any:
            masks = _given(attn_mask=mask, key_padding_mask=padding)

            def branch(x: Any) -> Any:
                other = x if to is None else to
                results = attention(x, other, other, need_weights=False, is_causal=causal, **masks)
                return results[0]

            return branch

        own, other = self.self_attn, self.multihead_attn
        x = self._with(tgt, 1, attend(own, None, tgt_mask, tgt_key_padding_mask, tgt_is_causal))
        to_memory = attend(other, memory, memory_mask, memory_key_padding_mask, memory_is_causal)
        return self._with(self._with(x, 2, to_memory), 3, self._feed_forward)


class _Stack(Layer):
    """The base of encoders and decoders: copies of a layer in sequence, and a normalization."""

    def __init__(self, layer: Layer, num_layers: int, norm: Layer | None) -> None:
        name = type(self).__name__
        if not isinstance(layer, Layer) or not (norm is None or isinstance(norm, Layer)):
            raise GraphError(f"{name}: layer={layer!r:.80}, norm={norm!r:.80}; valid are layers")
        count = check_count(name, "num_layers", num_layers)
        self.layers = LayerList(*(deepcopy(layer) for _ in range(count)))
        self.num_layers = count
        self.norm = norm

    def _through(self, x: Any, *others: Any, **options: Any) -> Any:
        for layer in self.layers:
            x = layer(x, *others, **options)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """Several :class:`TransformerEncoderLayer` one after another.

    Args:
        encoder_layer: a layer, of which there are copies.
        num_layers: the number of copies.
        norm: a layer for the result, or None.
        enable_nested_tensor, mask_check: ignored.

    Raises:
        GraphError: an argument is not valid.

    >>> x = Input((16, 64))
    >>> layer = TransformerEncoderLayer(64, 8, 128, batch_first=True)
    >>> net = Model(x, TransformerEncoder(layer, 2)(x))
    """

    def __init__(
        self,
        encoder_layer: Layer,
        num_layers: int,
        norm: Layer | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__(encoder_layer, num_layers, norm)

    def forward(
        self,
        src: Any,
        mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Any:
        masks = _given(src_mask=mask, src_key_padding_mask=src_key_padding_mask)
        return self._through(src, is_causal=bool(is_causal), **masks)


class TransformerDecoder(_Stack):
    """Several :class:`TransformerDecoderLayer` one after another.

    Args:
        decoder_layer: a layer, of which there are copies.
        num_layers: the number of copies.
        norm: a layer for the result, or None.

    Raises:
        GraphError: an argument is not valid.

    >>> x, memory = Input((16, 64)), Input((9, 64))
    >>> layer = TransformerDecoderLayer(64, 8, 128, batch_first=True)
    >>> net = Model([x, memory], TransformerDecoder(layer, 2)(x, memory))
    """

    def __init__(self, decoder_layer: Layer, num_layers: int, norm: Layer | None = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Any:
        masks = _given(
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
        )
        causal = {"tgt_is_causal": bool(tgt_is_causal), "memory_is_causal": bool(memory_is_causal)}
        return self._through(tgt, memory, **causal, **masks)
