"""NumPy's functions of whole symbolic tensors: reductions, shapes, concatenation, indexing.

A symbolic tensor's ``__array_function__`` calls :func:`call_function`, which finds the function
here by NumPy's name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, Literal

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.expression import maximum, minimum, rint
from minidnn.graph.numpy_functions import choose
from minidnn.graph.scalar_functions import at_least, at_most, root
from minidnn.graph.symbolic import Symbolic, cast, described, pointwise
from minidnn.graph.types import FLOATS

How = Literal["sum", "mean", "max", "min", "prod"]
Axes = int | Sequence[int] | None


@described("Reduce")
def reduce(x: Any, how: How, axis: Axes = None, *, keepdims: bool = False) -> Any:
    """The sum, mean, maximum, minimum or product over axes, or over all of them."""
    dims = _axes(axis, len(x.shape))
    _check_keepdims(keepdims)
    if x.dtype == "bool" or (how == "mean" and x.dtype not in FLOATS):
        x = cast(x, "float32" if how == "mean" else "int64")
    if how == "mean" and dims == (2, 3) and len(x.shape) == 4:
        pooled = x._record(ops.AdaptiveAvgPool2d((1, 1)), x)  # fuses with what is before it
        return pooled if keepdims else x._record(ops.Flatten(1), pooled)
    return x._record(ops.Reduce(how, dims, bool(keepdims)), x) if dims else x


def _check_keepdims(keepdims: Any) -> None:
    if not isinstance(keepdims, (bool, np.bool_)):
        raise GraphError(
            f"keepdims={keepdims!r:.80}; valid are True and False (several axes are one argument: "
            "axis=(2, 3))"
        )


def _reducing(how: How) -> Callable[..., Any]:
    def function(a: Any, axis: Axes = None, *, keepdims: bool = False) -> Any:
        return reduce(a, how, axis, keepdims=keepdims)

    return function


@described("Var")
def variance(x: Any, axis: Axes = None, *, ddof: int = 0, keepdims: bool = False) -> Any:
    """The variance over axes: the sum of squared distances to the mean, divided by the number of
    elements less ``ddof``."""
    count = prod(x.shape[d] for d in _axes(axis, len(x.shape)))
    centred = x - reduce(x, "mean", axis, keepdims=True)
    return reduce(centred * centred, "sum", axis, keepdims=keepdims) / (count - ddof)


@described("Std")
def deviation(x: Any, axis: Axes = None, *, ddof: int = 0, keepdims: bool = False) -> Any:
    """The standard deviation over axes; where all elements are equal, its derivative is 0."""
    return pointwise("Sqrt", root, variance(x, axis, ddof=ddof, keepdims=keepdims))


@described("ArgMax")
def argmax(
    x: Any, axis: int | None = None, *, keepdims: bool = False, smallest: bool = False
) -> Any:
    """The index (int64) of the largest element, or of the smallest if ``smallest``."""
    if axis is not None and not _is_int(axis):
        raise GraphError(f"axis={axis!r:.80}; valid is one axis, or None for all elements")
    _check_keepdims(keepdims)
    if smallest:
        is_integer = x.dtype not in FLOATS  # -a of the least integer overflows, -1 - a does not
        x = pointwise("Turned", lambda a: -1 - a if is_integer else -a, x)
    if axis is None:
        x, axis = x._record(ops.View((prod(x.shape),)), x), 0
    (dim,) = _axes(axis, len(x.shape))
    return x._record(ops.ArgMax(dim, bool(keepdims)), x)


@described("Reshape")
def reshape(x: Any, *shape: Any) -> Any:
    """The same elements in another shape, the batch included; one size may be -1."""
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    count = prod(x.shape)
    valid = all(_is_int(size) and size >= -1 for size in sizes) and tuple(sizes).count(-1) < 2
    known_size = prod(size for size in sizes if size != -1) if valid else 0
    if not known_size or count % known_size or (known_size != count and -1 not in sizes):
        raise GraphError(
            f"reshape to {sizes!r:.80} of {x.shape}; valid are sizes with the same number of "
            "elements, one of which may be -1"
        )
    full_shape = tuple(count // known_size if size == -1 else int(size) for size in sizes)
    return x._record(ops.View(full_shape), x)


@described("Flatten")
def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Merges the axes from ``start_dim`` to ``end_dim``, both included, into one."""
    return x._record(ops.Flatten(start_dim, end_dim), x)


