"""What float32 without TF32 must not be computed with, in all parts of this package."""

from __future__ import annotations

from collections.abc import Sequence


def is_coarse_winograd(algorithm: str, window: Sequence[int]) -> bool:
    """Return whether an algorithm or engine note of this name is less accurate than TF32.

    For float32.  Winograd with 5 x 5 windows has errors of 7e-4 of the output's norm (H200,
    cuDNN 9.19) under every math type, 400 times those of 3 x 3 windows, where TF32 has 3e-4.
    """
    return "WINOGRAD" in algorithm and max(window) > 3
