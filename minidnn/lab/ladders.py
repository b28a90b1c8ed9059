"""All ladders."""

from __future__ import annotations

from ..errors import UnsupportedError
from .convolution.ladder import CONVOLUTION
from .product.ladder import PRODUCT
from .step import Ladder

LADDERS = {ladder.name: ladder for ladder in (CONVOLUTION, PRODUCT)}


def ladder_of(name: str) -> Ladder:
    """The ladder of that name; UnsupportedError, which names all, if there is none."""
    if name not in LADDERS:
        raise UnsupportedError(f"no ladder is called {name!r}; there are {', '.join(LADDERS)}")
    return LADDERS[name]
