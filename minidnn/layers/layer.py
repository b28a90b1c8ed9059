"""The base class of layers, and their parameters.

A layer owns named parameters and other layers, found by looking at its attributes.  Called on
symbolic values it adds nodes to the graph that is being recorded; it never computes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from minidnn.errors import GraphError, WeightsError
from minidnn.graph.ir import Constant, Value
from minidnn.graph.trace import current_trace
from minidnn.graph.types import TensorType, numpy_dtype

__all__ = ["Layer", "Parameter"]

Initializer = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


class LazyArray:
    """An array that is made when it is first asked for."""

    def __init__(self, make: Callable[[], np.ndarray]) -> None:
        self._make: Callable[[], np.ndarray] | None = make
        self._array: np.ndarray | None = None

    def __call__(self) -> np.ndarray:
        if self._array is None:
            assert self._make is not None
            self._array = self._make()
            self._make = None
        return self._array


class Parameter:
    """A named array of a layer: a weight, or a stored statistic.

    It is drawn by its initializer when it is first needed, from a seed and its name, so that
    defining a network costs no time and its numbers do not depend on the order of anything.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        initializer: Initializer,
        dtype: str = "float32",
        *,
        optional: bool = False,
    ) -> None:
        self.type = TensorType(tuple(shape), dtype)
        self.initializer = initializer
        #: Whether a state dict may lack it (PyTorch's ``num_batches_tracked``).
        self.optional = optional
        self._array: LazyArray | None = None

    def initialize(self, seed: int, name: str) -> None:
        """Draws the parameter anew from ``seed`` and ``name``, when it is next needed."""
        type, initializer = self.type, self.initializer

        def make() -> np.ndarray:
            random = np.random.default_rng([seed, zlib.crc32(name.encode())])
            return initializer(random, type.shape).astype(numpy_dtype(type.dtype), copy=False)

        self._array = LazyArray(make)

    def bind(self, name: str) -> LazyArray:
        """The array as it now is, initialized with seed 0 if it never was."""
        if self._array is None:
            self.initialize(0, name)
        assert self._array is not None
        return self._array

    def assign(self, array: np.ndarray) -> None:
        """Sets the array, which must have the parameter's shape, converting its dtype."""
        if array.shape != self.type.shape:
            raise WeightsError(f"shape {array.shape} given, {self.type.shape} expected")
        held = array.astype(numpy_dtype(self.type.dtype))  # copies: later changes do not reach us
        self._array = LazyArray(lambda: held)

    @property
    def initialized(self) -> bool:
        return self._array is not None


