"""Cases of graph/operators/movement.py: nothing is computed, so every bit must be kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minidnn import layers as L
from minidnn.graph import operators as ops
from minidnn.graph.layout import CHANNELS_LAST, PLANAR, blocked
from minidnn.layers.activations import OperatorLayer
from tests.cases.record import Case, like_torch


def _moving(name: str, layer: Any, numpy: Callable[..., Any], torch: Any, *shapes: Any) -> Case:
    return Case(
        name=name, layer=layer, torch=lambda: torch, formula=numpy, shapes=tuple(shapes), ulps=0
    )


def _concat(dim: int, *shapes: Any) -> Case:
    def by_torch(*inputs: Any) -> Any:
        import torch

        return torch.cat(inputs, dim)

    return _moving(
        f"concat-dim{dim}",
        lambda: L.Concat(dim),
        lambda *inputs: np.concatenate(inputs, dim),
        by_torch,
        *shapes,
    )


def _picked_by_torch(picks: tuple[tuple[int, int], ...], *inputs: Any) -> Any:
    import torch

    return torch.stack([inputs[source][:, channel] for source, channel in picks], 1)


CASES: tuple[Case, ...] = (
    _concat(
        1,
        ((2, 3, 5, 7), (2, 1, 5, 7), (2, 4, 5, 7)),
        ((1, 2), (1, 3)),
        ((3, 5, 1, 1),),
    ),
    _concat(-1, ((2, 3, 5, 7), (2, 3, 5, 1)), ((1, 2), (1, 3))),
    _concat(2, ((2, 3, 5, 7), (2, 3, 1, 7), (2, 3, 5, 7))),
    _concat(0, ((2, 3), (1, 3))),
    like_torch(
        "flatten",
        "Flatten",
        shapes=((2, 3, 5, 7), (1, 1, 1, 1), (3, 4)),
        formula=lambda x: x.reshape(len(x), -1),
        ulps=0,
    ),
    like_torch(
        "flatten-some",
        "Flatten",
        2,
        3,
        shapes=((2, 3, 5, 7), (2, 3, 1, 2, 2)),
        formula=lambda x: x.reshape(*x.shape[:2], x.shape[2] * x.shape[3], *x.shape[4:]),
        ulps=0,
    ),
    like_torch(
        "flatten-negative",
        "Flatten",
        -3,
        -2,
        shapes=((2, 3, 5, 7), (2, 3, 4)),
        formula=lambda x: x.reshape(*x.shape[:-3], -1, x.shape[-1]),
        ulps=0,
    ),
    _moving(
        "reshape",
        lambda: L.Reshape(3, -1, 2),
        lambda x: x.reshape(len(x), 3, -1, 2),
        lambda x: x.reshape(len(x), 3, -1, 2),
        ((2, 3, 5, 2),),
        ((1, 6),),
        ((3, 12, 1, 1),),
    ),
    _moving(
        "reshape-sequence",
        lambda: L.Reshape((4, 3)),
        lambda x: x.reshape(len(x), 4, 3),
        lambda x: x.reshape(len(x), 4, 3),
        ((2, 3, 4),),
    ),
    _moving(
        "view",
        lambda: OperatorLayer(ops.View((3, 2, 35))),
        lambda x: x.reshape(3, 2, 35),
        lambda x: x.reshape(3, 2, 35),
        ((2, 3, 5, 7),),
        ((6, 35),),
    ),
    *(
        _moving(
            f"take-channels-{name}",
            lambda picks=picks: OperatorLayer(ops.TakeChannels(picks)),
            lambda *inputs, picks=picks: np.stack([inputs[i][:, c] for i, c in picks], 1),
            partial(_picked_by_torch, picks),
            *shapes,
        )
        for name, picks, shapes in (
            ("of-one", ((0, 2), (0, 0), (0, 0), (0, 1)), (((2, 3, 5, 7),), ((1, 4, 4, 8),))),
            (
                "of-three",
                ((1, 0), (0, 1), (2, 3), (0, 0), (1, 0)),
                (((3, 2, 5, 7), (3, 1, 5, 7), (3, 4, 5, 7)), ((1, 2, 1, 1),) * 2 + ((1, 4, 1, 1),)),
            ),
        )
    ),
    # Another layout is the same value: what lies where is up to the backend.
    *(
        _moving(
            f"reorder-{layout}",
            lambda layout=layout: OperatorLayer(ops.Reorder(layout)),
            lambda x: x,
            lambda x: x,
            ((2, 3, 5, 7),),
            ((1, 17, 1, 1),),
        )
        for layout in (PLANAR, CHANNELS_LAST, blocked(16))
    ),
)