@described("Transpose")
def permute(x: Any, *axes: Any) -> Any:
    """The tensor with its axes in another order, by default reversed."""
    order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
    rank = len(x.shape)
    dims = _axes(order, rank, ordered=True) if order else tuple(range(rank))[::-1]
    if len(dims) != rank:
        raise GraphError(
            f"axes={tuple(order)} of {x.shape}; valid is each of the {rank} axes once (to swap "
            "two of them write np.swapaxes(x, a, b))"
        )
    return x._record(ops.Transpose(dims), x)


@described("Transpose")
def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """The tensor with two axes swapped."""
    order = list(range(len(x.shape)))
    a, b = (_axes(axis, len(order))[0] for axis in (axis1, axis2))
    order[a], order[b] = order[b], order[a]
    return x._record(ops.Transpose(tuple(order)), x)


@described("Squeeze")
def squeeze(x: Any, axis: Axes = None) -> Any:
    """The tensor without the given axes of size 1, or without all of them."""
    ones = tuple(d for d, size in enumerate(x.shape) if size == 1)
    dims = ones if axis is None else _axes(axis, len(x.shape))
    if not set(dims) <= set(ones):
        raise GraphError(f"squeeze of axis={axis!r} of {x.shape}; valid are axes of size 1")
    kept = tuple(size for d, size in enumerate(x.shape) if d not in dims)
    return x._record(ops.View(kept), x)


@described("Unsqueeze")
def expand_dims(x: Any, axis: Any) -> Any:
    """The tensor with new axes of size 1 at the positions ``axis``."""
    rank = len(x.shape) + (1 if _is_int(axis) else len(tuple(axis)))
    dims, sizes = _axes(axis, rank), iter(x.shape)
    shape = tuple(1 if d in dims else next(sizes) for d in range(rank))
    return x._record(ops.View(shape), x)


@described("Expand")
def broadcast_to(x: Any, shape: Sequence[int]) -> Any:
    """The tensor broadcast to a shape."""
    return x._record(ops.Expand(tuple(shape)), x)


