"""How many words are copied, and the result by NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...errors import UnsupportedError

SIZES = {"L2": 1 << 22, "DRAM": 1 << 26}
"""Words that lie in L2 together with their copies, and words that do not."""


@dataclass(frozen=True)
class WordsShape:
    """Words of four bytes."""

    count: int = SIZES["DRAM"]

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UnsupportedError(f"count={self.count}; valid are 1 and more")

    @property
    def operands(self) -> dict[str, int]:
        return {"x": self.count, "y": self.count}

    @property
    def operations(self) -> int:
        """None."""
        return 0

    @property
    def terms(self) -> int:
        """Nothing is rounded."""
        return 0


def copied(shape: WordsShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """The words as they are."""
    return operands["x"].astype(np.float64)