class Layer:
    """What a user composes.  A subclass defines ``forward`` on symbolic values.

    >>> class Residual(Layer):
    ...     def __init__(self, body):
    ...         self.body = body
    ...     def forward(self, x):
    ...         return x + self.body(x)
    """

    #: State-dict keys with these prefixes are ignored when they are loaded.
    ignored_prefixes: tuple[str, ...] = ()

    def forward(self, *inputs: Any) -> Any:
        """Adds this layer's nodes; takes and returns symbolic values."""
        raise GraphError(f"{type(self).__name__} does not define forward(self, ...)")

    def __call__(self, *inputs: Any) -> Any:
        from minidnn.layers.functional import Symbol, call

        if any(isinstance(value, Symbol) for value in inputs):
            return call(self, inputs)
        trace = current_trace()
        path = _path_in(trace, self)
        with trace.scope(path, leaf=not any(True for _ in self.children())):
            return self.forward(*inputs)

    def named(self, name: str) -> Layer:
        """Gives the layer a name for :class:`Model`, which otherwise numbers its layers."""
        if not name or "." in name:
            raise GraphError(f"name={name!r}; valid is a non-empty name without dots")
        self._name = name
        return self

    # Structure

    def children(self) -> Iterator[tuple[str, Layer]]:
        """The layers among the attributes, with their names, in order of assignment."""
        for name, value in vars(self).items():
            if isinstance(value, Layer):
                yield name, value
            elif isinstance(value, (list, tuple)) and any(isinstance(v, Layer) for v in value):
                raise GraphError(
                    f"{type(self).__name__}.{name} is a {type(value).__name__} of layers, whose "
                    "parameters would not be found; use Sequential or LayerList"
                )

    def named_layers(self, prefix: str = "") -> Iterator[tuple[str, Layer]]:
        """This layer and all below it, each once, with their paths ("" for this one)."""
        seen: set[int] = set()
        stack: list[tuple[str, Layer]] = [(prefix, self)]
        while stack:
            path, layer = stack.pop()
            if id(layer) in seen:
                continue
            seen.add(id(layer))
            yield path, layer
            below = [(f"{path}.{name}" if path else name, c) for name, c in layer.children()]
            stack.extend(reversed(below))

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """All parameters, each once, with the names that PyTorch would give them."""
        seen: set[int] = set()
        for path, layer in self.named_layers():
            for name, value in vars(layer).items():
                if isinstance(value, Parameter) and id(value) not in seen:
                    seen.add(id(value))
                    yield (f"{path}.{name}" if path else name), value

    def parameter(self, name: str) -> Constant | None:
        """The graph constant for one of this layer's own parameters; None for an absent one."""
        value = getattr(self, name)
        if value is None:
            return None
        trace = current_trace()
        full = f"{trace.path}.{name}" if trace.path else name
        return trace.constant(value, full, value.type, value.bind(full))

    def constants(self, *names: str) -> tuple[Value, ...]:
        """The graph constants for those of the named parameters that are present."""
        found = (self.parameter(name) for name in names)
        return tuple(value for value in found if value is not None)

    # Weights

    def initialize(self, seed: int = 0) -> Layer:
        """Draws all parameters anew from a seed.  Returns the layer itself."""
        for name, parameter in self.named_parameters():
            parameter.initialize(seed, name)
        return self

    def state_dict(self) -> dict[str, np.ndarray]:
        """All parameters by name, as PyTorch's state dict has them.  Arrays are not copied."""
        return {name: p.bind(name)() for name, p in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Sets all parameters by name from arrays (NumPy, or anything NumPy can view).

        Nothing is changed unless everything fits.  WeightsError lists every missing,
        unexpected and misshapen entry at once; ``strict=False`` tolerates missing and
        unexpected ones.  Floating-point arrays are converted to the parameter's dtype.
        """
        parameters = dict(self.named_parameters())
        ignored = tuple(
            f"{path}.{prefix}" if path else prefix
            for path, layer in self.named_layers()
            for prefix in layer.ignored_prefixes
        )
        problems: list[str] = []
        arrays: dict[str, np.ndarray] = {}
        for name, parameter in parameters.items():
            if name not in state:
                if strict and not parameter.optional:
                    problems.append(f"missing: {name} {parameter.type}")
                continue
            array = np.asarray(state[name])
            arrays[name] = array
            if array.shape != parameter.type.shape:
                problems.append(
                    f"wrong shape: {name} is {array.shape}, valid is {parameter.type.shape}"
                )
            elif array.dtype.kind not in "fiu" or (
                array.dtype.kind != "f" and parameter.type.dtype.startswith("float")
            ):
                problems.append(f"wrong dtype: {name} is {array.dtype}, valid is a float dtype")
        if strict:
            problems.extend(
                f"unexpected: {name}"
                for name in state
                if name not in parameters and not name.startswith(ignored or ("\0",))
            )
        if problems:
            listed = "\n  ".join(problems)
            raise WeightsError(
                f"the state dict does not fit {type(self).__name__} "
                f"({len(problems)} problems):\n  {listed}"
            )
        for name, array in arrays.items():
            parameters[name].assign(array)

    # Text

    def extra_repr(self) -> str:
        """The layer's arguments, for its representation."""
        return ""

    def __repr__(self) -> str:
        below = list(self.children())
        if not below:
            return f"{type(self).__name__}({self.extra_repr()})"
        shown = (f"({name}): {child}".replace("\n", "\n  ") for name, child in below)
        return "\n  ".join([f"{type(self).__name__}({self.extra_repr()}", *shown]) + "\n)"

    def summary(self, *shapes: tuple[int, ...]) -> str:
        """A table of the layers with output shapes, parameters and operations for inputs of
        these shapes, the batch included."""
        from minidnn.layers.summary import summary

        return summary(self, *shapes)


def _path_in(trace: Any, layer: Layer) -> str:
    """The path of a layer in the network that is being recorded."""
    path = trace.layer_paths.get(id(layer))
    if path is not None:
        return path
    label = f"{trace.path}.{type(layer).__name__.lower()}".lstrip(".")
    if trace.layer_paths and next(layer.named_parameters(), None) is not None:
        raise GraphError(
            f"{label}: a layer with parameters was made inside forward(), where its parameters "
            "would be lost; make it in __init__ and keep it as an attribute"
        )
    return label
