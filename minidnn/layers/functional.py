"""The functional form: symbols, inputs, and models made of what was called on them.

>>> x = Input((3, 224, 224))
>>> model = Model(x, ReLU()(Conv2d(3, 64, 3)(x)))

A symbol has no batch size; that is bound when the model is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.arithmetic import Arithmetic
from minidnn.graph.ir import Value
from minidnn.graph.operator import Operator
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType
from minidnn.layers.layer import Layer

__all__ = ["Input", "Model", "Symbol"]


class Call:
    """One application of a layer or an operator to symbols."""

    __slots__ = ("function", "inputs", "label", "outputs")

    def __init__(
        self, function: Callable[..., Any], inputs: tuple[Symbol, ...], label: str
    ) -> None:
        self.function = function
        self.inputs = inputs
        self.label = label
        self.outputs: tuple[Symbol, ...] = ()


class Symbol(Arithmetic):
    """A tensor of a functional model.  ``shape`` is that of one sample."""

    __slots__ = ("call", "dtype", "name", "shape")

    def __init__(
        self, shape: tuple[int, ...], dtype: str, name: str, call: Call | None = None
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.name = name
        self.call = call

    def __repr__(self) -> str:
        return f"Symbol({self.name}: {self.dtype}[batch, {', '.join(map(str, self.shape))}])"

    def _record(self, op: Operator, *operands: Arithmetic) -> Any:
        return call(op, operands)


def Input(shape: Sequence[int], dtype: str = "float32", name: str = "input") -> Symbol:
    """A symbol for a model's input; ``shape`` is that of one sample, without the batch."""
    sizes: Any = shape  # callers without types give anything
    if not isinstance(sizes, (tuple, list)) or not all(
        type(size) is int and size >= 1 for size in sizes
    ):
        raise GraphError(
            f"Input: shape={shape!r:.100}; valid is a sequence of ints of at least 1, "
            "without the batch size"
        )
    TensorType(tuple(shape), dtype)
    return Symbol(tuple(shape), dtype, name)


def call(function: Layer | Operator, inputs: Sequence[Any]) -> Any:
    """Records the call of a layer or operator on symbols and infers what it gives."""
    label = type(function).__name__ if isinstance(function, Layer) else function.name
    for i, symbol in enumerate(inputs):
        if isinstance(symbol, Value):
            outside = next(s for s in inputs if isinstance(s, Symbol))
            raise GraphError(
                f"{label}: argument {i} is {symbol!r}, a value inside forward, but {outside!r} "
                "comes from outside; valid are forward's own arguments and what is made of them"
            )
        if not isinstance(symbol, Symbol):
            raise GraphError(
                f"{label}: argument {i} is {symbol!r:.80} ({type(symbol).__name__}); "
                "valid are symbols"
            )
    run = function if isinstance(function, Layer) else _applied(function)
    record = Call(run, tuple(inputs), label)
    with tracing(label, shapes_only=True) as trace:
        if isinstance(function, Layer):
            trace.layer_paths = {id(layer): path for path, layer in function.named_layers(label)}
        values = [trace.input(TensorType((1, *s.shape), s.dtype), s.name) for s in inputs]
        results = run(*values)
    found = results_of(label, results)
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
    return record.outputs[0] if isinstance(results, Value) else record.outputs


def results_of(label: str, results: Any) -> tuple[Value, ...]:
    """What a layer gave (a value, a sequence or a dict of them) as a tuple of values."""
    found = results.values() if isinstance(results, Mapping) else results
    found = tuple(found) if isinstance(found, Iterable) else (found,)
    for i, value in enumerate(found):
        if not isinstance(value, Value):
            raise GraphError(
                f"{label}: result {i} is {value!r:.80} ({type(value).__name__}); valid are "
                "symbolic values (is a return missing in forward?)"
            )
    if not found:
        raise GraphError(f"{label}: forward gives {results!r}; valid is at least one value")
    return found


def _applied(op: Operator) -> Callable[..., Value]:
    return lambda *values: apply(op, *values)