def concatenate(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Tensors and arrays, concatenated along an existing axis."""
    return _concatenated(*arrays, axis=axis)


@described("Concat")
def _concatenated(*values: Any, axis: int) -> Any:
    owner = next(value for value in values if isinstance(value, Symbolic))
    tensors = [v if isinstance(v, Symbolic) else _constant(owner, v) for v in values]
    return owner._record(ops.Concat(axis), *tensors)


def _constant(owner: Any, value: Any) -> Any:
    return owner._constant(np.asarray(value), owner.dtype)


def stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Tensors and arrays, concatenated along a new axis."""
    expanded: list[Any] = [
        expand_dims(each, axis) if isinstance(each, Symbolic) else np.expand_dims(each, axis)
        for each in arrays
    ]
    return concatenate(expanded, axis)


@described("Full")
def filled_like(x: Any, fill_value: float) -> Any:
    """A constant with every element ``fill_value``, of the shape and dtype of ``x``."""
    return x._constant(np.full(x.shape, fill_value), x.dtype)


@described("Clip")
def clip(x: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:
    """Elements clamped between two bounds, where these are given; the derivative at a bound is 1,
    as in PyTorch."""
    low, high = (b if a is None else a for a, b in ((a_min, min), (a_max, max)))
    smooth = x.dtype in FLOATS
    if low is not None:
        x = pointwise("Maximum", at_least if smooth else maximum, x, low)
    return x if high is None else pointwise("Minimum", at_most if smooth else minimum, x, high)


@described("Round")
def rounded(x: Any, decimals: int = 0) -> Any:
    """The nearest integer; of two equally near ones the even one."""
    if decimals != 0:
        raise GraphError(
            f"round to decimals={decimals!r:.20} of a symbolic value; valid is 0: write "
            "np.round(x * 10**decimals) / 10**decimals"
        )
    return pointwise("Round", rint, x, fractions=True)


@described("Split")
def split(x: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    """Splits an axis into a number of equal parts, or at the given indices."""
    (dim,) = _axes(axis, len(x.shape))
    size, ends = x.shape[dim], indices_or_sections
    if _is_int(ends):
        if ends < 1 or size % ends:
            raise GraphError(
                f"split of axis {dim} of {x.shape} into {ends}; valid are equal parts, or a "
                "sequence of the indices where they end"
            )
        ends = range(size // ends, size, size // ends)
    leading = (slice(None),) * dim
    return tuple(x[(*leading, slice(a, b))] for a, b in pairwise([0, *ends, size]))


@described("Slice")
def flip(x: Any, axis: Axes = None) -> Any:
    """The tensor with the elements along some axes, or all, in reverse order."""
    dims = _axes(axis, len(x.shape))
    return x[tuple(slice(None, None, -1 if d in dims else 1) for d in range(len(x.shape)))]


@described("Gather")
def take(x: Any, indices: Any, axis: int | None = None) -> Any:
    """The elements of an axis at ``indices``, which are an array or a tensor."""
    if axis is None:
        raise GraphError("np.take of a symbolic value with axis=None; valid is an axis")
    (dim,) = _axes(axis, len(x.shape))
    if isinstance(indices, Symbolic):
        return x._record(ops.Gather(dim), x, indices)
    return x[(*(slice(None),) * dim, np.asarray(indices))]


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _axes(axis: Any, rank: int, ordered: bool = False) -> tuple[int, ...]:
    """Axes counted from 0, sorted unless their order counts (``ordered``); None means all."""
    if axis is None:
        return tuple(range(rank))
    axes = (axis,) if _is_int(axis) else axis
    valid = isinstance(axes, (tuple, list)) and all(
        _is_int(each) and -rank <= each < rank for each in axes
    )
    dims = [int(each) % rank for each in axes] if valid else []
    if not valid or len(set(dims)) < len(dims):
        raise GraphError(
            f"axis={axis!r:.80}; valid are different axes from {-rank} to {rank - 1}, or None"
        )
    return tuple(dims if ordered else sorted(dims))


_BY_NAME: dict[str, Callable[..., Any]] = {
    "where": choose,
    "clip": clip,
    "round": rounded,
    "around": rounded,
    "sum": _reducing("sum"),
    "mean": _reducing("mean"),
    "max": _reducing("max"),
    "amax": _reducing("max"),
    "min": _reducing("min"),
    "amin": _reducing("min"),
    "prod": _reducing("prod"),
    "var": variance,
    "std": deviation,
    "argmax": argmax,
    "argmin": lambda a, axis=None, *, keepdims=False: argmax(
        a, axis, keepdims=keepdims, smallest=True
    ),
    "reshape": reshape,
    "ravel": flatten,
    "transpose": permute,
    "permute_dims": permute,
    "swapaxes": swapaxes,
    "squeeze": squeeze,
    "expand_dims": expand_dims,
    "broadcast_to": broadcast_to,
    "concatenate": concatenate,
    "concat": concatenate,
    "stack": stack,
    "split": split,
    "flip": flip,
    "take": take,
    "zeros_like": lambda a: filled_like(a, 0.0),
    "ones_like": lambda a: filled_like(a, 1.0),
    "full_like": filled_like,
    "ndim": lambda x: len(x.shape),
    "shape": lambda x: x.shape,
}
#: The implementation of NumPy's functions for symbolic values; some NumPy versions lack some.
FUNCTIONS = {getattr(np, name): each for name, each in _BY_NAME.items() if hasattr(np, name)}


def call_function(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Implements ``__array_function__``, the hook by which NumPy calls functions of other types.

    For a function that is not supported, GraphError says what to write instead.
    """
    name = f"np.{function.__name__}"
    if function not in FUNCTIONS:
        raise GraphError(
            f"{name} is not known of symbolic values; valid are np.{{{', '.join(_BY_NAME)}}}, "
            "element-wise functions such as np.exp, and layers of minidnn.layers"
        )
    own = FUNCTIONS[function]
    try:
        inspect.signature(own).bind(*arguments, **options)
    except TypeError as error:
        raise GraphError(
            f"{name} of a symbolic value: {error}; valid is {name}{inspect.signature(own)}"
        ) from None
    return own(*arguments, **options)
