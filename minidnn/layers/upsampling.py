"""Images of another size, with PyTorch's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isfinite
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.resize import MODES, Axis
from minidnn.layers.arguments import check_numbers, check_rank, misfit
from minidnn.layers.layer import Layer

__all__ = ["Upsample"]

_RANKS = {"linear": (3,), "bilinear": (4,), "bicubic": (4,)}


class Upsample(Layer):
    """Images, (N, C, L) or (N, C, H, W), of another size.

    Args:
        size: the size of each axis after the channels, or one number for all; or
        scale_factor: by what each of them is multiplied, or one number for all.
        mode: "nearest", "nearest-exact", "linear" (of rows), "bilinear" or "bicubic".
        align_corners: whether the outermost elements stay in their places; not for "nearest".
        recompute_scale_factor: whether places follow from the sizes, which are whole numbers, and
            not from ``scale_factor``.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Conv2d(3, 8, 3), Upsample(scale_factor=2, mode="bilinear"))
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        if (size is None) == (scale_factor is None):
            raise GraphError(
                f"Upsample: size={size!r}, scale_factor={scale_factor!r}; valid is one of them"
            )
        if mode not in MODES:
            raise GraphError(
                f"Upsample: mode={mode!r:.80}; valid are {', '.join(map(repr, MODES))}"
            )
        if align_corners is not None and "nearest" in mode:
            raise GraphError(
                f"Upsample: align_corners={align_corners!r} with mode={mode!r}; valid is None"
            )
        if recompute_scale_factor and scale_factor is None:
            raise GraphError(
                "Upsample: recompute_scale_factor=True with size; valid is False or None"
            )
        self.size = size
        self.scale_factor = scale_factor
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, x: Any) -> Any:
        check_rank("Upsample", x, *_RANKS.get(self.mode, (3, 4)))
        own = x.shape[2:]
        if self.scale_factor is None:
            sizes = check_numbers("Upsample", "size", self.size, len(own), 1)
            axes = [Axis(n, outputs) for n, outputs in zip(own, sizes, strict=True)]
        else:
            factors = self._factors(len(own))
            kept = not self.recompute_scale_factor
            axes = [
                Axis(n, floor(n * factor), factor if kept else None)
                for n, factor in zip(own, factors, strict=True)
            ]
        if any(axis.outputs < 1 for axis in axes):
            raise misfit(
                "Upsample",
                f"scale_factor={self.scale_factor} leaves nothing of the input {x.shape}",
            )
        return MODES[self.mode](x, axes, bool(self.align_corners))

    def _factors(self, count: int) -> list[float]:
        given: Any = self.scale_factor
        factors = [given] * count if isinstance(given, (int, float)) else list(given)
        valid = len(factors) == count and all(
            isinstance(f, (int, float)) and isfinite(f) and f > 0 for f in factors
        )
        if not valid:
            raise misfit(
                "Upsample",
                f"scale_factor={given!r:.80}; valid is a number above 0, or {count} of them",
            )
        return [float(factor) for factor in factors]

    def extra_repr(self) -> str:
        how = (
            f"size={self.size}"
            if self.scale_factor is None
            else (f"scale_factor={self.scale_factor}")
        )
        return f"{how}, mode={self.mode!r}"
