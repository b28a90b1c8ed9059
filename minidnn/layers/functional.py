"""The functional form: models made of the calls that were recorded on symbols.

>>> x = Input((3, 224, 224))
>>> model = Model(x, ReLU()(Conv2d(3, 64, 3)(x)))

:func:`has_user_code` says whether code outside of minidnn records nodes of a network's graph: a
user's layers, and functions in such models, may depend on sizes; minidnn's do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.ir import Value
from minidnn.layers.arguments import Declared
from minidnn.layers.layer import Layer, called_with
from minidnn.layers.symbol import Call, Symbol, present, results_of

__all__ = ["Model"]


class Model(Layer):
    """The layers between symbols, as one layer.

    Layers are attributes named by :meth:`Layer.named`, or numbered by their class: ``conv2d``,
    ``conv2d_1``, ...

    Args:
        inputs: a symbol, a sequence or a dict of them; a dict's names become those of the
            executable's inputs.
        outputs: the same of what it gives.

    Raises:
        GraphError: an output does not follow from the inputs, or an argument is no symbol.

    >>> x = Input((3, 32, 32))
    >>> y = Conv2d(3, 8, 3, padding=1)(x)
    >>> net = Model(x, {"features": y, "sum": y + Conv2d(3, 8, 1)(x)})
    """

    def __init__(self, inputs: Any, outputs: Any) -> None:
        self.input_names, self._inputs = _flatten("inputs", inputs)
        self.output_names, self._outputs = _flatten("outputs", outputs)
        self._single = isinstance(outputs, Symbol)
        self._calls = _calls_between(self._inputs, self._outputs)
        for record in self._calls:
            function = record.function
            if isinstance(function, partial) and function.func is called_with:
                function = function.args[0]
            if isinstance(function, Layer):
                self._adopt(function)

    @property
    def input_types(self) -> Declared:
        """Name (None unless given by a dict), sample shape and dtype of each input."""
        names = self.input_names or (None,) * len(self._inputs)
        return tuple((n, s.shape, s.dtype) for n, s in zip(names, self._inputs, strict=True))

    @property
    def functions(self) -> list[Any]:
        """The functions that the model calls, in order: layers, and functions of values."""
        return [record.function for record in self._calls]

    def _declared_inputs(self) -> Declared:
        return self.input_types

    def __getstate__(self) -> dict[str, Any]:
        """The attributes, with symbols as numbers.

        Pickle would recurse through symbols, which refer to each other in chains as long as the
        network.
        """
        numbers: dict[Symbol, int] = {}
        for symbol in (*self._inputs, *(s for each in self._calls for s in each.outputs)):
            numbers.setdefault(symbol, len(numbers))
        calls = [
            (c.function, c.label, [numbers[s] for s in c.inputs], [numbers[s] for s in c.outputs])
            for c in self._calls
        ]
        symbols = [(s.shape, s.dtype, s.name) for s in numbers]
        indices = [[numbers[s] for s in each] for each in (self._inputs, self._outputs)]
        return super().__getstate__() | {
            "_calls": (symbols, calls),
            "_inputs": indices[0],
            "_outputs": indices[1],
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        described, calls = state["_calls"]
        symbols = [Symbol(*each) for each in described]
        records = []
        for function, label, inputs, outputs in calls:
            record = Call(function, tuple(symbols[i] for i in inputs), label)
            record.outputs = tuple(symbols[i] for i in outputs)
            records.append(record)
        ends = {key: tuple(symbols[i] for i in state[key]) for key in ("_inputs", "_outputs")}
        vars(self).update(state | ends | {"_calls": records})

    def _adopt(self, layer: Layer) -> None:
        """Keeps a layer as an attribute, unless it is one already."""
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
            found = results_of(record.label, present(results))
            known.update(zip(record.outputs, found, strict=True))
        outputs = tuple(known[symbol] for symbol in self._outputs)
        if self.output_names is not None:
            return dict(zip(self.output_names, outputs, strict=True))
        return outputs[0] if self._single else outputs


def _flatten(what: str, given: Any) -> tuple[tuple[str, ...] | None, tuple[Symbol, ...]]:
    """The names, if any, and the symbols of inputs or outputs."""
    names = tuple(given) if isinstance(given, Mapping) else None
    listed = tuple(given.values()) if isinstance(given, Mapping) else given
    symbols = tuple(listed) if isinstance(listed, Sequence) else (listed,)
    if not symbols or not all(isinstance(symbol, Symbol) for symbol in symbols):
        raise GraphError(
            f"Model: {what}={given!r:.120}; valid are a symbol made by Input(...) and layers, "
            "or a non-empty sequence or dict of them"
        )
    return names, symbols


def _calls_between(inputs: tuple[Symbol, ...], outputs: tuple[Symbol, ...]) -> list[Call]:
    """The calls from the inputs to the outputs, in topological order."""
    declared = set(inputs)  # membership by identity: == on symbols is elementwise
    for i, symbol in enumerate(inputs):
        if symbol in set(inputs[:i]):
            raise GraphError(f"Model: {symbol!r} appears twice among the inputs")
    order: dict[Call, None] = {}
    used: set[Symbol] = set()
    stack: list[tuple[Symbol, bool]] = [(symbol, False) for symbol in reversed(outputs)]
    while stack:
        symbol, ready = stack.pop()
        if symbol in declared:
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


#: Packages whose layers record the same nodes for all batch sizes.
_OURS = ("minidnn.layers.", "minidnn.models.")


def has_user_code(network: Layer) -> bool:
    """Whether code outside of minidnn records nodes of a network's graph."""
    return any(_is_others(layer) for _, layer in network.named_layers())


def _is_others(layer: Layer) -> bool:
    """Whether a layer's own code is not minidnn's."""
    kinds = type(layer).__mro__[: type(layer).__mro__.index(Layer)]
    modules = [kind.__module__ for kind in kinds] + [type(layer).forward.__module__]
    if "forward" in vars(layer) or not all(f"{module}.".startswith(_OURS) for module in modules):
        return True
    return isinstance(layer, Model) and not all(map(_is_ours, layer.functions))


def _is_ours(function: Any) -> bool:
    """Whether a function that a model calls is minidnn's, or a layer, which is judged by itself."""
    if isinstance(function, partial):  # a layer with options, or a deferred operator
        function = function.args[0]
    return isinstance(function, Layer) or f"{function.__module__}.".startswith("minidnn.")
