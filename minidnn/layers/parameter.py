"""Parameters: named arrays of layers, drawn lazily from an initializer, a seed and their names."""

from __future__ import annotations

import copy
import sys
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from minidnn._habits import PARAMETER, absent
from minidnn.errors import GraphError, UnsupportedError, WeightsError
from minidnn.graph.arithmetic import Arithmetic
from minidnn.graph.ir import Stored, Value
from minidnn.graph.operators import View
from minidnn.graph.recorder import is_describing
from minidnn.graph.trace import apply, current_trace, is_tracing
from minidnn.graph.types import FLOATS, TensorType, numpy_dtype


class _Changes:
    """A count of changes to what is trainable, in all networks of the process.

    :class:`~minidnn.training.step.TrainedParameters` compares it to find out cheaply whether
    anything may have changed.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


changes = _Changes()


__all__ = ["Parameter"]

Initializer = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


class LazyArray:
    """An array that is made at the first call.

    Args:
        make: makes the array; None if it is given.
        array: the array, if it exists.
    """

    def __init__(
        self, make: Callable[[], np.ndarray] | None, array: np.ndarray | None = None
    ) -> None:
        self._make = make
        self._array = array

    def __call__(self) -> np.ndarray:
        make = self._make  # another thread sets it to None once it has the array
        if self._array is None:
            assert make is not None
            self._array = make()
            self._make = None
        return self._array


class Parameter(Arithmetic):
    """A named array of a layer: a weight, or a stored statistic.

    Kept as an attribute of a layer, it is in the network's state dict, and in the layer's
    ``forward`` it is a tensor like any other:

    >>> class Scale(Layer):
    ...     def __init__(self):
    ...         self.g = Parameter(np.ones((3, 1, 1)))
    ...     def forward(self, x):
    ...         return x * self.g

    An initializer draws it when it is first needed, from a seed and its name in the network, so
    that defining a network costs no time and its numbers do not depend on the order of anything.
    Without :meth:`Layer.initialize`, the seed is 0 and the name is the one under which a graph or a
    state dict first asks for it.

    Args:
        shape: the array itself, or its shape, if there is an initializer.
        initializer: a function of a NumPy generator and the shape, which returns the array.
        dtype: of its numbers.
        optional: whether a state dict may lack it, as PyTorch's ``num_batches_tracked``.
        trainable: whether training changes it, which only floating-point numbers can be.
    """

    def __init__(
        self,
        shape: Any,
        initializer: Initializer | None = None,
        dtype: str = "float32",
        *,
        optional: bool = False,
        trainable: bool = True,
    ) -> None:
        if initializer is None:
            shape, initializer = _given(shape, dtype)
        self.type = TensorType(tuple(shape), dtype)
        self.initializer = initializer
        #: Whether a state dict may lack it, as PyTorch's ``num_batches_tracked``.
        self.optional = optional
        self._trainable = bool(trainable) and dtype in FLOATS
        self._array: LazyArray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def trainable(self) -> bool:
        """Whether training changes it; it may be set at any time."""
        return self._trainable

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        self._trainable = bool(trainable)
        changes.count += 1

    def __repr__(self) -> str:
        return f"Parameter({self.type})"

    def _is_described(self) -> bool:
        return is_describing()

    if not TYPE_CHECKING:  # a type checker that saw this would accept any name

        def __getattr__(self, name: str) -> Any:
            """Raises AttributeError, which says for names of training that there is none."""
            if name in PARAMETER:
                absent(self, name, PARAMETER)
            return super().__getattr__(name)

    def __bool__(self) -> bool:
        return True  # "if self.bias" asks whether there is one

    def _value(self) -> Any:
        if not is_tracing():
            raise GraphError(
                f"{self!r}: a parameter was computed with outside of forward; layers describe and "
                "never compute, so compute with arrays, and assign the result to the parameter"
            )
        trace = current_trace()
        name = trace.parameter_names.get(id(self))
        if name is None:
            raise GraphError(
                f"{self!r} belongs to no layer of {trace.name}; valid is one that a layer keeps as "
                "an attribute: self.g = Parameter(...) in __init__"
            )
        return self.stored(name)

    def stored(self, name: str) -> Stored:
        """The parameter's value in the graph that is being recorded: a constant or a state.

        In training, statistics are states in any case.
        """
        trace = current_trace()
        data = _unbound if trace.shapes_only else self.bind(name)
        is_state = trace.states or (trace.training and not self.trainable)
        return (trace.state if is_state else trace.constant)(self, name, self.type, data)

    def reshaped(self, name: str, shape: tuple[int, ...]) -> Value:
        """The parameter's value in the graph that is being recorded, in another shape."""
        trace = current_trace()
        if trace.states:
            return apply(View(shape), self.stored(name))
        data = _unbound if trace.shapes_only else self.bind(name)
        type = TensorType(shape, self.type.dtype)
        return trace.constant((self, shape), name, type, lambda: data().reshape(shape))

    def initialize(self, seed: int, name: str) -> None:
        """Draws the parameter again from ``seed`` and ``name``, at its next use."""
        self._array = LazyArray(partial(_drawn, self.initializer, self.type, seed, name))

    def bind(self, name: str) -> LazyArray:
        """The current array, initialized with seed 0 if it never was."""
        if self._array is None:
            self.initialize(0, name)
        assert self._array is not None
        return self._array

    def assign(self, array: np.ndarray) -> None:
        """Sets the array, which must have the parameter's shape, to a copy in its dtype."""
        if array.shape != self.type.shape:
            raise WeightsError(f"shape {array.shape} given, {self.type.shape} expected")
        with np.errstate(over="ignore"):  # values beyond the dtype's range become infinite
            converted = array.astype(numpy_dtype(self.type.dtype))
        self._array = LazyArray(None, converted)

    def __getstate__(self) -> dict[str, Any]:
        """The attributes for pickle: the array stands in for an initializer it cannot import."""
        state = dict(vars(self))
        if not importable(self.initializer):
            state["initializer"] = partial(_lost, repr(self.initializer))
            if self._array is not None:
                state["_array"] = LazyArray(None, self._array())
        return state

    def __copy__(self) -> Parameter:
        options = {"optional": self.optional, "trainable": self.trainable}
        twin = Parameter(self.type.shape, self.initializer, self.type.dtype, **options)
        twin._array = self._array
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        twin = copy.copy(self)
        twin._array = copy.deepcopy(self._array, memo)
        return twin


