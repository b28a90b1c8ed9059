"""All ladders."""

from __future__ import annotations

from ..errors import UnsupportedError
from .convolution.ladder import CONVOLUTION
from .convolution_cpu.ladder import CONVOLUTION_CPU
from .input_gradient.ladder import INPUT_GRADIENT
from .memory.ladder import MEMORY
from .memory_cpu.ladder import MEMORY_CPU
from .product.ladder import PRODUCT
from .reverse.ladder import REVERSE
from .step import Ladder
from .transpose.ladder import TRANSPOSE
from .weight_gradient.ladder import WEIGHT_GRADIENT

LADDERS = {
    ladder.name: ladder
    for ladder in (
        *(CONVOLUTION, INPUT_GRADIENT, WEIGHT_GRADIENT),
        *(PRODUCT, MEMORY, REVERSE, TRANSPOSE),
        *(CONVOLUTION_CPU, MEMORY_CPU),
    )
}


def ladder_of(name: str) -> Ladder:
    """The ladder of that name.

    >>> from minidnn import lab
    >>> [step.name for step in lab.ladder_of("product").steps][:3]
    ['naive', 'coalesced', 'tiled']

    Args:
        name: "conv", "input-gradient", "weight-gradient", "product", "memory", "reverse",
            "transpose", "conv-cpu" or "memory-cpu".

    Returns:
        The ladder.

    Raises:
        UnsupportedError: there is none; all names are told.
    """
    if name not in LADDERS:
        raise UnsupportedError(f"no ladder is called {name!r}; there are {', '.join(LADDERS)}")
    return LADDERS[name]
