"""Shapes, blocks and parameters of every kind that the steps of a ladder on a GPU take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minidnn.errors import UnsupportedError
from minidnn.lab.api import H100, LADDERS
from minidnn.lab.cuda.arrays import TransposeShape, WordsShape
from minidnn.lab.cuda.step import CudaStep
from minidnn.lab.operands import ProductShape
from minidnn.lab.step import Block, Ladder

from .emulated import Case

STEPS = [
    (ladder, step)
    for ladder in LADDERS.values()
    if ladder.device == "cuda"
    for step in ladder.steps
]
#: Those of some steps; of others, any from 1 to 8.
_NUMBERS = {
    "TILE_DEPTH": (1, 2, 4, 8, 16, 32),
    "STAGES": (2, 3, 4),
    "SIZE": (8, 16, 32),
    "STRIDE": (1, 2, 5, 32),
    "FIELDS": (1, 3, 5),
    "WIDTH": (7, 33, 64),
    "SHIFT": (0, 1, 31, 40),
    "THREAD_ROWS": (4, 8),
    "THREAD_COLUMNS": (4, 8),
}
_CONVOLUTION: tuple[Block, ...] = ((8, 8), (16, 4), (32, 1), (5, 3), (1, 1), (4, 16))
_PRODUCT: tuple[Block, ...] = ((16, 16), (8, 8), (32, 4), (4, 8), (4, 4), (5, 5), (7, 3))
_OTHERS: tuple[Block, ...] = ((8, 8), (32, 8), (32, 2), (16, 5), (5, 3), (4, 8))
#: Neighbours that a step moves at once.
_VECTORS = {"vectors": 4, "buffered": 4, "warps": 4, "tensor": 8, "pairs": 2}


def generated(ladder: Ladder, step: CudaStep, count: int) -> list[Case]:
    """So many that the step does not refuse, the same each time; fewer are the first of more."""
    random = np.random.default_rng([ord(letter) for letter in ladder.name + step.name])
    draw, blocks = _KINDS[ladder.name]
    cases: list[Case] = []
    while len(cases) < count:
        shape = draw(step, random)
        block = blocks[random.choice(len(blocks))]
        parameters = {
            name: int(random.choice(_NUMBERS.get(name, range(1, 9)))) for name in step.parameters
        }
        if shape is not None and step.why_not(shape, block, H100, parameters) is None:
            cases.append(Case(shape, block, parameters))
    return cases


def _convolution(kind: Any) -> Callable[[CudaStep, np.random.Generator], Any]:
    """Odd sizes, windows, strides, paddings and dilations."""

    def draw(step: CudaStep, random: np.random.Generator) -> Any:
        names = ("batch", "channels", "height", "width", "filters")
        sizes = dict(zip(names, random.integers(1, [3, 5, 14, 14, 12]).tolist(), strict=True))
        sizes |= {f"window_{axis}": int(random.integers(1, 6)) for axis in ("height", "width")}
        if random.integers(4):
            steps = random.integers([1, 0, 1], [4, 4, 3]).tolist()
            sizes |= dict(zip(("stride", "padding", "dilation"), steps, strict=True))
        try:
            return kind(**sizes)
        except UnsupportedError:
            return None

    return draw


def _product(step: CudaStep, random: np.random.Generator) -> ProductShape:
    rows, columns, depth = random.integers(1, 50, 3).tolist()
    whole = _VECTORS.get(step.name, 1)
    return ProductShape(rows, whole * -(-columns // whole), whole * -(-depth // whole))


def _words(step: CudaStep, random: np.random.Generator) -> WordsShape:
    return WordsShape(_VECTORS.get(step.name, 1) * int(random.integers(1, 400)))


def _transposed(step: CudaStep, random: np.random.Generator) -> TransposeShape:
    return TransposeShape(*random.integers(1, 70, 2).tolist())


_Kind = tuple[Callable[[CudaStep, np.random.Generator], Any], Sequence[Block]]
_CONVOLUTIONS = ("conv", "input-gradient", "weight-gradient")
_KINDS: dict[str, _Kind] = {
    **{name: (_convolution(type(LADDERS[name].shape)), _CONVOLUTION) for name in _CONVOLUTIONS},
    "product": (_product, _PRODUCT),
    "memory": (_words, _OTHERS),
    "reverse": (_words, _OTHERS),
    "transpose": (_transposed, _OTHERS),
}