class Model(Layer):
    """The layers between symbols, as one layer.

    ``inputs`` and ``outputs`` are a symbol, a sequence or a dict of them; a dict's names
    become the names of the executable's inputs or outputs.  Layers are attributes named by
    :meth:`Layer.named`, or numbered by their class: ``conv2d``, ``conv2d_1``, ...
    """

    def __init__(self, inputs: Any, outputs: Any) -> None:
        self.input_names, self._inputs = _flatten("inputs", inputs)
        self.output_names, self._outputs = _flatten("outputs", outputs)
        self._single = isinstance(outputs, Symbol)
        self._calls = _calls_between(self._inputs, self._outputs)
        for record in self._calls:
            if isinstance(record.function, Layer):
                self._adopt(record.function)

    @property
    def input_types(self) -> tuple[tuple[str | None, tuple[int, ...], str], ...]:
        """Name (None unless given by a dict), sample shape and dtype of each input."""
        names = self.input_names or (None,) * len(self._inputs)
        return tuple((n, s.shape, s.dtype) for n, s in zip(names, self._inputs, strict=True))

    def _adopt(self, layer: Layer) -> None:
        if any(layer is known for _, known in self.children()):
            return
        given = getattr(layer, "_name", None)
        name = base = given or type(layer).__name__.lower()
        count = 0
        while hasattr(self, name):
            if given:
                raise GraphError(f"Model: the name {given!r} is given to two layers or reserved")
            count += 1
            name = f"{base}_{count}"
        setattr(self, name, layer)

    def forward(self, *values: Value) -> Any:
        if len(values) != len(self._inputs):
            raise GraphError(
                f"Model: takes {len(self._inputs)} inputs "
                f"({', '.join(map(repr, self._inputs))}), got {len(values)}"
            )
        known: dict[Symbol, Value] = {}
        for i, (symbol, value) in enumerate(zip(self._inputs, values, strict=True)):
            if not isinstance(value, Value):
                raise GraphError(
                    f"Model: input {i} is {value!r:.80} ({type(value).__name__}); "
                    "valid are symbolic values"
                )
            if value.shape[1:] != symbol.shape or value.dtype != symbol.dtype:
                raise GraphError(
                    f"Model: input {i} is {value.type}, but it was declared as "
                    f"{symbol.dtype}[batch, {', '.join(map(str, symbol.shape))}]"
                )
            known[symbol] = value
        for record in self._calls:
            results = record.function(*(known[symbol] for symbol in record.inputs))
            found = results_of(record.label, results)
            known.update(zip(record.outputs, found, strict=True))
        outputs = tuple(known[symbol] for symbol in self._outputs)
        if self.output_names is not None:
            return dict(zip(self.output_names, outputs, strict=True))
        return outputs[0] if self._single else outputs


def _flatten(what: str, given: Any) -> tuple[tuple[str, ...] | None, tuple[Symbol, ...]]:
    names = tuple(given) if isinstance(given, Mapping) else None
    symbols = (
        tuple(given.values())
        if isinstance(given, Mapping)
        else (given,)
        if isinstance(given, Symbol)
        else tuple(given)
        if isinstance(given, Sequence)
        else (given,)
    )
    if not symbols or not all(isinstance(symbol, Symbol) for symbol in symbols):
        raise GraphError(
            f"Model: {what}={given!r:.120}; valid are a symbol made by Input(...) and layers, "
            "or a non-empty sequence or dict of them"
        )
    return names, symbols


def _calls_between(inputs: tuple[Symbol, ...], outputs: tuple[Symbol, ...]) -> list[Call]:
    """The calls that lead from the inputs to the outputs, in an order in which they can run."""
    for i, symbol in enumerate(inputs):
        if symbol in inputs[:i]:
            raise GraphError(f"Model: {symbol!r} stands twice among the inputs")
    order: dict[Call, None] = {}
    used: set[Symbol] = set()
    stack: list[tuple[Symbol, bool]] = [(symbol, False) for symbol in reversed(outputs)]
    while stack:
        symbol, ready = stack.pop()
        if symbol in inputs:
            used.add(symbol)
        elif symbol.call is None:
            raise GraphError(
                f"Model: the outputs depend on {symbol!r}, which is not among the inputs"
            )
        elif ready:
            order[symbol.call] = None
        elif symbol.call not in order:
            stack.append((symbol, True))
            stack.extend((operand, False) for operand in reversed(symbol.call.inputs))
    for symbol in inputs:
        if symbol not in used:
            raise GraphError(f"Model: no output depends on the input {symbol!r}; remove it")
    return list(order)
