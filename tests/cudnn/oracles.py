"""Random convolutions and their truth: PyTorch on the CPU in float64.

The error is measured against the sum of absolute products, which bounds what rounding can do
whatever the order of additions; a lost or doubled product is far above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

#: Rounding of inputs and of the output: dtype -> (bound on products, half an ulp at 1).
BOUNDS = {
    "float64": (1e-13, 2e-16),
    "float32": (5e-6, 1e-7),
    "float16": (1e-3, 6e-4),
    "bfloat16": (2e-3, 5e-3),
}
TF32 = 2e-3
#: Algorithms that transform tiles: their error spreads over the tile, and is larger.
TRANSFORMS = ("FFT", "WINOGRAD")
#: Algorithms that add partial sums in the output's own type.
ADDS_IN_OUTPUT_TYPE = ("BWD_DATA_ALGO_0", "BWD_FILTER_ALGO_0", "BWD_FILTER_ALGO_3")


@dataclass(frozen=True)
class Case:
    """One convolution; extents are the spatial ones."""

    n: int
    c: int
    k: int
    extents: tuple[int, ...]
    window: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    dtype: str
    channels_last: bool
    sliced: str  # "", "channels" or "space": the input is part of a larger array
    flipped: bool

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (self.n, self.c, *self.extents)

    @property
    def w_shape(self) -> tuple[int, ...]:
        return (self.k, self.c // self.groups, *self.window)


def random_case(rng: np.random.Generator) -> Case:
    """Draw a convolution whose output is not empty."""
    rank = int(rng.choice([1, 2, 2, 2, 2, 2, 2, 3]))
    groups = int(rng.choice([1, 1, 1, 2, 3, 4]))
    depthwise = groups > 1 and rng.random() < 0.3
    per_group_in = 1 if depthwise else int(rng.integers(1, 9))
    per_group_out = int(rng.integers(1, 9))
    dtype = str(rng.choice(["float32", "float32", "float16", "float16", "bfloat16", "float64"]))
    window = tuple(int(v) for v in rng.integers(1, 6 if rank < 3 else 4, rank))
    dilation = tuple(int(v) for v in rng.choice([1, 1, 1, 2, 3], rank))
    padding = tuple(int(rng.integers(0, w)) for w in window)
    stride = tuple(int(v) for v in rng.choice([1, 1, 2, 3], rank))
    reach = [d * (w - 1) + 1 for d, w in zip(dilation, window, strict=True)]
    room = 16 if rank < 3 else 6
    extents = tuple(
        max(1, r - 2 * p) + int(rng.integers(0, room)) for r, p in zip(reach, padding, strict=True)
    )
    return Case(
        n=int(rng.integers(1, 4)),
        c=groups * per_group_in,
        k=groups * per_group_out,
        extents=extents,
        window=window,
        padding=padding,
        stride=stride,
        dilation=dilation,
        groups=groups,
        dtype=dtype,
        channels_last=bool(rng.random() < 0.4),
        sliced=str(rng.choice(["", "", "", "", "channels", "space"])),
        flipped=bool(rng.random() < 0.1),
    )


def rounded(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Draw float64 numbers that ``dtype`` represents exactly."""
    values = rng.standard_normal(shape)
    if dtype == "bfloat16":
        import torch

        return torch.from_numpy(values).bfloat16().double().numpy()
    return values.astype(dtype).astype(np.float64)


def single_threaded() -> None:
    """Keep PyTorch to one thread: the convolutions are small and many processes run them."""
    import torch

    torch.set_num_threads(1)


def convolve(case: Case, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The forward convolution in float64."""
    import torch

    call = getattr(torch.nn.functional, f"conv{len(case.extents)}d")
    tx, tw = torch.from_numpy(x), torch.from_numpy(w)
    if case.flipped:
        tw = tw.flip(tuple(range(2, tw.ndim)))
    return call(tx, tw, None, case.stride, case.padding, case.dilation, case.groups).numpy()


def gradients(
    case: Case, x: np.ndarray, w: np.ndarray, dy: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients by x and by w in float64."""
    import torch

    call = getattr(torch.nn.functional, f"conv{len(case.extents)}d")
    tx = torch.from_numpy(x).requires_grad_()
    tw = torch.from_numpy(w).requires_grad_()
    used = tw.flip(tuple(range(2, tw.ndim))) if case.flipped else tw
    y = call(tx, used, None, case.stride, case.padding, case.dilation, case.groups)
    found = torch.autograd.grad(y, (tx, tw), torch.from_numpy(dy))
    return found[0].numpy(), found[1].numpy()


def on_gpu(cupy: Any, values: np.ndarray, dtype: str, channels_last: bool, sliced: str) -> Any:
    """A CuPy array of these values: logical order, in the layout that is asked for.

    The memory around a slice is NaN, so that reading beyond it shows.
    """
    kind: Any = dtype
    if dtype == "bfloat16":
        import ml_dtypes

        kind = ml_dtypes.bfloat16
    if values.ndim > 2 and sliced == "channels":
        bigger = (values.shape[0], values.shape[1] + 3, *values.shape[2:])
        part: Any = (slice(None), slice(1, 1 + values.shape[1]))
    elif values.ndim > 2 and sliced == "space":
        bigger = (*values.shape[:-1], values.shape[-1] + 2)
        part = (..., slice(1, 1 + values.shape[-1]))
    else:
        bigger, part = values.shape, (...,)
    full = np.full(bigger, np.nan)
    full[part] = values
    if channels_last:
        last = [0, *range(2, full.ndim), 1]
        back = [0, full.ndim - 1, *range(1, full.ndim - 1)]
        return cupy.asarray(np.ascontiguousarray(full.transpose(last)).astype(kind)).transpose(
            back
        )[part]
    return cupy.asarray(full.astype(kind))[part]


def host(array: Any) -> np.ndarray:
    """The values of a CuPy array as float64."""
    return array.get().astype(np.float64)


def worst(
    found: np.ndarray, truth: np.ndarray, absolute: np.ndarray, dtype: str, tf32: bool, name: str
) -> float:
    """Largest error over its bound; above 1 is wrong, NaN gives infinity."""
    products, rounding = BOUNDS[dtype]
    if tf32 and dtype == "float32":
        products = TF32
    if any(kind in name for kind in TRANSFORMS):
        products, absolute = 20 * products, np.full_like(absolute, absolute.max())
    if any(kind in name for kind in ADDS_IN_OUTPUT_TYPE):
        products += rounding
    bound = products * absolute + rounding * np.abs(truth) + 1e-7 * (dtype == "float16") + 1e-300
    if not np.isfinite(found).all():
        return float("inf")
    return float((np.abs(found - truth) / bound).max())
