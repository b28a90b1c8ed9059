"""Layers of transformers, with PyTorch's arguments and parameter names."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.trace import apply
from minidnn.layers.arguments import check_count
from minidnn.layers.attention import MultiheadAttention
from minidnn.layers.containers import LayerList
from minidnn.layers.contraction import Linear
from minidnn.layers.dropout import Dropout
from minidnn.layers.layer import Layer
from minidnn.layers.normalization import LayerNorm

__all__ = [
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]

Activation = str | Callable[[Any], Any]


class _TransformerLayer(Layer):
    """What layers of encoders and decoders share: each attention has a normalization and a dropout
    of its own, and so have the linear layers."""

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
        for each, attention in attentions.items():
            setattr(self, each, attention)
        hidden = check_count(name, "dim_feedforward", dim_feedforward)
        self.linear1 = Linear(d_model, hidden, bias)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(hidden, d_model, bias)
        count = len(attentions) + 1
        for kind in ("norm", "dropout"):
            for i in range(1, count + 1):
                made = LayerNorm(d_model, eps, bias=bias) if kind == "norm" else Dropout(dropout)
                setattr(self, f"{kind}{i}", made)
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
        """An input and what a branch makes of it, normalized before or behind."""
        norm, drop = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        if self.norm_first:
            return x + drop(branch(norm(x)))
        return norm(x + drop(branch(x)))

    def _feed_forward(self, x: Any) -> Any:
        inner = self.linear1(x)
        own: Any = self.activation
        inner = own(inner) if self._activation_op is None else apply(self._activation_op, inner)
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
        norm_first: whether normalizations come before what they belong to, or behind.
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
            masks = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}
            given = {name: mask for name, mask in masks.items() if mask is not None}
            attention: Any = self.self_attn
            return attention(x, x, x, need_weights=False, is_causal=is_causal, **given)[0]

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
            given = {"attn_mask": mask, "key_padding_mask": padding}
            given = {name: each for name, each in given.items() if each is not None}

            def branch(x: Any) -> Any:
                other = x if to is None else to
                found = attention(x, other, other, need_weights=False, is_causal=causal, **given)
                return found[0]

            return branch

        own, other = self.self_attn, self.multihead_attn
        x = self._with(tgt, 1, attend(own, None, tgt_mask, tgt_key_padding_mask, tgt_is_causal))
        to_memory = attend(other, memory, memory_mask, memory_key_padding_mask, memory_is_causal)
        return self._with(self._with(x, 2, to_memory), 3, self._feed_forward)


class _Stack(Layer):
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
        num_layers: how many.
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
        given = {"src_mask": mask, "src_key_padding_mask": src_key_padding_mask}
        given = {name: each for name, each in given.items() if each is not None}
        return self._through(src, is_causal=bool(is_causal), **given)


class TransformerDecoder(_Stack):
    """Several :class:`TransformerDecoderLayer` one after another.

    Args:
        decoder_layer: a layer, of which there are copies.
        num_layers: how many.
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
        masks = {
            "tgt_mask": tgt_mask,
            "memory_mask": memory_mask,
            "tgt_key_padding_mask": tgt_key_padding_mask,
            "memory_key_padding_mask": memory_key_padding_mask,
        }
        given = {name: mask for name, mask in masks.items() if mask is not None}
        causal = {"tgt_is_causal": bool(tgt_is_causal), "memory_is_causal": bool(memory_is_causal)}
        return self._through(tgt, memory, **causal, **given)
