"""Cases of graph/operators/reduction.py."""

from __future__ import annotations

from functools import partial

from tests.cases.record import ANY_RANK, Case, Shape, like_torch
from tests.oracles import formulas

DIMS: tuple[tuple[int, tuple[Shape, ...]], ...] = (
    (-1, ANY_RANK),
    (1, ANY_RANK),
    (0, ((2, 3), (3, 1, 4))),
    (2, ((2, 3, 5, 7), (1, 2, 1, 3))),
    (-3, ((2, 3, 5, 7),)),
)

CASES: tuple[Case, ...] = (
    *(
        like_torch(
            f"softmax-dim{dim}",
            "Softmax",
            dim,
            shapes=shapes,
            formula=partial(formulas.softmax, dim=dim),
            ulps=8,
        )
        for dim, shapes in DIMS
    ),
    *(
        like_torch(
            f"log_softmax-dim{dim}",
            "LogSoftmax",
            dim,
            shapes=shapes,
            formula=partial(formulas.log_softmax, dim=dim),
            of_largest=True,
        )
        for dim, shapes in DIMS
    ),
)
