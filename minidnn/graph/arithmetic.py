"""Python's operators and NumPy's functions and methods for symbolic tensors, which hold no data.

Values of a graph, a user's symbols and parameters all derive from :class:`Arithmetic`.
``x[...]`` takes NumPy's basic indices, lists of ints, and one tensor of indices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import tensor_functions as functions
from minidnn.graph.numpy_functions import INSTEAD, call_ufunc, universal
from minidnn.graph.operators import Gather, Slice, Take, View
from minidnn.graph.symbolic import Symbolic, cast, described
from minidnn.graph.types import INTEGERS

__all__ = ["Arithmetic"]

_VALID = (
    "valid are ints, slices, ..., None, lists of ints, and one tensor of indices by itself; to "
    "choose by a condition write np.where(condition, a, b)"
)


@described("Slice")
def subscript(x: Any, key: Any) -> Any:
    """``x[key]``: a :class:`Gather` if the key is a tensor of indices, else slices and views."""
    return _gather(x, key) if isinstance(key, Symbolic) else _subscript(x, key)


def _gather(x: Any, indices: Any) -> Any:
    if indices.dtype not in INTEGERS:
        raise GraphError(f"index {indices!r:.80} is {indices.dtype}; {_VALID}")
    return x._record(Gather(0), x, indices)


def _subscript(x: Any, key: Any) -> Any:
    """``x[key]`` as at most one each of :class:`Slice`, :class:`Take` and :class:`View`."""
    keys = _every_axis(key if isinstance(key, tuple) else (key,), len(x.shape))
    starts: list[int] = []
    sizes: list[int] = []
    steps: list[int] = []
    shape: list[int] = []
    indices: dict[int, tuple[int, ...]] = {}
    for axis_key in keys:
        if axis_key is None:
            shape.append(1)
            continue
        axis = len(sizes)
        extent = x.shape[axis]
        start, size, step = 0, extent, 1
        if isinstance(axis_key, slice):
            start, size, step = _range(axis_key, extent)
            shape.append(size)
        elif isinstance(axis_key, (list, np.ndarray)):
            indices[axis] = tuple(
                _index(index, extent, axis) for index in np.asarray(axis_key).tolist()
            )
            shape.append(len(indices[axis]))
        else:
            start, size = _index(axis_key, extent, axis), 1
        starts, sizes, steps = [*starts, start], [*sizes, size], [*steps, step]
    if 0 in (*sizes, *shape):
        raise GraphError(f"index {key!r:.100} leaves no elements of {x.shape}")
    if (starts, sizes, steps) != ([0] * len(sizes), list(x.shape), [1] * len(sizes)):
        x = x._record(Slice(tuple(starts), tuple(sizes), tuple(steps)), x)
    if indices:
        x = x._record(Take(tuple(indices.get(axis) for axis in range(len(sizes)))), x)
    return x if x.shape == tuple(shape) else x._record(View(tuple(shape)), x)


def _every_axis(keys: tuple[Any, ...], rank: int) -> list[Any]:
    """The keys with ``...`` and omitted ones expanded, so that there is one for each axis."""
    for each in keys:
        flat = np.asarray(each) if isinstance(each, (list, np.ndarray)) else None
        ints = flat is not None and flat.ndim == 1 and flat.dtype.kind in "iu"
        is_int = isinstance(each, (int, np.integer)) and not isinstance(each, bool)
        if not (ints or is_int or each is None or each is Ellipsis or isinstance(each, slice)):
            raise GraphError(f"index {each!r:.100} ({type(each).__name__}); {_VALID}")
    used = sum(each is not None and each is not Ellipsis for each in keys)
    if used > rank or sum(each is Ellipsis for each in keys) > 1:
        raise GraphError(
            f"index {keys!r:.100} has {used} axes; valid are at most {rank}, and at most one ..."
        )
    omitted = [slice(None)] * (rank - used)
    ellipsis = next((i for i, each in enumerate(keys) if each is Ellipsis), len(keys))
    return [*keys[:ellipsis], *omitted, *keys[ellipsis + 1 :]]


def _range(key: slice, extent: int) -> tuple[int, int, int]:
    try:
        start, stop, step = key.indices(extent)
    except (TypeError, ValueError) as error:
        raise GraphError(f"index {key!r:.100}: {error}; {_VALID}") from None
    return start, len(range(start, stop, step)), step


def _index(key: int, extent: int, axis: int) -> int:
    if not -extent <= key < extent:
        raise GraphError(f"index {key} of axis {axis}; valid are {-extent} to {extent - 1}")
    return int(key) % extent


Axes = functions.Axes
Method = TypeVar("Method", bound=Callable[..., Any])


class _NoAttribute(GraphError, AttributeError):
    """An AttributeError, so that ``hasattr`` goes on working."""


def _as_numpy(method: Method) -> Method:
    """Wraps a method so that PyTorch's argument names raise an error that names NumPy's."""

    @wraps(method)
    def checked(self: Any, *args: Any, **options: Any) -> Any:
        for name, valid in (("dim", "axis"), ("keepdim", "keepdims")):
            if name in options:
                raise GraphError(
                    f"x.{method.__name__} takes no {name}=; write {valid}={options[name]!r:.80}, "
                    "as NumPy does"
                )
        return method(self, *args, **options)

    return checked  # type: ignore[return-value]


class Arithmetic(Symbolic):
    """A mixin with ``+ - * / ** @``, comparisons, ``x[...]``, NumPy's functions, and methods such
    as ``x.mean(axis)``; a subclass defines how an operator is recorded."""

    __slots__ = ()

    # NumPy

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return call_ufunc(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return functions.call_function(function, args, kwargs)

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise self._no_numbers("array")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """The hook that PyTorch calls for arguments that are no tensors; it raises GraphError."""
        name = getattr(function, "__name__", str(function))
        raise GraphError(
            f"PyTorch's {name} is not known of symbolic values; valid are NumPy's functions, such "
            "as np.exp(x), and layers, such as minidnn.layers.ReLU()(x); PyTorch modules are taken "
            "whole by minidnn.compile(module, shape)"
        )

    # Arithmetic

    def __add__(self, other: Any) -> Any:
        return universal(np.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return universal(np.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return universal(np.subtract, self, other)

    def __rsub__(self, other: Any) -> Any:
        return universal(np.subtract, other, self)

    def __mul__(self, other: Any) -> Any:
        return universal(np.multiply, self, other)

    def __rmul__(self, other: Any) -> Any:
        return universal(np.multiply, other, self)

    def __truediv__(self, other: Any) -> Any:
        return universal(np.true_divide, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return universal(np.true_divide, other, self)

    def __pow__(self, other: Any) -> Any:
        return universal(np.power, self, other)

    def __rpow__(self, other: Any) -> Any:
        return universal(np.power, other, self)

    def __matmul__(self, other: Any) -> Any:
        return universal(np.matmul, self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return universal(np.matmul, other, self)

    def __neg__(self) -> Any:
        return universal(np.negative, self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return universal(np.absolute, self)

    def __round__(self, digits: int | None = None) -> Any:
        return functions.rounded(self, digits or 0)

    def __floordiv__(self, other: Any) -> Any:
        raise GraphError(f"// of symbolic values is not known; write {INSTEAD[np.floor_divide]}")

    __rfloordiv__ = __floordiv__

    def __mod__(self, other: Any) -> Any:
        raise GraphError(f"% of symbolic values is not known; write {INSTEAD[np.remainder]}")

    __rmod__ = __mod__

    # Comparisons

    def __lt__(self, other: Any) -> Any:
        return universal(np.less, self, other)

    def __le__(self, other: Any) -> Any:
        return universal(np.less_equal, self, other)

    def __gt__(self, other: Any) -> Any:
        return universal(np.greater, self, other)

    def __ge__(self, other: Any) -> Any:
        return universal(np.greater_equal, self, other)

    def __invert__(self) -> Any:
        return universal(np.invert, self)

    def __and__(self, other: Any) -> Any:
        return universal(np.bitwise_and, self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        return universal(np.bitwise_or, self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Any:
        return universal(np.bitwise_xor, self, other)

    __rxor__ = __xor__

    def _is_described(self) -> bool:
        """Whether user code is describing a network with this value: then == compares elements, and
        it has no truth value.  Elsewhere both are those of any object."""
        return True

    def __eq__(self, other: object) -> Any:
        if not self._is_described() or other is None or isinstance(other, str):
            return NotImplemented
        return universal(np.equal, self, other)

    def __ne__(self, other: object) -> Any:
        if not self._is_described() or other is None or isinstance(other, str):
            return NotImplemented
        return universal(np.not_equal, self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        if self._is_described():
            raise self._no_numbers(
                "truth value",
                "to choose by a condition write np.where(condition, a, b), for the larger of two "
                "np.maximum(a, b), and for 'and', 'or', 'not' of conditions &, | and ~",
            )
        return True

    # What Python asks of numbers and of sequences

    def _no_numbers(self, what: str, write: str = "") -> GraphError:
        valid = write or (
            "write NumPy's functions (np.exp, not math.exp), or compile the network to run it"
        )
        return GraphError(f"{self!r:.80} is symbolic and has no {what}; {valid}")

    def __float__(self) -> float:
        raise self._no_numbers("number")

    def __int__(self) -> int:
        raise self._no_numbers("number")

    __index__ = __int__

    def __len__(self) -> int:
        raise self._no_numbers("length", "its sizes are in x.shape")

    def __iter__(self) -> Any:
        raise self._no_numbers(
            "elements to go through", "write x[:, i] for i in range(x.shape[1]), or np.split"
        )

    def __getitem__(self, key: Any) -> Any:
        return subscript(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise self._no_numbers(
            "elements that could be set", "write np.where(condition, a, b) or np.concatenate"
        )

    if not TYPE_CHECKING:  # a type checker that saw this would accept any name

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise _NoAttribute(
                f"a {type(self).__name__} has no attribute {name!r}; valid are "
                f"{', '.join(_METHODS)}, NumPy's functions, such as np.exp(x), and layers, such as "
                "minidnn.layers.ReLU()(x)"
            )

    # NumPy's methods

    @property
    def ndim(self) -> int:
        """The number of axes."""
        shape: tuple[int, ...] = self.shape
        return len(shape)

    @_as_numpy
    def sum(self, axis: Axes = None, keepdims: bool = False) -> Any:
        """The sum over axes, or over all of them."""
        return functions.reduce(self, "sum", axis, keepdims=keepdims)

    @_as_numpy
    def mean(self, axis: Axes = None, keepdims: bool = False) -> Any:
        """The mean over axes, or over all of them."""
        return functions.reduce(self, "mean", axis, keepdims=keepdims)

    @_as_numpy
    def max(self, axis: Axes = None, keepdims: bool = False) -> Any:
        """The largest element over axes, or over all of them."""
        return functions.reduce(self, "max", axis, keepdims=keepdims)

    @_as_numpy
    def min(self, axis: Axes = None, keepdims: bool = False) -> Any:
        """The smallest element over axes, or over all of them."""
        return functions.reduce(self, "min", axis, keepdims=keepdims)

    @_as_numpy
    def prod(self, axis: Axes = None, keepdims: bool = False) -> Any:
        """The product over axes, or over all of them."""
        return functions.reduce(self, "prod", axis, keepdims=keepdims)

    @_as_numpy
    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """The index of the largest element along an axis."""
        return functions.argmax(self, axis, keepdims=keepdims)

    @_as_numpy
    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """The index of the smallest element along an axis."""
        return functions.argmax(self, axis, keepdims=keepdims, smallest=True)

    def clip(self, min: Any = None, max: Any = None) -> Any:
        """Elements clamped to at least ``min`` and at most ``max``, where these are given."""
        return functions.clip(self, min, max)

    def round(self, decimals: int = 0) -> Any:
        """The nearest integer; of two equally near ones the even one."""
        return functions.rounded(self, decimals)

    def reshape(self, *shape: Any) -> Any:
        """The same elements in another shape, the batch included; one size may be -1."""
        return functions.reshape(self, *shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        """Merges the axes from ``start_dim`` to ``end_dim``, both included, into one."""
        return functions.flatten(self, start_dim, end_dim)

    def permute(self, *axes: Any) -> Any:
        """The tensor with its axes in another order."""
        return functions.permute(self, *axes)

    def transpose(self, *axes: Any) -> Any:
        """The tensor with its axes in another order, by default reversed."""
        return functions.permute(self, *axes)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        """The tensor with two axes swapped."""
        return functions.swapaxes(self, axis1, axis2)

    def squeeze(self, axis: Axes = None) -> Any:
        """The tensor without the given axes of size 1, or without all of them."""
        return functions.squeeze(self, axis)

    def astype(self, dtype: Any) -> Any:
        """The tensor cast to another dtype; to bool: whether an element is not zero."""
        return cast(self, dtype if isinstance(dtype, str) else np.dtype(dtype).name)


_METHODS = ("shape", "dtype", *(name for name in vars(Arithmetic) if not name.startswith("_")))