def _drawn(initializer: Initializer, type: TensorType, seed: int, name: str) -> np.ndarray:
    """Draws a parameter's array from its initializer, by the seed and a hash of the name."""
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return initializer(random, type.shape).astype(numpy_dtype(type.dtype), copy=False)


def _lost(initializer: str, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """The initializer of an unpickled parameter whose own could not be pickled: GraphError."""
    raise GraphError(
        f"a parameter of shape {shape} cannot be drawn anew: it was unpickled, and its initializer "
        f"{initializer} could not be pickled; valid is a function at the top of a module"
    )


def within(bound: float) -> Initializer:
    """The initializer that draws uniformly from -bound to bound."""
    return partial(_drawn_within, bound)


def _drawn_within(bound: float, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (random.random(shape, np.float32) * 2 - 1) * np.float32(bound)


def filled(value: float) -> Initializer:
    """The initializer that fills the array with one number."""
    return partial(_filled, value)


def _filled(value: float, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, value, np.float32)


def _given(array: Any, dtype: str) -> tuple[tuple[int, ...], Initializer]:
    """The shape of an array that a parameter is made from, and an initializer that returns it."""
    if isinstance(array, tuple) and all(type(size) is int for size in array):
        raise GraphError(
            f"Parameter: shape={array} without initializer=; valid are a shape and a function of a "
            "generator and the shape, or an array in the shape's place"
        )
    given, problem = as_array(array)
    if given is None or given.dtype.kind not in "fiu":
        raise GraphError(
            f"Parameter: {array!r:.80} ({type(array).__name__}) is no array of numbers"
            f"{f' ({problem})' if problem else ''}; valid are an array, or a shape and an "
            "initializer"
        )
    with np.errstate(over="ignore"):
        converted = given.astype(numpy_dtype(dtype))
    return converted.shape, partial(_begun, converted)


def _begun(array: np.ndarray, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return array


def _unbound() -> np.ndarray:
    """The data of a parameter while shapes are inferred: GraphError."""
    raise GraphError("a parameter has no data while shapes are inferred")


def as_array(given: Any) -> tuple[np.ndarray | None, str]:
    """A user's object as an array, or None and the reason why it is none.

    PyTorch's tensors need not be detached, and may have a dtype that NumPy lacks.
    """
    try:
        given = given.detach() if hasattr(given, "detach") else given
        bfloat16 = str(getattr(given, "dtype", "")) == "torch.bfloat16"
        return np.asarray(given.float() if bfloat16 else given), ""
    except (TypeError, ValueError, RuntimeError, GraphError) as error:
        return None, str(error)


def misfit_of(array: np.ndarray, type: TensorType) -> str:
    """The reason why an array cannot be a parameter of that type, with {} for its name; "" if it
    can."""
    if array.shape != type.shape:
        return f"wrong shape: {{}} is {array.shape}, valid is {type.shape}"
    kinds, valid = ("f", "a float dtype") if "float" in type.dtype else ("iu", "an int dtype")
    if array.dtype.kind not in kinds:
        return f"wrong dtype: {{}} is {array.dtype}, valid is {valid}"
    return ""


def importable(value: Any) -> bool:
    """Whether pickle can import a function or a class by its name; True for other objects.

    A partial function is importable if the function in it is.
    """
    while isinstance(value, partial):
        value = value.func
    if not isinstance(value, (FunctionType, type)):
        return True
    imported: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        imported = getattr(imported, name, None)
    return imported is value


def check_picklable(layer: Any) -> None:
    """UnsupportedError, with the class or the attribute, if a layer cannot be pickled.

    Objects within attributes are left to pickle itself.
    """
    kind = type(layer)
    if not importable(kind):
        raise UnsupportedError(
            f"{kind.__name__} cannot be pickled, as pickle looks for the class "
            f"{kind.__qualname__!r} in the module {kind.__module__!r}, where it is not; valid is a "
            "class at the top of a module, or minidnn.save_graph(network, path, shape)"
        )
    for name, value in vars(layer).items():
        if isinstance(value, ModuleType) or not importable(value):
            raise UnsupportedError(
                f"{kind.__name__}.{name} = {value!r:.80} cannot be pickled; valid is a function or "
                "a class at the top of a module, or minidnn.save_graph(network, path, shape)"
            )


def set_state(layer: Any, state: Mapping[str, Any]) -> None:
    """Sets the state of a layer that was made without ``__init__``, from its ``__getstate__``."""
    if hasattr(type(layer), "__setstate__"):
        layer.__setstate__(state)
    else:
        vars(layer).update(state)
