"""Layers of images: preparation of a network's input pictures, and resizing.

Arguments are PyTorch's, where it has such a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isfinite
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument
from minidnn.graph.ir import Constant
from minidnn.graph.resize import MODES, Axis
from minidnn.graph.trace import apply, current_trace
from minidnn.graph.types import TensorType
from minidnn.layers.arguments import Declared, check_numbers, check_rank, misfit
from minidnn.layers.layer import Layer

__all__ = [
    "Preprocess",
    "Upsample",
]


_LAYOUTS = ("NHWC", "NCHW")
_DTYPES = ("uint8", "float32")


class Preprocess(Layer):
    """Makes of pictures what a network takes: ``(x / scale - mean) / std``, channels first.

    It is the first layer of a network, which then takes pictures as a decoder gives them: a batch
    of rows of pixels in uint8.  The numbers are, to the last bit, those of torchvision's
    ``to_tensor`` and ``normalize``.

    Args:
        mean, std: one number, or one for each channel, of pixels that were divided by ``scale``.
        scale: what pixels are divided by.
        layout: "NHWC", channels last, or "NCHW".
        dtype: of the pictures: "uint8" or "float32".

    Raises:
        GraphError: an argument is none of these.

    Source: torchvision.transforms.

    >>> net = Sequential(
    ...     Preprocess(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)), Conv2d(3, 8, 3))
    >>> exe = minidnn.compile(net, (1, 224, 224, 3))
    """

    def __init__(
        self,
        mean: float | Sequence[float] | np.ndarray = 0.0,
        std: float | Sequence[float] | np.ndarray = 1.0,
        scale: float = 255.0,
        layout: str = "NHWC",
        dtype: str = "uint8",
    ) -> None:
        for name, given, valid in (("layout", layout, _LAYOUTS), ("dtype", dtype, _DTYPES)):
            if given not in valid:
                raise GraphError(
                    f"Preprocess: {name}={given!r:.80}; valid are {' and '.join(map(repr, valid))}"
                )
        self.mean, self.std = _numbers("mean", mean), _numbers("std", std)
        self.scale = float(_numbers("scale", scale, single=True)[0])
        if not self.std.all() or not self.scale:
            raise GraphError(
                f"Preprocess: std={std!r:.80}, scale={scale!r}; valid are numbers other than 0"
            )
        if len({self.mean.size, self.std.size} - {1}) > 1:
            raise GraphError(
                f"Preprocess: mean has {self.mean.size} numbers and std {self.std.size}; valid is "
                "one, or one for each channel"
            )
        self.layout, self.dtype = layout, dtype

    def _declared_inputs(self) -> Declared:
        return ((None, (), self.dtype),)

    def forward(self, x: Any) -> Any:
        check_rank("Preprocess", x, 4)
        if x.dtype != self.dtype:
            raise misfit(
                "Preprocess",
                f"input is {x.type}; valid is {self.dtype}, as md.Input(shape, "
                f"dtype={self.dtype!r}) declares it, or Preprocess(dtype={x.dtype!r})",
            )
        if self.layout == "NHWC":
            x = apply(ops.Transpose((0, 3, 1, 2)), x)
        channels = x.shape[1]
        count = max(self.mean.size, self.std.size)
        if count not in (1, channels):
            raise misfit(
                "Preprocess",
                f"pictures have {channels} channels in layout {self.layout}, but mean or std has "
                f"{count} numbers",
            )
        # Single numbers become constants of the formula, others vectors over the channels.
        vectors: list[Constant] = []
        body = argument(0) / self.scale if self.scale != 1 else argument(0)
        if self.mean.any():
            body = body - self._operand("mean", vectors)
        if (self.std != 1).any():
            body = body / self._operand("std", vectors)
        return apply(ops.Formula(body, 1, len(vectors), "Preprocess", "float32"), x, *vectors)

    def _operand(self, name: str, vectors: list[Constant]) -> Expression | float:
        """A mean or std in the formula: a number, or the argument of a vector that is added."""
        array: np.ndarray = getattr(self, name)
        if array.size == 1:
            return float(array[0])
        trace = current_trace()
        label = f"{trace.path}.{name}" if trace.path else name
        type = TensorType(array.shape)
        vectors.append(trace.constant((self, name), label, type, lambda: array))
        return argument(len(vectors))

    def extra_repr(self) -> str:
        shown = (f"{name}={getattr(self, name).tolist()}" for name in ("mean", "std"))
        return f"{', '.join(shown)}, scale={self.scale:g}, layout={self.layout!r}"


def _numbers(name: str, given: Any, single: bool = False) -> np.ndarray:
    """One or several finite numbers, as float32."""
    try:
        array = np.array(given, np.float32)
    except (TypeError, ValueError):
        array = np.full(1, np.nan, np.float32)
    if array.ndim > (0 if single else 1) or not array.size or not np.isfinite(array).all():
        many = "" if single else ", or one for each channel"
        raise GraphError(f"Preprocess: {name}={given!r:.80}; valid is a finite number{many}")
    return array.reshape(-1)


_RANKS = {"linear": (3,), "bilinear": (4,), "bicubic": (4,)}


class Upsample(Layer):
    """Images, (N, C, L) or (N, C, H, W), of another size.

    Args:
        size: the size of each axis after the channels, or one number for all; or
        scale_factor: the factor of each of these sizes, or one number for all.
        mode: "nearest", "nearest-exact", "linear" (of rows), "bilinear" or "bicubic".
        align_corners: whether the outermost elements stay where they are; not for "nearest".
        recompute_scale_factor: whether coordinates follow from the sizes, which are integers, and
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
        extents = x.shape[2:]
        if self.scale_factor is None:
            sizes = check_numbers("Upsample", "size", self.size, len(extents), 1)
            axes = [Axis(n, outputs) for n, outputs in zip(extents, sizes, strict=True)]
        else:
            factors = self._factors(len(extents))
            kept = not self.recompute_scale_factor
            axes = [
                Axis(n, floor(n * factor), factor if kept else None)
                for n, factor in zip(extents, factors, strict=True)
            ]
        if any(axis.outputs < 1 for axis in axes):
            raise misfit(
                "Upsample",
                f"scale_factor={self.scale_factor} leaves nothing of the input {x.shape}",
            )
        return MODES[self.mode](x, axes, bool(self.align_corners))

    def _factors(self, count: int) -> list[float]:
        """The scale factor of each axis."""
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
        name = "size" if self.scale_factor is None else "scale_factor"
        return f"{name}={getattr(self, name)}, mode={self.mode!r}"
