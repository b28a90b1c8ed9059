"""Cases of graph/operators/attention.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from minidnn.graph import operators as ops
from minidnn.graph.trace import current_trace
from minidnn.layers import Layer
from tests.cases.record import Case

SCALE = 0.3
SHAPES = (((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)), ((1, 8), (3, 8), (3, 8)))


class AttentionLayer(Layer):
    """The result of attention, or, of four operands, one of the gradients."""

    def __init__(self, place: int = 0) -> None:
        self.place = place

    def forward(self, *inputs: Any) -> Any:
        apply = current_trace().apply
        q, k, v, *gradient = inputs
        y, logs = apply(ops.Attention(SCALE), q, k, v)
        if not gradient:
            return y
        return apply(ops.AttentionGradient(SCALE), q, k, v, y, logs, *gradient)[self.place]


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return _weights(q, k) @ v


def _weights(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    scores = np.einsum("...ld,...sd->...ls", q, k) * SCALE
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _gradient(place: int) -> Case:
    def formula(q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray) -> np.ndarray:
        weights = _weights(q, k)
        if place == 2:
            return np.einsum("...ls,...le->...se", weights, g)
        changes = np.einsum("...le,...se->...ls", g, v)
        # The derivative of each weight by each score: diag(w) - w w^T.
        inner = weights * changes
        of_scores = inner - weights * inner.sum(-1, keepdims=True)
        term = "...ls,...sd->...ld" if place == 0 else "...ls,...ld->...sd"
        return np.asarray(np.einsum(term, of_scores, k if place == 0 else q) * SCALE)

    def by_torch(q: Any, k: Any, v: Any, g: Any) -> Any:
        import torch

        with torch.enable_grad():  # what is asked for may be the gradient of this
            given = [x if x.requires_grad else x.detach().requires_grad_() for x in (q, k, v)]
            scores = given[0] @ given[1].transpose(-1, -2) * SCALE
            found = torch.softmax(scores, -1) @ given[2]
            return torch.autograd.grad(found, given, g, create_graph=True)[place]

    return Case(
        name=f"attention-gradient-{'qkv'[place]}",
        layer=lambda: AttentionLayer(place),
        torch=lambda: by_torch,
        formula=formula,
        shapes=tuple((q, k, v, (*q[:-1], v[-1])) for q, k, v in SHAPES),
        special=False,
        ulps=512.0,
        of_largest=True,
    )


def _by_torch(q: Any, k: Any, v: Any) -> Any:
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=SCALE)


CASES: tuple[Case, ...] = (
    Case(
        name="attention",
        layer=AttentionLayer,
        torch=lambda: _by_torch,
        formula=attention,
        shapes=SHAPES,
        special=False,
        ulps=16.0,
        of_largest=True,
    ),
    *map(_gradient, range(3)),
)
