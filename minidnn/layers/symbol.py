"""Symbols: the tensors of a functional model, and the calls of layers that made them.

A symbol has no batch size; the size is bound when the model is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.arithmetic import Arithmetic
from minidnn.graph.ir import Value
from minidnn.graph.symbolic import Symbolic
from minidnn.graph.trace import Trace, tracing
from minidnn.graph.types import TensorType, plain

__all__ = ["Input", "Symbol"]


class Call:
    """One call of a layer or an operator on symbols.

    Attributes:
        function: takes and returns values.
        inputs: the symbols that it was called on.
        label: its name in errors.
        outputs: the symbols that it returned.
    """

    __slots__ = ("function", "inputs", "label", "outputs")

    def __init__(
        self, function: Callable[..., Any], inputs: tuple[Symbol, ...], label: str
    ) -> None:
        self.function = function
        self.inputs = inputs
        self.label = label
        self.outputs: tuple[Symbol, ...] = ()


class Symbol(Arithmetic):
    """A tensor of a functional model, as :func:`Input` and calls of layers on symbols give it.

    Args:
        shape: that of one sample.
        dtype: of its numbers.
        name: its name in messages and pictures.
        call: the call that made it; None for an input.

    >>> x = Input((3, 32, 32))
    >>> y = Conv2d(3, 8, 3)(x)
    >>> print(y.shape)
    """

    __slots__ = ("_dtype", "_shape", "call", "name")

    def __init__(
        self, shape: tuple[int, ...], dtype: str, name: str, call: Call | None = None
    ) -> None:
        self._shape = shape
        self._dtype = dtype
        self.name = name
        self.call = call

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> str:
        return self._dtype

    def __repr__(self) -> str:
        return f"Symbol({self.name}: {self.dtype}[batch, {', '.join(map(str, self.shape))}])"

    deferred = True

    def _defer(
        self,
        label: str,
        function: Callable[..., Any],
        operands: Sequence[Any],
        options: Mapping[str, Any],
    ) -> Any:
        """Records an operator on operands, some of which are symbols, as a call."""
        symbolic = [each for each in operands if isinstance(each, Symbolic)]
        given = tuple(_Place if isinstance(each, Symbolic) else each for each in operands)
        return call(partial(_called, function, given, dict(options)), symbolic, label)


class _Place:
    """A placeholder for a symbol among the operands of a deferred call."""


def _called(
    function: Callable[..., Any], given: tuple[Any, ...], options: dict[str, Any], *values: Any
) -> Any:
    """Calls a function of operands in which ``values`` take the places of the placeholders."""
    rest = iter(values)
    return function(*(next(rest) if each is _Place else each for each in given), **options)


def Input(shape: Sequence[int], dtype: str = "float32", name: str = "input") -> Symbol:
    """A symbol for a model's input.

    Args:
        shape: that of one sample, without the batch: (C, H, W) for images.
        dtype: of its numbers.
        name: what it is called by name in calls, messages and pictures.

    Returns:
        A symbol, to call layers on.

    Raises:
        GraphError: an argument is not valid.

    >>> x = Input((3, 224, 224))
    >>> net = Model(x, L.Conv2d(3, 8, 3)(x))
    """
    sizes: Any = plain(shape)  # callers without types give anything
    if not isinstance(sizes, (tuple, list)) or not all(
        type(size) is int and size >= 1 for size in sizes
    ):
        raise GraphError(
            f"Input: shape={shape!r:.100}; valid is a sequence of ints of at least 1, "
            "without the batch size"
        )
    TensorType(tuple(sizes), dtype)
    return Symbol(tuple(sizes), dtype, name)


def call(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    label: str,
    name_in: Callable[[Trace], None] | None = None,
) -> Any:
    """Records the call of a layer or an operator on symbols, and infers its outputs.

    Args:
        function: takes and returns values.
        inputs: the symbols.
        label: the name of ``function`` in errors.
        name_in: gives a trace the paths of the layers that ``function`` may call.
    """
    for i, symbol in enumerate(inputs):
        if isinstance(symbol, Value):
            outside = next(s for s in inputs if isinstance(s, Symbol))
            raise GraphError(
                f"{label}: argument {i} is {symbol!r}, a value inside forward, but {outside!r} "
                "comes from outside; valid are forward's own arguments and what is made of them"
            )
        if isinstance(symbol, Symbolic) and not isinstance(symbol, Symbol):
            raise GraphError(
                f"{label}: argument {i} is {symbol!r}, which belongs to no layer; valid is one in "
                "forward of a layer that keeps it as an attribute (self.g = ... in __init__)"
            )
        if not isinstance(symbol, Symbol):
            raise GraphError(
                f"{label}: argument {i} is {symbol!r:.80} ({type(symbol).__name__}); "
                "valid are symbols"
            )
    record = Call(function, tuple(inputs), label)
    with tracing(label, shapes_only=True) as trace:
        trace.describing = True
        if name_in is not None:
            name_in(trace)
        values = [trace.input(TensorType((1, *s.shape), s.dtype), s.name) for s in inputs]
        results = function(*values)
        found = results_of(label, present(results))
    for value in found:
        if value.shape[:1] != (1,):
            raise GraphError(
                f"{label}: from one sample of shape {[s.shape for s in inputs]} it makes "
                f"{value!r}, which has no batch axis of size 1; valid are layers that keep the "
                "batch first"
            )
    record.outputs = tuple(Symbol(v.shape[1:], v.dtype, label.lower(), record) for v in found)
    if isinstance(results, Mapping):
        return dict(zip(results, record.outputs, strict=True))
    if isinstance(results, tuple) and len(found) < len(results):
        outputs = iter(record.outputs)
        return tuple(None if each is None else next(outputs) for each in results)
    return record.outputs[0] if isinstance(results, Value) else record.outputs


def present(results: Any) -> Any:
    """The results of a layer without those that are None, as attention's weights may be."""
    some = isinstance(results, tuple) and any(each is not None for each in results)
    return tuple(each for each in results if each is not None) if some else results


def results_of(label: str, results: Any) -> tuple[Value, ...]:
    """The results of a layer (a value, a sequence or a dict of values) as a tuple of values."""
    found = results.values() if isinstance(results, Mapping) else results
    plain = isinstance(found, Iterable) and not isinstance(found, Symbolic)
    found = tuple(
        each._value() if isinstance(each, Symbolic) else each
        for each in (found if plain else (found,))
    )
    for i, value in enumerate(found):
        if not isinstance(value, Value):
            kind, asked = type(value).__name__, "is a return missing in forward?"
            if hasattr(value, "forward"):
                asked = f"a layer is made first, and then called: {kind}(...)(x)"
            raise GraphError(
                f"{label}: result {i} is {value!r:.80} ({kind}); valid are symbolic values "
                f"({asked})"
            )
    if not found:
        raise GraphError(f"{label}: forward gives {results!r}; valid is at least one value")
    return found
