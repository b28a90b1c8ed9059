"""Rows of a table by their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.ir import Value
from minidnn.graph.rearranged import rows_of
from minidnn.graph.trace import current_trace
from minidnn.graph.types import INTEGERS, plain
from minidnn.layers.arguments import Declared, check_count, misfit
from minidnn.layers.layer import Layer
from minidnn.layers.parameter import Parameter

__all__ = ["Embedding"]


class Embedding(Layer):
    """The rows of ``weight`` by their numbers: of whole numbers (...) it gives (..., features).

    The parameter is ``weight`` (num_embeddings, embedding_dim), normal numbers at first. A number
    beyond the table gives NaN, since values are not looked at before they are used. As the first
    layer of a :class:`Sequential` it makes the network's input int64; elsewhere ``Input(shape,
    "int64")`` does.

    Args:
        num_embeddings: rows of the table.
        embedding_dim: features, numbers of a row.
        padding_idx: a row that is 0 at first and that gradients do not change.
        max_norm: only None is valid.
        norm_type: only 2 is valid.
        scale_grad_by_freq, sparse: only False is valid.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Embedding(100, 8), Linear(8, 2))
    >>> exe = md.compile(net, (4, 16))
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> None:
        self.num_embeddings = rows = check_count("Embedding", "num_embeddings", num_embeddings)
        self.embedding_dim = check_count("Embedding", "embedding_dim", embedding_dim)
        valid = {
            "max_norm": (max_norm, None),
            "norm_type": (norm_type, 2.0),
            "scale_grad_by_freq": (scale_grad_by_freq, False),
            "sparse": (sparse, False),
        }
        for name, (given, only) in valid.items():
            if given != only:
                raise GraphError(f"Embedding: {name}={given!r:.80}; valid is {only!r}")
        place = plain(padding_idx)
        if place is not None and (type(place) is not int or not -rows <= place < rows):
            raise GraphError(
                f"Embedding: padding_idx={padding_idx!r:.80}; valid is an int from {-rows} to "
                f"{rows - 1}, or None"
            )
        self.padding_idx = None if place is None else place % rows
        self.weight = Parameter((rows, embedding_dim), self._drawn)

    def _drawn(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        table = random.standard_normal(shape, np.float32)
        if self.padding_idx is not None:
            table[self.padding_idx] = 0
        return table

    def _declared_inputs(self) -> Declared:
        return ((None, (), "int64"),)

    def forward(self, x: Any) -> Any:
        if not isinstance(x, Value) or x.dtype not in INTEGERS:
            shown = str(x.type) if isinstance(x, Value) else f"{x!r:.80}"
            raise misfit(
                "Embedding",
                f"input is {shown}; valid are whole numbers, as md.Input(shape, 'int64') declares "
                "them",
            )
        (weight,) = self.constants("weight")
        return rows_of(weight, x, self.padding_idx if current_trace().training else None)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
