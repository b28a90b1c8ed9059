"""Cases of graph/operators/activations.py."""

from __future__ import annotations

import numpy as np

from tests.cases.record import ANY_RANK, PLANES, Case, like_torch
from tests.oracles import formulas

#: Near -inf PyTorch's vectors and scalars give different results, and its GELU of inf is NaN.
VECTORS = "PyTorch's vectorized loop gives other results for infinities than its scalar loop"

CASES: tuple[Case, ...] = (
    like_torch("identity", "Identity", shapes=ANY_RANK, formula=lambda x: x, ulps=0),
    like_torch("dropout", "Dropout", 0.3, shapes=ANY_RANK, formula=lambda x: x, ulps=0),
    like_torch("dropout2d", "Dropout2d", 0.3, shapes=PLANES, formula=lambda x: x, ulps=0),
    like_torch("relu", "ReLU", shapes=ANY_RANK, formula=formulas.relu, ulps=0),
    like_torch(
        "relu6", "ReLU6", shapes=ANY_RANK, formula=lambda x: formulas.clip(x, 0.0, 6.0), ulps=0
    ),
    like_torch(
        "leaky_relu",
        "LeakyReLU",
        shapes=ANY_RANK,
        formula=lambda x: np.where(x > 0, x, 0.01 * x),
        ulps=1,
    ),
    like_torch(
        "leaky_relu-slope",
        "LeakyReLU",
        -0.7,
        shapes=ANY_RANK,
        formula=lambda x: np.where(x > 0, x, -0.7 * x),
        ulps=1,
    ),
    like_torch("elu", "ELU", shapes=ANY_RANK, formula=lambda x: formulas.elu(x, 1.0)),
    like_torch("elu-alpha", "ELU", 0.4, shapes=ANY_RANK, formula=lambda x: formulas.elu(x, 0.4)),
    like_torch("sigmoid", "Sigmoid", shapes=ANY_RANK, formula=formulas.sigmoid),
    like_torch("tanh", "Tanh", shapes=ANY_RANK, formula=np.tanh),
    like_torch(
        "gelu",
        "GELU",
        shapes=ANY_RANK,
        formula=formulas.gelu,
        # 1 + erf cancels below zero, there as here.
        of_largest=True,
        torch_differs=VECTORS,
    ),
    like_torch(
        "gelu-tanh",
        "GELU",
        arguments={"approximate": "tanh"},
        shapes=ANY_RANK,
        formula=formulas.gelu_tanh,
        of_largest=True,
        torch_differs=VECTORS,
    ),
    like_torch("silu", "SiLU", shapes=ANY_RANK, formula=formulas.silu),
    like_torch(
        "hardswish", "Hardswish", shapes=ANY_RANK, formula=formulas.hardswish, of_largest=True
    ),
    like_torch(
        "hardsigmoid", "Hardsigmoid", shapes=ANY_RANK, formula=formulas.hardsigmoid, of_largest=True
    ),
)
